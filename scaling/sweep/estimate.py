"""How long runs will take: at a given rate, else as runs of the same folder, else by the machine's own speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.compute import flops_per_token
from scaling.config import RunConfig
from scaling.errors import RecordError
from scaling.records import RunDirectory

ASSUMED_UTILISATION = 0.4


@dataclass(frozen=True)
class Rate:
    """FLOP/s of the `model` ledger that one device of a run reaches, and where the number comes from."""

    flops: float
    description: str


def device_seconds(config: RunConfig, rate: Rate) -> float:
    """Device seconds of a whole run."""
    return flops_per_token(config.shape, "model") * config.tokens / rate.flops


def rate_of_peak(peak_tflops: float, utilisation: float = ASSUMED_UTILISATION) -> Rate:
    """The rate of a device that reaches a share of its peak in the `model` ledger."""
    return Rate(utilisation * peak_tflops * 1e12, f"{utilisation:.3g} of a peak of {peak_tflops:g} TFLOP/s a device")


def device_memory(accelerator: str) -> float | None:
    """Bytes of the smallest GPU that torch sees; None without one, or where runs go to the CPU."""
    import torch

    if accelerator == "cpu" or not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def rate_of_slots(runs: Sequence[RunConfig], directories: Sequence[RunDirectory], slots_per_device: float) -> Rate:
    """The rate of one slot: measured where a run of the folder has rows, else a share of the matrix-product rate.

    Args:
        runs: configurations, in the order of `directories`.
        directories: their run directories.
        slots_per_device: how many runs share a device (more than 1 where a CPU's cores are divided).
    """
    flops = seconds = 0.0
    for config, run in zip(runs, directories, strict=True):
        try:
            metrics = run.read_metrics(config.train.batch_tokens)
        except RecordError:  # status says so; its speed is not known
            continue
        if metrics.rows:
            flops += flops_per_token(config.shape, "model") * metrics.rows[-1]["tokens"]
            seconds += metrics.device_seconds
    if seconds:
        return Rate(flops / seconds, f"{flops / seconds:.3g} FLOP/s, measured over the runs so far")
    peak = matrix_product_rate()
    return Rate(
        ASSUMED_UTILISATION * peak / slots_per_device,
        f"{ASSUMED_UTILISATION:.0%} of this machine's {peak:.3g} FLOP/s in matrix products"
        + (f", divided by {slots_per_device:g} runs at a time" if slots_per_device > 1 else ""),
    )


def matrix_product_rate(seconds: float = 0.3) -> float:
    """FLOP/s of large matrix products on this machine: float32 on a CPU, bfloat16 on a GPU."""
    import torch

    on_gpu = torch.cuda.is_available()
    n = 8192 if on_gpu else 1024
    a = torch.ones(n, n, device="cuda" if on_gpu else "cpu", dtype=torch.bfloat16 if on_gpu else torch.float32)
    product = a @ a
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        torch.mm(a, a, out=product)
        count += 1
        if on_gpu:
            torch.cuda.synchronize()
    return 2 * n**3 * count / elapsed
