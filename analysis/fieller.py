"""Fieller's set for ln M: every value that a t test of "mean d = alpha ln M" does not reject.

It needs no linearisation in alpha, so it stays right where the exponent is weak; it is then unbounded, which is the
truth about such a table. t has n - 2 degrees of freedom, those of the exponent. E. C. Fieller, "Some problems in
interval estimation", J. R. Stat. Soc. B 16 (1954).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.paired import Array, Paired
from analysis.powerlaw import t_quantile


@dataclass(frozen=True)
class FiellerSets:
    """The sets of many tables: values x of ln M with a (x - shift)^2 - 2 b (x - shift) + c <= 0."""

    a: Array
    b: Array
    c: Array
    shift: Array
    """(...) mean ln(C_baseline / C_arm)."""

    @property
    def bounded(self) -> Array:
        """(...) whether the set is an interval: alpha differs from 0 at this confidence."""
        return np.asarray(self.a > 0)

    @property
    def ends(self) -> tuple[Array, Array]:
        """(...) both roots; the ends of the interval, or of the gap in an unbounded set (NaN if it has no gap)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            root = np.sqrt(self.b**2 - self.a * self.c)
            one, other = (self.b - root) / self.a, (self.b + root) / self.a
        return np.minimum(one, other) + self.shift, np.maximum(one, other) + self.shift

    def holds(self, ln_multiplier: float | Array) -> Array:
        """(...) whether a value of ln M is in the set."""
        x = ln_multiplier - self.shift
        return np.asarray(self.a * x * x - 2 * self.b * x + self.c <= 0)


def fieller_sets(p: Paired, t: float | None = None) -> FiellerSets:
    """The set of every table.

    Args:
        p: the paired estimates.
        t: half-width of the test in standard errors; that of 95 % confidence if left out.
    """
    t = t_quantile(p.sizes - 2) if t is None else t
    mean = p.difference.mean(-1)
    mean_variance = p.spread * p.alpha**2
    return FiellerSets(
        a=p.alpha**2 - t**2 * p.alpha_se**2,
        b=p.alpha * mean,
        c=mean**2 - t**2 * mean_variance,
        shift=p.ratio.mean(-1),
    )


@dataclass(frozen=True)
class Fieller:
    """The set of one table, in M."""

    bounded: bool
    ends: tuple[float, float] | None
    """Ends of the interval; if unbounded, of the gap that the set leaves out, and None where it leaves out nothing."""


def fieller(p: Paired) -> Fieller:
    """The 95 % set of one table."""
    sets = fieller_sets(p)
    low, high = (float(end) for end in sets.ends)
    known = math.isfinite(low) and math.isfinite(high)
    return Fieller(bool(sets.bounded), (_exp(low), _exp(high)) if known else None)


def _exp(x: float) -> float:
    """M of ln M; what no float can hold becomes the largest that it can."""
    return math.exp(max(min(x, 700.0), -700.0))
