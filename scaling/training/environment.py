"""What a run ran on: versions and machine, for run.json."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = (
    *("attnres-scaling", "torch", "lightning", "numpy", "tokenizers", "transformers", "datasets"),
    *("flash-linear-attention", "fla-core", "triton"),
)


def versions() -> dict[str, str]:
    """Versions of everything that can move a number, as far as it is there."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    if cudnn := torch.backends.cudnn.version():
        found["cudnn"] = str(cudnn)
    return found


def machine() -> dict[str, Any]:
    """The processor, the cores this process may use, and the GPU if there is one."""
    facts: dict[str, Any] = {
        "system": "-".join((platform.system(), platform.release().partition("-")[0], platform.machine())),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
