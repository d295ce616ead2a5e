"""The devices that runs share: GPUs, or equal parts of a CPU's cores. A run takes what it needs and gives it back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set
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
    """Devices by their place, each with at most one run; a GPU on which runs keep failing gets none any more."""

    def __init__(self, devices: Sequence[Device]):
        self._all = list(devices)
        self._free = list(range(len(self._all)))
        self._last_failure: dict[int, str] = {}
        self._aside: set[int] = set()

    @property
    def left(self) -> int:
        """Number of devices that are not set aside."""
        return len(self._all) - len(self._aside)

    def free(self, count: int, avoid: Set[int] = frozenset(), kept: Set[int] = frozenset()) -> list[int]:
        """The first `count` free places for a run; fewer where it has to wait.

        Args:
            count: how many devices it needs.
            avoid: places that it gets only if all others together are too few.
            kept: places that somebody else waits for.
        """
        others = self.left - len(avoid - self._aside)
        free = [place for place in self._free if place not in kept]
        good = [place for place in free if place not in avoid][:count]
        return good + [place for place in free if place in avoid][: max(0, count - others)]

    def take(self, places: Sequence[int]) -> dict[int, Device]:
        """The devices at some free places, which are free no more."""
        self._free = [place for place in self._free if place not in places]
        return {place: self._all[place] for place in places}

    def give_back(self, taken: Iterable[int]) -> None:
        """Make what `take` gave free again, but for what is set aside."""
        self._free = sorted([*self._free, *(place for place in taken if place not in self._aside)])

    def failed(self, places: Iterable[int], run: str) -> dict[str, str]:
        """Note that a run failed at some places for no known reason.

        Returns:
            The GPUs that are set aside from now on, because another run failed there before and none succeeded since,
            and that other run. The parts of a CPU are one machine, and never are.
        """
        broken = {}
        for place in places:
            gpu, before = self._all[place].gpu, self._last_failure.setdefault(place, run)
            if gpu and before != run:
                self._aside.add(place)
                broken[gpu] = before
        return broken

    def succeeded(self, places: Iterable[int]) -> None:
        """Note that a run was trained to its end at some places."""
        for place in places:
            self._last_failure.pop(place, None)


def find_devices(runs: Sequence[RunConfig], chosen: str | None) -> list[Device]:
    """The devices of this machine that a sweep may use, too few perhaps (`what_is_missing`).

    Args:
        runs: all runs of the sweep, done or not: on a CPU they decide how many threads a process has, and with them
            how sums are rounded, so that must not change as runs finish.
        chosen: GPU numbers separated by commas, or on a CPU the number of parts; all that there is if None.

    Raises:
        ConfigError: `chosen` is not of that form.
    """
    accelerator = runs[0].execution.accelerator
    gpus = visible_gpus() if accelerator != "cpu" else []
    if accelerator == "cuda" and not gpus:
        return []
    return _gpu_devices(gpus, chosen) if gpus else _cpu_devices(sum(r.execution.devices for r in runs), chosen)


def what_is_missing(runs: Sequence[RunConfig], devices: Sequence[Device]) -> str:
    """Why a sweep cannot be trained on these devices, and what to do; nothing if it can."""
    if not devices:
        return "execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto"
    largest = max(runs, key=lambda run: run.execution.devices)
    if largest.execution.devices <= len(devices):
        return ""
    kind = "GPUs" if devices[0].gpu else "parts of the CPU's cores"
    return (
        f"{largest.run_name} has execution.devices {largest.execution.devices}: the sweep may use {len(devices)} "
        f"{kind}, so lower it, or train where there are more"
    )


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
