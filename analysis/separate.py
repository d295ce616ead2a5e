"""Each arm with an exponent of its own: M as a function of compute, and whether the exponents differ.

M at compute C of the arm is what the baseline's own line needs for the loss that the arm's own line has at C, over C.
Two errors of estimation are known for the two lines' residuals: those of one size move together (a size's deviation is
common to its arms), so that what depends on their difference is surer than two separate fits would say. `paired=False`
leaves that out, which is what two published curves with their errors give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from analysis.errors import FitError
from analysis.multiplier import columns
from analysis.paired import Array
from analysis.pairing import SizePair
from analysis.powerlaw import PowerLaw, fit, t_quantile
from analysis.student import detectable_errors


@dataclass(frozen=True)
class CurvePoint:
    """M at one compute of the arm."""

    ln_compute: float
    ln_multiplier: float
    ln_interval: tuple[float, float] | None
    """95 % interval; None where the baseline's exponent may be 0."""
    in_range: bool
    """Whether both lines are within their own runs there."""

    @property
    def multiplier(self) -> float:
        """M at this compute."""
        return math.exp(self.ln_multiplier)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of M at this compute, or None."""
        return self.ln_interval and (math.exp(self.ln_interval[0]), math.exp(self.ln_interval[1]))


@dataclass(frozen=True)
class ExponentDifference:
    """The arm's exponent less the baseline's, from the pairs."""

    difference: float
    interval: tuple[float, float]
    p_value: float
    """Of a two-sided t test that there is none."""
    detectable: float
    """Smallest true difference that such a test sees in 80 % of experiments like this one."""


@dataclass(frozen=True)
class SeparateSlopes:
    """The two lines of one arm, and how their errors hang together."""

    baseline: PowerLaw
    arm: PowerLaw
    covariance: Array
    """(2, 2) of the residuals in ln L, baseline first, on n - 2 degrees of freedom."""
    compute_sums: Array
    """(2, 2) sums of products of ln C about its mean."""

    def ln_multiplier(self, ln_compute: float) -> float:
        """ln M at ln C of the arm."""
        return ln_multiplier_between(self.baseline, self.arm, ln_compute)

    def at(self, ln_compute: float, paired: bool = True) -> CurvePoint:
        """M at ln C of the arm, with its interval by the delta method.

        Args:
            ln_compute: ln C of the arm, in the ledger's own unit.
            paired: whether the residuals of a size may move together (t on n - 2 degrees of freedom); if not, the
                lines are independent (2 n - 4).
        """
        value = self.ln_multiplier(ln_compute)
        needed = ln_compute + value
        inside = [
            low - 1e-9 <= x <= high + 1e-9
            for law, x in ((self.arm, ln_compute), (self.baseline, needed))
            for low, high in [law.ln_compute_range]
        ]
        half = self._half_width(ln_compute, paired) if self.baseline.exponent_is_positive else None
        interval = None if half is None else (value - half, value + half)
        return CurvePoint(ln_compute, value, interval, all(inside))

    def curve(self, points: int = 41) -> list[CurvePoint]:
        """M over the arm's compute and a third of its span in ln C beyond either end."""
        low, high = self.arm.ln_compute_range
        beyond = (high - low) / 3
        return [self.at(float(x)) for x in np.linspace(low - beyond, high + beyond, points)]

    def _half_width(self, ln_compute: float, paired: bool) -> float:
        n = self.baseline.points
        alpha = self.baseline.exponent
        away = ln_compute - self.arm.centre_ln_compute
        gap = self.baseline.centre_ln_loss - self.arm.centre_ln_loss + self.arm.exponent * away
        covariance = self.covariance if paired else np.diag(np.diag(self.covariance))
        spread = np.diag(self.compute_sums)
        centres = np.array([1, -1]) / alpha
        slopes = np.array([-gap / alpha**2, away / alpha])
        of_slopes = covariance * self.compute_sums / np.outer(spread, spread)
        variance = centres @ covariance @ centres / n + slopes @ of_slopes @ slopes
        return t_quantile(n - 2 if paired else 2 * n - 4) * math.sqrt(max(float(variance), 0.0))

    @property
    def exponent_difference(self) -> ExponentDifference:
        """Whether the arm's exponent is another than the baseline's."""
        df = self.baseline.df
        spread = np.diag(self.compute_sums)
        of_slopes = self.covariance * self.compute_sums / np.outer(spread, spread)
        se = math.sqrt(max(float(of_slopes[0, 0] + of_slopes[1, 1] - 2 * of_slopes[0, 1]), 0.0))
        value = self.arm.exponent - self.baseline.exponent
        half = t_quantile(df) * se
        p_value = 2 * float(stdtr(df, -abs(value) / se)) if se else float(value == 0)
        return ExponentDifference(value, (value - half, value + half), p_value, detectable_errors(df) * se)


def separate_slopes(pairs: tuple[SizePair, ...]) -> SeparateSlopes | None:
    """Fit each arm by itself; None where either cannot be fitted, or the baseline's loss does not fall."""
    if not pairs:
        return None
    base_loss, arm_loss, base_compute, arm_compute = columns(pairs)
    try:
        laws = fit(base_compute, base_loss), fit(arm_compute, arm_loss)
    except FitError:
        return None
    if laws[0].exponent <= 0:
        return None
    residuals = np.array([base_loss, arm_loss]) - np.log([laws[0].loss(base_compute), laws[1].loss(arm_compute)])
    compute = np.array([base_compute, arm_compute])
    centred = compute - compute.mean(1, keepdims=True)
    return SeparateSlopes(*laws, residuals @ residuals.T / laws[0].df, centred @ centred.T)


def ln_multiplier_between(baseline: PowerLaw, arm: PowerLaw, ln_compute: float) -> float:
    """ln M between two given laws at ln C of the arm; of published coefficients too."""
    ln_loss = arm.centre_ln_loss - arm.exponent * (ln_compute - arm.centre_ln_compute)
    return baseline.centre_ln_compute + (baseline.centre_ln_loss - ln_loss) / baseline.exponent - ln_compute
