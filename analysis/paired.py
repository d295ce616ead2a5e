"""The arithmetic of the paired multiplier on arrays, one table or many at once; `multiplier.py` says what it is.

Shapes: `(..., n)` are n sizes of any number of tables; what is estimated has the shape `(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """The paired estimate of every table. Logarithms are natural; alpha is not checked to be positive."""

    alpha: Array
    """(...) the exponent that the two arms share."""
    alpha_se: Array
    difference: Array
    """(..., n) d = ln L_baseline - ln L_arm."""
    ratio: Array
    """(..., n) ln(C_baseline / C_arm)."""
    ln_multipliers: Array
    """(..., n) ln M of each size."""
    spread: Array
    """(...) variance of the mean of ln M over sizes, alpha held fixed."""
    exponent: Array
    """(...) variance of ln M that the error of alpha adds."""
    residual_sum: Array
    """(...) sum of squares of the arms' mean ln L about the line."""
    compute_sum: Array
    """(...) sum of squares of the arms' mean ln C about its mean."""
    rounding: float
    """Variance of one loss's ln L that comes from rounding it."""

    @property
    def sizes(self) -> int:
        """Number of sizes, n."""
        return self.difference.shape[-1]

    @property
    def ln_multiplier(self) -> Array:
        """(...) the estimate: the mean over sizes of ln M."""
        return self.ln_multipliers.mean(-1)

    @property
    def variance(self) -> Array:
        """(...) of the estimate of ln M."""
        return self.spread + self.exponent

    @property
    def df(self) -> Array:
        """(...) Satterthwaite's degrees of freedom of the variance; NaN where the variance is 0."""
        n = self.sizes
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.variance**2 / (self.spread**2 / (n - 1) + self.exponent**2 / (n - 2)))


def paired(
    base_loss: ArrayLike, arm_loss: ArrayLike, base_compute: ArrayLike, arm_compute: ArrayLike, rounding: float = 0.0
) -> Paired:
    """Estimate every table.

    Args:
        base_loss: (..., n) ln L of the baseline.
        arm_loss: (..., n) ln L of the arm.
        base_compute: (..., n) or (n,) ln C of the baseline.
        arm_compute: the same of the arm.
        rounding: variance of one loss's ln L that comes from rounding it. The scatter of sizes holds it already; no
            scatter is taken to be smaller than rounding alone makes it.
    """
    lb, la, cb, ca = (np.asarray(x, dtype=float) for x in (base_loss, arm_loss, base_compute, arm_compute))
    n = lb.shape[-1]
    x, y = (cb + ca) / 2, (lb + la) / 2
    dx, dy = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    compute_sum = (dx * dx).sum(-1)
    alpha = -(dx * dy).sum(-1) / compute_sum
    residual_sum = ((dy + alpha[..., None] * dx) ** 2).sum(-1)
    alpha_variance = np.maximum(residual_sum / (n - 2), rounding / 2) / compute_sum
    d, ratio = lb - la, np.broadcast_to(cb - ca, lb.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ln_m = d / alpha[..., None] + ratio
        spread = np.maximum(ln_m.var(-1, ddof=1), 2 * rounding / alpha**2) / n
        exponent = (d.mean(-1) / alpha**2) ** 2 * alpha_variance
    return Paired(alpha, np.sqrt(alpha_variance), d, ratio, ln_m, spread, exponent, residual_sum, compute_sum, rounding)
