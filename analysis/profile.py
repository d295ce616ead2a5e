"""The profile likelihood of ln M, a second way to its interval that linearises nothing.

The model is the paired one: the arms' mean ln L lies about a line in ln C, and d = ln L_baseline - ln L_arm about
alpha (ln M - ln(C_baseline / C_arm)), each with a normal deviation of its own. Minus twice the log likelihood is

    n ln(sum of squares about the line) + n ln(sum of squares of d)

least over alpha at each ln M. An interval holds the values at which it exceeds its minimum by at most
n ln(1 + t^2 / (n - 1)): with alpha known this is exactly the t interval of the mean of d, where the usual cut of
chi-squared is too short for a handful of sizes.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.paired import Array, Paired
from analysis.powerlaw import t_quantile

_STEPS = 60
_FARTHEST = 10.0
"""ln M beyond which an interval counts as unbounded."""


def profile_cut(sizes: int) -> float:
    """How far minus twice the log likelihood may exceed its minimum, for 95 % confidence."""
    return sizes * math.log1p(t_quantile(sizes - 1) ** 2 / (sizes - 1))


def profile_excess(p: Paired, ln_multiplier: float | Array) -> Array:
    """(...) minus twice the log likelihood at ln M, less its minimum over ln M. The table must have scatter."""
    return _at(p, ln_multiplier) - _lowest(p)


def profile_ends(p: Paired) -> tuple[Array, Array]:
    """(...) ends of the 95 % interval of ln M; infinite where the likelihood never falls far enough."""
    return _end(p, -1), _end(p, 1)


def profile_interval(p: Paired) -> tuple[float, float] | None:
    """The 95 % interval of M of one table, or None where it is unbounded or the table has no scatter."""
    if p.residual_sum <= 0 or p.ln_multipliers.var() <= 0:
        return None
    low, high = (float(end) for end in profile_ends(p))
    return (math.exp(low), math.exp(high)) if math.isfinite(low) and math.isfinite(high) else None


def _at(p: Paired, ln_multiplier: float | Array) -> Array:
    """(...) minus twice the log likelihood at ln M."""
    return _least(p, p.difference, np.asarray(ln_multiplier)[..., None] - p.ratio)


def _lowest(p: Paired) -> Array:
    """(...) its minimum over ln M, which then takes up the mean of d."""
    centred = p.ratio - p.ratio.mean(-1, keepdims=True)
    return _least(p, p.difference - p.difference.mean(-1, keepdims=True), -centred)


def _least(p: Paired, difference: Array, slope: Array) -> Array:
    """(...) minus twice the log likelihood, least over alpha, with alpha `slope` as the expectation of `difference`.

    Each of the two sums of squares is s + w (alpha - c)^2. The step to the mean of the two c, weighted by w over the
    sum of squares, never climbs; it is made from both c, because there can be a valley at each.
    """
    weight = (slope * slope).sum(-1)
    centre = np.divide((difference * slope).sum(-1), weight, out=np.array(p.alpha + 0 * weight), where=weight > 0)
    rest = ((difference - centre[..., None] * slope) ** 2).sum(-1)

    def sums(alpha: Array) -> tuple[Array, Array]:
        return (
            p.residual_sum + p.compute_sum * (alpha - p.alpha) ** 2,
            rest + weight * (alpha - centre) ** 2,
        )

    def descend(alpha: Array) -> Array:
        for _ in range(_STEPS):
            line, pairs = sums(alpha)
            one, other = p.compute_sum / line, weight / pairs
            before, alpha = alpha, (one * p.alpha + other * centre) / (one + other)
            if np.all(np.abs(alpha - before) <= 1e-12 * np.abs(p.alpha)):
                break
        line, pairs = sums(alpha)
        return np.asarray(p.sizes * (np.log(line) + np.log(pairs)))

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.fmin(descend(p.alpha + 0 * centre), descend(centre))


def _end(p: Paired, side: int) -> Array:
    """(...) one end of the interval, by doubling the distance from the estimate and then halving the gap."""
    allowed = _lowest(p) + profile_cut(p.sizes)
    estimate = p.ln_multiplier
    inside, outside = np.zeros_like(estimate), np.sqrt(p.variance) + 1e-12
    for _ in range(60):
        beyond = _at(p, estimate + side * outside) > allowed
        if np.all(beyond | (outside > _FARTHEST)):
            break
        inside = np.where(beyond, inside, outside)
        outside = np.where(beyond, outside, 2 * outside)
    for _ in range(42):
        middle = (inside + outside) / 2
        beyond = _at(p, estimate + side * middle) > allowed
        inside, outside = np.where(beyond, inside, middle), np.where(beyond, middle, outside)
    return np.asarray(np.where(outside > _FARTHEST, side * np.inf, estimate + side * outside))
