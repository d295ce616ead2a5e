"""Several arms against one baseline: intervals that are all right at once with 95 % confidence, after Dunnett.

With k arms each interval alone may miss in 5 % of experiments, so one of five misses far more often. Dunnett's widens
them by what the arms have in common: every difference holds the same baseline run, which gives two arms of equal noise
a correlation of 1/2, and the error of the exponent adds to it where the arms' gains have one sign; more correlation
needs less widening, so 1/2 is the safe value. The run's variance is pooled over all arms, from what sizes and arms do
not explain of ln L: k (n - 1) degrees of freedom, so that these intervals can even be narrower than each arm's own.
The price is to take a run's noise to be equal in all arms (with one arm of five twice as noisy, coverage falls to 93.4
to 95.4 %). Each arm's own variance with Dunnett's quantile would hold in as few as 89 % of tables of three sizes, since
the quantile takes the variance to be common.
Holm's procedure would say which arms differ from 1, but gives no interval for each, and M is what is asked.
C. W. Dunnett, "A multiple comparison procedure for comparing several treatments with a control", JASA 50 (1955).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

from analysis.multiplier import Multiplier
from analysis.paired import Array, Paired
from analysis.powerlaw import CONFIDENCE, MIN_POINTS, t_quantile
from analysis.student import chi_nodes

CORRELATION = 0.5
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(96)


@dataclass(frozen=True)
class Simultaneous:
    """One arm's interval of M among k simultaneous ones."""

    arms: int
    df: float
    quantile: float
    interval: tuple[float, float]


@cache
def dunnett_quantile(arms: int, df: float, correlation: float = CORRELATION) -> float:
    """Half-width in standard errors of simultaneous two-sided 95 % intervals: a quantile of max |T_j|.

    T_1 .. T_k are k equicorrelated normal variables over one common sqrt(chi-squared / df).

    Args:
        arms: k.
        df: degrees of freedom, possibly fractional.
        correlation: between any two arms.
    """
    alone = t_quantile(df)
    if arms == 1:
        return alone
    bonferroni = float(stdtrit(df, 1 - (1 - CONFIDENCE) / 2 / arms))
    sd, sd_weight = chi_nodes(df)
    shared, own = math.sqrt(correlation) * _NODES, math.sqrt(1 - correlation)

    def inside(c: float) -> float:
        reach = c * sd[:, None]
        each = ndtr((reach - shared) / own) - ndtr((-reach - shared) / own)
        return float(sd_weight @ each**arms @ _WEIGHTS) / math.sqrt(2 * math.pi)

    return float(brentq(lambda c: inside(c) - CONFIDENCE, alone * 0.99, bonferroni * 1.01))


def pooled_variance(worth: Array) -> Array:
    """(...) variance of ln L of one run (of a size's mean over its seeds), pooled over arms.

    Args:
        worth: (k, ..., n) alpha ln M: every arm's gain in ln L at every size.
    """
    cells = np.concatenate([np.zeros_like(worth[:1]), worth])
    arm_means, size_means = cells.mean(-1, keepdims=True), cells.mean(0, keepdims=True)
    rest = cells - arm_means - size_means + arm_means.mean(0, keepdims=True)
    return np.asarray((rest**2).sum((0, -1)) / (len(worth) * (worth.shape[-1] - 1)))


def pooled_errors(p: Paired, run_variance: Array, pooled_df: float) -> tuple[Array, Array]:
    """(...) variance of ln M with its spread from a pooled variance, and Satterthwaite's degrees of freedom."""
    spread = 2 * np.maximum(run_variance, p.rounding) / p.sizes / p.alpha**2
    variance = spread + p.exponent
    with np.errstate(invalid="ignore", divide="ignore"):
        return variance, np.asarray(variance**2 / (spread**2 / pooled_df + p.exponent**2 / (p.sizes - 2)))


def simultaneous(multipliers: Sequence[Multiplier]) -> dict[str, Simultaneous]:
    """The simultaneous intervals of a table's arms in one ledger: of those that have an interval, if two or more do.

    The pooled variance is of the sizes that all of these arms have; with fewer than three there are no intervals.
    """
    numbers = {m.arm: m.numbers for m in multipliers if m.interval is not None and m.numbers is not None}
    worth = {
        m.arm: {s.pair.size: s.ln_multiplier * float(numbers[m.arm].alpha) for s in m.sizes}
        for m in multipliers
        if m.arm in numbers
    }
    common = set.intersection(*map(set, worth.values())) if worth else set()
    if len(worth) < 2 or len(common) < MIN_POINTS:
        return {}
    run_variance = pooled_variance(np.array([[gain[size] for size in sorted(common)] for gain in worth.values()]))
    found = {}
    for arm, p in numbers.items():
        variance, df = (float(x) for x in pooled_errors(p, run_variance, len(worth) * (len(common) - 1)))
        if variance == 0:
            continue
        quantile = dunnett_quantile(len(worth), df)
        middle, half = float(p.ln_multiplier), quantile * math.sqrt(variance)
        found[arm] = Simultaneous(len(worth), df, quantile, (math.exp(middle - half), math.exp(middle + half)))
    return found
