"""Whether the kernels that runs need are there, asked once for a whole sweep, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from scaling.config import RunConfig
from scaling.sweep.devices import Device


def check_kernels(runs: Sequence[RunConfig], devices: Sequence[Device]) -> None:
    """Refuse Kimi Linear on devices that its kernels are missing for, or not for.

    In a process that ends, because the kernels open CUDA when they are imported.

    Raises:
        TrainingError: see `model.kimi.check_kernels`.
    """
    if any(run.model.kimi for run in runs):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            process.submit(_check, bool(devices[0].gpu)).result()


def _check(on_gpu: bool) -> None:
    from scaling.model.kimi import check_kernels

    check_kernels(on_gpu)
