"""What the multiplier would be under other choices: a floor under the loss, one size fewer, no law at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.multiplier import Multiplier, columns, estimate
from analysis.pairing import SizePair
from analysis.powerlaw import MIN_POINTS

HIGHEST_FLOOR = 0.9
"""Highest pinned floor as a share of the lowest loss."""
_FLOORS = 10


@dataclass(frozen=True)
class Floored:
    """The paired estimate with ln(L - E) in place of ln L."""

    floor: float
    """E, pinned (nats per token)."""
    estimate: Multiplier


@dataclass(frozen=True)
class LeftOut:
    """The paired estimate without one size."""

    size: str
    estimate: Multiplier


@dataclass(frozen=True)
class LawFree:
    """M at one size from the baseline's own points, without a law; None: its runs did not reach the loss."""

    size: str
    ln_multiplier: float | None

    @property
    def multiplier(self) -> float | None:
        """M at this size, or None."""
        return None if self.ln_multiplier is None else math.exp(self.ln_multiplier)


def floors(m: Multiplier) -> tuple[Floored, ...]:
    """The estimate for a sweep of pinned floors, from 0 up to nine tenths of the lowest loss, in round steps.

    The floor is not fitted: a handful of sizes cannot tell it from the exponent. With seeds, E is taken off the
    geometric mean of their losses.
    """
    if m.numbers is None:
        return ()
    lowest = min(min(pair.loss_baseline, pair.loss_arm) for pair in m.pairs)
    step = _round_step(HIGHEST_FLOOR * lowest / _FLOORS)
    values = [round(i * step, 12) for i in range(_FLOORS + 1) if i * step <= HIGHEST_FLOOR * lowest]
    return tuple(Floored(floor, pinned(m, floor)) for floor in values)


def pinned(m: Multiplier, floor: float) -> Multiplier:
    """The estimate with ln(L - E) in place of ln L; every loss must exceed E (nats per token)."""
    pairs = tuple(
        replace(
            pair,
            ln_loss_baseline=math.log(pair.loss_baseline - floor),
            ln_loss_arm=math.log(pair.loss_arm - floor),
        )
        for pair in m.pairs
    )
    return estimate(m.arm, m.ledger, pairs, m.loss_step)


def leave_one_out(m: Multiplier) -> tuple[LeftOut, ...]:
    """The estimate without each size in turn; nothing where too few would be left."""
    if len(m.pairs) <= MIN_POINTS:
        return ()
    return tuple(
        LeftOut(pair.size, estimate(m.arm, m.ledger, (*m.pairs[:i], *m.pairs[i + 1 :]), m.loss_step))
        for i, pair in enumerate(m.pairs)
    )


def law_free(pairs: tuple[SizePair, ...]) -> tuple[LawFree, ...]:
    """M of each size by linear interpolation of the baseline's ln L over ln C.

    Where its points do not fall all the way, the first crossing counts. No interval: what lies between two runs is not
    seen, and their noise goes straight into M.
    """
    if not pairs:
        return ()
    base_loss, arm_loss, base_compute, arm_compute = columns(pairs)
    reached = (_first_crossing(base_compute, base_loss, loss) for loss in arm_loss)
    return tuple(
        LawFree(pair.size, None if needed is None else needed - float(own))
        for pair, needed, own in zip(pairs, reached, arm_compute, strict=True)
    )


def _first_crossing(ln_compute: np.ndarray, ln_loss: np.ndarray, target: float) -> float | None:
    """ln C at which the broken line through the points first has the loss `target`; None if it nowhere does."""
    for i in range(len(ln_loss)):
        if ln_loss[i] == target:
            return float(ln_compute[i])
        if i + 1 < len(ln_loss) and (ln_loss[i] - target) * (ln_loss[i + 1] - target) < 0:
            share = (ln_loss[i] - target) / (ln_loss[i] - ln_loss[i + 1])
            return float(ln_compute[i] + share * (ln_compute[i + 1] - ln_compute[i]))
    return None


def _round_step(at_least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below a number."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(round(step * power, 12) for step in (1, 2, 2.5, 5, 10) if step * power >= at_least * (1 - 1e-9))
