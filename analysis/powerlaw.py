"""The power law L = A C^-alpha by least squares of ln L on ln C, with standard errors and t intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from analysis.errors import FitError

CONFIDENCE = 0.95
MIN_POINTS = 3


@dataclass(frozen=True)
class PowerLaw:
    """A fitted line ln L = centre_ln_loss - exponent (ln C - centre_ln_compute), in full precision.

    It is kept about its centre, where the two estimates are independent; `coefficient` gives A in any unit of C.
    """

    points: int
    exponent: float
    exponent_se: float
    centre_ln_compute: float
    centre_ln_loss: float
    residual_sd: float
    """Standard deviation of ln L about the line, on `df` degrees of freedom; weighted in a weighted fit."""
    ln_compute_range: tuple[float, float]
    """Smallest and largest ln C that was fitted: outside it the law is extrapolated."""

    @property
    def df(self) -> int:
        """Degrees of freedom: points less two."""
        return self.points - 2

    @property
    def exponent_interval(self) -> tuple[float, float]:
        """95 % t interval of the exponent."""
        half = t_quantile(self.df) * self.exponent_se
        return self.exponent - half, self.exponent + half

    @property
    def exponent_is_positive(self) -> bool:
        """Whether the whole 95 % interval of the exponent lies above 0: compute lowers loss beyond doubt."""
        return self.exponent_interval[0] > 0

    def loss(self, ln_compute: ArrayLike) -> np.ndarray:
        """Loss (nats per token) on the line at ln C."""
        return np.exp(self.centre_ln_loss - self.exponent * (np.asarray(ln_compute) - self.centre_ln_compute))

    def ln_compute(self, loss: float) -> float:
        """ln C at which the line reaches a loss."""
        return self.centre_ln_compute + (self.centre_ln_loss - math.log(loss)) / self.exponent

    def coefficient(self, unit: float = 1.0) -> float:
        """A: the loss on the line at C = one `unit` (in the ledger's own unit, FLOPs or seconds)."""
        return float(self.loss(math.log(unit)))

    def coefficient_interval(self, unit: float = 1.0) -> tuple[float, float]:
        """95 % t interval of A."""
        away = math.log(unit) - self.centre_ln_compute
        se = math.sqrt(self.residual_sd**2 / self.points + (away * self.exponent_se) ** 2)
        half = t_quantile(self.df) * se
        a = self.coefficient(unit)
        return a * math.exp(-half), a * math.exp(half)


def fit(ln_compute: ArrayLike, ln_loss: ArrayLike, sd: ArrayLike | None = None) -> PowerLaw:
    """Fit ln L = ln A - alpha ln C by least squares, ordinary or weighted.

    Args:
        ln_compute: (n,) natural logarithm of compute, in the ledger's own unit.
        ln_loss: (n,) natural logarithm of loss in nats per token.
        sd: (n,) standard deviations of ln_loss for a weighted fit: not variances, not weights. Only their ratios
            count; the size of the noise comes from the residuals.

    Raises:
        FitError: fewer than three points, no spread in compute, or a standard deviation that is not above 0.
    """
    x, y = np.asarray(ln_compute, dtype=float), np.asarray(ln_loss, dtype=float)
    n = len(x)
    if n < MIN_POINTS:
        raise FitError(f"a power law needs at least {MIN_POINTS} sizes and there are {n}: train more sizes")
    weights = np.ones(n) if sd is None else _weights(np.asarray(sd, dtype=float), n)
    x_mean, y_mean = np.average(x, weights=weights), np.average(y, weights=weights)
    dx, dy = x - x_mean, y - y_mean
    spread = float(weights * dx @ dx)
    if spread < 1e-12:
        raise FitError("every size has the same compute, so no exponent can be fitted: train sizes that differ")
    slope = float(weights * dx @ dy) / spread
    residuals = dy - slope * dx
    variance = float(weights * residuals @ residuals) / (n - 2)
    return PowerLaw(
        points=n,
        exponent=-slope,
        exponent_se=math.sqrt(variance / spread),
        centre_ln_compute=float(x_mean),
        centre_ln_loss=float(y_mean),
        residual_sd=math.sqrt(variance),
        ln_compute_range=(float(x.min()), float(x.max())),
    )


def _weights(sd: np.ndarray, n: int) -> np.ndarray:
    """Inverse variances with mean 1."""
    if sd.shape != (n,) or not (np.isfinite(sd) & (sd > 0)).all():
        raise FitError(f"a weighted fit needs a standard deviation above 0 for each of the {n} points")
    weights = 1 / sd**2
    return weights / weights.mean()


def t_quantile(df: float) -> float:
    """Half-width, in standard errors, of the two-sided 95 % interval of Student's t; `df` may be fractional."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))
