"""Tables of losses with a known multiplier, many at once: what `calibrate` tests the intervals on.

A size's deviation (shape, learning rate, depth: what moves every arm at that size) is common to the arms and seeds of a
size; a run's deviation is its own. Both are normal in ln L. With a floor E the law is L = E + A (M C)^-a, where a is
such that the loss still falls by `alpha` per unit of ln C in the middle of the range: what a floor then adds is
curvature, not a flatter table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.paired import Array

MIDDLE_LOSS = 1.81
"""Loss of the baseline in the middle of the range (nats per token), as in the paper's table."""


@dataclass(frozen=True)
class Setting:
    """One kind of experiment. Standard deviations are in ln L."""

    sizes: int
    size_sd: float
    run_sd: float
    multiplier: float
    seeds: int = 1
    floor: float = 0.0
    """E (nats per token)."""
    dearer: float = 1.0
    """Compute of the arms over the baseline's."""
    arms: int = 1
    """Arms compared with the one baseline, all with the same true multiplier."""
    last_arm_noise: float = 1.0
    """Standard deviation of the last arm's runs over that of the others'."""
    alpha: float = 0.057
    """-d ln L / d ln C in the middle of the range."""
    span: float = 2.1
    """ln of the largest compute over the smallest."""


@dataclass(frozen=True)
class Tables:
    """Simulated tables, averaged over seeds. `base_loss` is (tables, n), `arm_loss` (arms, tables, n), compute (n,)."""

    base_loss: Array
    arm_loss: Array
    base_compute: Array
    arm_compute: Array


def simulate(setting: Setting, tables: int, generator: np.random.Generator) -> Tables:
    """Draw tables."""
    s = setting
    base_compute = np.linspace(-s.span / 2, s.span / 2, s.sizes)
    arm_compute = base_compute + math.log(s.dearer)
    size = generator.normal(0, s.size_sd, (tables, s.sizes))
    run_sd = s.run_sd / math.sqrt(s.seeds)
    base = _ln_loss(s, base_compute) + size + generator.normal(0, run_sd, (tables, s.sizes))
    true_arm = _ln_loss(s, arm_compute + math.log(s.multiplier))
    noise = generator.normal(0, run_sd, (s.arms, tables, s.sizes))
    noise[-1] *= s.last_arm_noise
    arms = true_arm + size + noise
    return Tables(base, arms, base_compute, arm_compute)


def _ln_loss(s: Setting, ln_compute: Array) -> Array:
    """ln L of the baseline at ln C."""
    above = MIDDLE_LOSS - s.floor
    exponent = s.alpha * MIDDLE_LOSS / above
    return np.log(s.floor + above * np.exp(-exponent * ln_compute))
