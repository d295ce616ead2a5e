"""What runs of a sweep take of a device's memory, and the largest micro-batch that fits; equal work is counted once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scaling.config import RunConfig, digest
from scaling.memory import training_memory

USABLE = 0.9
"""Share of a device's memory that a step may take: driver, workspaces of libraries and gaps take the rest."""


@dataclass(frozen=True)
class Footprint:
    """Memory of one run on one device, either with or without activation checkpointing."""

    checkpointed: bool
    parts: dict[str, int]
    """Bytes at the peak by part."""
    largest_micro_batch: int | None
    """Sequences, a divisor of the device's share of the batch; 0 if none fits, None if the memory is not known."""

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())


def footprints(
    runs: Sequence[RunConfig], device_memory: float | None, counted: Callable[[], None]
) -> list[tuple[Footprint, Footprint]]:
    """Of each run without and with activation checkpointing.

    Args:
        runs: the runs.
        device_memory: bytes of one device; None if not known.
        counted: called after every one of the two for every run.
    """
    parts: dict[str, dict[str, int]] = {}

    def count(run: RunConfig) -> dict[str, int]:
        same = {"seed": 0, "micro_batch": run.micro_batch, "devices": run.execution.devices}
        how = {"strategy": run.execution.strategy, "checkpointed": run.execution.checkpoint_activations}
        key = digest(run.identity() | same | how)
        if key not in parts:
            parts[key] = training_memory(run)
        return parts[key]

    def of(run: RunConfig, checkpointed: bool) -> Footprint:
        def with_micro_batch(sequences: int | None) -> RunConfig:
            execution = replace(run.execution, checkpoint_activations=checkpointed, micro_batch=sequences)
            return replace(run, execution=execution)

        largest = None
        if device_memory is not None:
            share = run.batch_sequences // run.execution.devices
            choices = [n for n in range(1, share + 1) if share % n == 0]
            largest = _largest(choices, USABLE * device_memory, lambda n: sum(count(with_micro_batch(n)).values()))
        result = Footprint(checkpointed, count(with_micro_batch(run.execution.micro_batch)), largest)
        counted()
        return result

    return [(of(run, False), of(run, True)) for run in runs]


def _largest(choices: Sequence[int], limit: float, size: Callable[[int], int]) -> int:
    """The largest of the rising choices whose size is within the limit; 0 if none is.

    Sizes rise too, but for the last one's: a step of one micro-batch has no older gradients while it goes forward. They
    do not rise in a straight line (another moment becomes the peak, logits come in more chunks), so none is guessed.
    """
    *others, whole = choices
    if size(whole) <= limit:
        return whole
    fitting = bisect_right(others, limit, key=size)
    return others[fitting - 1] if fitting else 0
