"""The devices that runs share: GPUs, or equal parts of a CPU's cores. A run takes what it needs and gives it back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.config import RunConfig
from scaling.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """A GPU, or a part of a CPU."""

    gpu: str = ""
    """Number of the GPU, as CUDA_VISIBLE_DEVICES has it; empty for a part of a CPU."""
    threads: int = 0
    """Threads of a process on this part of a CPU."""
    cores: tuple[int, ...] = ()
    """Cores of this part of a CPU; none where something else than the sweep divides them."""


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """What a run must see to use these devices and no others."""
    if devices[0].gpu:
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.gpu for device in devices)}
    threads = str(devices[0].threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


class DevicePool:
    """Devices, each with at most one run."""

    def __init__(self, devices: Sequence[Device]):
        self._all = list(devices)
        self._free = list(range(len(self._all)))

    @property
    def free(self) -> int:
        """Number of devices that no run has."""
        return len(self._free)

    def take(self, count: int) -> dict[int, Device]:
        """The first `count` free devices, by their place in the pool; there must be as many."""
        places, self._free = self._free[:count], self._free[count:]
        return {place: self._all[place] for place in places}

    def give_back(self, taken: dict[int, Device]) -> None:
        """Make what `take` gave free again."""
        self._free = sorted([*self._free, *taken])


def find_devices(runs: Sequence[RunConfig], chosen: str | None) -> list[Device]:
    """The devices of this machine that a sweep may use.

    Args:
        runs: all runs of the sweep, done or not: on a CPU they decide how many threads a process has, and with them
            how sums are rounded, so that must not change as runs finish.
        chosen: GPU numbers separated by commas, or on a CPU the number of parts; all that there is if None.

    Raises:
        ConfigError: `chosen` is not of that form, or a run asks for more devices than there are.
    """
    accelerator = runs[0].execution.accelerator
    gpus = visible_gpus() if accelerator != "cpu" else []
    if accelerator == "cuda" and not gpus:
        raise ConfigError("execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto")
    devices = _gpu_devices(gpus, chosen) if gpus else _cpu_devices(sum(r.execution.devices for r in runs), chosen)
    largest = max(runs, key=lambda run: run.execution.devices)
    if largest.execution.devices > len(devices):
        kind = "GPUs" if gpus else "parts of the CPU's cores"
        raise ConfigError(
            f"{largest.run_name} has execution.devices {largest.execution.devices}: the sweep may use {len(devices)} "
            f"{kind}, so lower it, or give more with --devices"
        )
    return devices


def visible_gpus() -> list[str]:
    """Numbers of the GPUs that this process may use."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


def _gpu_devices(gpus: list[str], chosen: str | None) -> list[Device]:
    numbers = gpus if chosen is None else list(dict.fromkeys(chosen.split(",")))
    if missing := [gpu for gpu in numbers if gpu not in gpus]:
        raise ConfigError(f"--devices names GPU {missing[0]!r}: there are {', '.join(gpus)}")
    return [Device(gpu=gpu) for gpu in numbers]


def _cpu_devices(wanted: int, chosen: str | None) -> list[Device]:
    cores = _usable_cores()
    parts = str(min(wanted, len(cores))) if chosen is None else chosen
    if not parts.isdigit() or not 1 <= int(parts) <= len(cores):
        raise ConfigError(
            f"--devices is {parts!r}: on a CPU it is the number of parts that its cores are divided into, "
            f"here 1 to {len(cores)}"
        )
    each = len(cores) // int(parts)
    return [Device(threads=each, cores=tuple(cores[i * each : (i + 1) * each])) for i in range(int(parts))]


def _usable_cores() -> list[int]:
    """Cores this process may run on, no more than a container's quota of processor time."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores[: max(1, int(quota) // int(period))]
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores
