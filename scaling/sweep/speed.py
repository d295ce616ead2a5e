"""What this machine's devices can do: the rate of their matrix products, and the memory of its GPUs.

GPUs are asked in a process that ends (`python -m scaling.sweep.speed`): one that has opened CUDA keeps hundreds of
megabytes of a GPU, which a sweep's runs need.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GpuFacts:
    """Of the GPUs that a process sees."""

    flops: float
    """FLOP/s of the first one's matrix products in bfloat16."""
    memory: int
    """Bytes of the smallest one."""


@functools.cache
def gpu_facts(gpus: str) -> GpuFacts | None:
    """What the GPUs of these numbers, separated by commas, can do; None where they do not answer."""
    command = [sys.executable, "-m", "scaling.sweep.speed"]
    done = subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus}, capture_output=True, text=True, check=False
    )
    try:
        return GpuFacts(**json.loads(done.stdout))
    except (ValueError, TypeError):
        return None


def matrix_product_rate(device: str, seconds: float = 0.3) -> float:
    """FLOP/s of large matrix products: float32 on the `cpu`, bfloat16 on `cuda`."""
    import torch

    on_gpu = device == "cuda"
    n = 8192 if on_gpu else 1024
    a = torch.ones(n, n, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    product = a @ a
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        torch.mm(a, a, out=product)
        count += 1
        if on_gpu:
            torch.cuda.synchronize()
    return 2 * n**3 * count / elapsed


def _measure() -> GpuFacts:
    import torch

    memory = min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    return GpuFacts(matrix_product_rate("cuda"), memory)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure())))
