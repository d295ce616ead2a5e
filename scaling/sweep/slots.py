"""What runs beside what: GPUs, or a CPU's cores divided, one part for each run at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from scaling.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """Where one run goes."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


def find_slots(accelerator: str, devices_per_run: int, n_runs: int, devices: str | None) -> list[Slot]:
    """The slots of this machine.

    Args:
        accelerator: `auto`, `cpu` or `cuda`.
        devices_per_run: GPUs of one run, or on a CPU its processes.
        n_runs: runs of the whole sweep, done or not: on a CPU it decides how many cores each gets, and with them how
            sums are rounded, so it must not change as runs finish.
        devices: GPU numbers separated by commas, or on a CPU the number of runs at a time; all there is if None.

    Raises:
        ConfigError: `devices` is not of that form, or there are too few.
    """
    gpus = _gpus() if accelerator != "cpu" else []
    if accelerator == "cuda" and not gpus:
        raise ConfigError("execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto")
    if not gpus:
        return _cpu_slots(n_runs, devices_per_run, devices)
    chosen = gpus if devices is None else list(dict.fromkeys(devices.split(",")))
    if missing := [gpu for gpu in chosen if gpu not in gpus]:
        raise ConfigError(f"--devices names GPU {missing[0]!r}: there are {', '.join(gpus)}")
    if len(chosen) < devices_per_run:
        raise ConfigError(f"execution.devices is {devices_per_run}: the sweep may use {len(chosen)} GPUs")
    groups = [chosen[i : i + devices_per_run] for i in range(0, len(chosen) - devices_per_run + 1, devices_per_run)]
    return [Slot("gpu " + ",".join(group), {"CUDA_VISIBLE_DEVICES": ",".join(group)}) for group in groups]


def _gpus() -> list[str]:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


def _cpu_slots(n_runs: int, devices_per_run: int, devices: str | None) -> list[Slot]:
    cores = _usable_cores()
    most = max(1, len(cores) // devices_per_run)
    wanted = str(min(n_runs, most)) if devices is None else devices
    if not wanted.isdigit() or not 1 <= int(wanted) <= most:
        raise ConfigError(f"--devices is {wanted!r}: on a CPU it is how many runs go at a time, here 1 to {most}")
    each = len(cores) // int(wanted)
    threads = str(max(1, each // devices_per_run))
    parts = [tuple(cores[i * each : (i + 1) * each]) for i in range(int(wanted))]
    return [
        Slot(f"cpu {i}", {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}, part) for i, part in enumerate(parts)
    ]


def _usable_cores() -> list[int]:
    """Cores this process may run on, no more than a container's quota of processor time."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores[: max(1, int(quota) // int(period))]
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores
