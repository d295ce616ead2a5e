"""How long runs will take: as runs of the same folder did, else by the devices' peak, given or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.compute import flops_per_token
from scaling.config import RunConfig
from scaling.errors import RecordError
from scaling.records import RunDirectory
from scaling.sweep.devices import Device, visible_gpus
from scaling.sweep.speed import gpu_facts, matrix_product_rate

ASSUMED_UTILISATION = 0.4


@dataclass(frozen=True)
class Rate:
    """FLOP/s of the `model` ledger that one device of a run reaches, and where the number comes from."""

    flops: float
    description: str


def device_seconds(config: RunConfig, rate: Rate) -> float:
    """Device seconds of a whole run."""
    return flops_per_token(config.shape, "model") * config.tokens / rate.flops


def wall_seconds(config: RunConfig, rate: Rate) -> float:
    """Seconds that a whole run takes on its devices."""
    return device_seconds(config, rate) / config.execution.devices


def rate_of_peak(peak_tflops: float, utilisation: float = ASSUMED_UTILISATION) -> Rate:
    """The rate of a device that reaches a share of its peak in the `model` ledger."""
    return Rate(utilisation * peak_tflops * 1e12, f"{utilisation:.3g} of a peak of {peak_tflops:g} TFLOP/s a device")


def device_memory(accelerator: str) -> float | None:
    """Bytes of the smallest GPU of this machine; None without one, or where runs go to the CPU."""
    gpus = visible_gpus() if accelerator != "cpu" else []
    facts = gpu_facts(",".join(gpus)) if gpus else None
    return facts.memory if facts else None


def known_rate(
    runs: Sequence[RunConfig], directories: Sequence[RunDirectory], devices: Sequence[Device]
) -> Rate | None:
    """What one device reaches: measured where a run of the folder has rows, else by its peak, given or found out.

    Args:
        runs: configurations, in the order of `directories`.
        directories: their run directories.
        devices: those of this machine that train the runs, if it is this machine that does.

    Returns:
        The rate; None where nothing tells it.
    """
    return _measured(runs, directories) or _given(runs[0]) or _found_out(devices)


def _measured(runs: Sequence[RunConfig], directories: Sequence[RunDirectory]) -> Rate | None:
    flops = seconds = 0.0
    for config, run in zip(runs, directories, strict=True):
        try:
            metrics = run.read_metrics(config.train.batch_tokens)
        except RecordError:  # status says so; its speed is not known
            continue
        if metrics.rows:
            flops += flops_per_token(config.shape, "model") * metrics.rows[-1]["tokens"]
            seconds += metrics.device_seconds
    return Rate(flops / seconds, f"{flops / seconds:.3g} FLOP/s, measured over the runs so far") if seconds else None


def _given(run: RunConfig) -> Rate | None:
    peak = run.execution.peak_tflops
    return None if peak is None else rate_of_peak(peak)


def _found_out(devices: Sequence[Device]) -> Rate | None:
    if not devices:
        return None
    if devices[0].gpu:
        facts = gpu_facts(",".join(device.gpu for device in devices))
        if facts is None:
            return None
        peak, sharing = facts.flops, 1
    else:
        peak, sharing = matrix_product_rate("cpu"), len(devices)
    return Rate(
        ASSUMED_UTILISATION * peak / sharing,
        f"{ASSUMED_UTILISATION:.0%} of this machine's {peak:.3g} FLOP/s in matrix products"
        + (f", divided by {sharing} runs at a time" if sharing > 1 else ""),
    )
