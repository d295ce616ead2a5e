"""What several seeds a size tell: how far two equal runs lie apart, and whether one multiplier fits every size.

Pairs of one seed share their data and their initial weights, so what their differences scatter by within a size is the
runs' own deviation. If the sizes' means scatter by more than that allows, M is not the same at every size (F test).
The primary interval needs neither: it takes its spread from the sizes, whatever they scatter by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from analysis.multiplier import Multiplier


@dataclass(frozen=True)
class SeedNoise:
    """The noise of runs from pairs of several seeds a size, in one ledger."""

    run_sd: float
    """Standard deviation of ln L of one run: that of a pair's gain within a size, over the square root of 2."""
    df: int
    """Degrees of freedom of `run_sd`: pairs less sizes."""
    lack_of_fit: float | None
    """F: the variance between sizes over that within, 1 if one M fits all sizes; None if seeds do not differ."""
    df_between: int
    p_value: float | None
    """Of the test that one M fits all sizes."""


def seed_noise(pairs: pd.DataFrame, m: Multiplier) -> SeedNoise | None:
    """The noise of one arm's pairs, or None where no size has two seeds.

    Args:
        pairs: all pairs of the table, one row a seed (`pairing.pair`).
        m: the arm's estimate; gains are alpha ln M, with its exponent.
    """
    if m.law is None:
        return None
    rows = pairs[pairs["arm"] == m.arm].dropna(subset=[f"{m.ledger}_baseline", f"{m.ledger}_arm"])
    ln_loss = np.log(rows["loss_baseline"]) - np.log(rows["loss_arm"])
    ln_compute = np.log(rows[f"{m.ledger}_baseline"]) - np.log(rows[f"{m.ledger}_arm"])
    gains = (ln_loss + m.law.exponent * ln_compute).groupby(rows["size"])
    counts, means = gains.count(), gains.mean()
    df = int(counts.sum() - len(counts))
    if df == 0:
        return None
    within = float(((gains.count() - 1) * gains.var().fillna(0.0)).sum()) / df
    middle = float((counts * means).sum() / counts.sum())
    between = float((counts * (means - middle) ** 2).sum()) / (len(counts) - 1)
    ratio = between / within if within > 0 else None
    p_value = None if ratio is None else float(fdtrc(len(counts) - 1, df, ratio))
    return SeedNoise(math.sqrt(within / 2), df, ratio, len(counts) - 1, p_value)
