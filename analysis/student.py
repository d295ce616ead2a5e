"""Student's t beyond its quantiles: its denominator by quadrature, and the power of a two-sided test at 5 %."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr

from analysis.paired import Array
from analysis.powerlaw import t_quantile

POWER = 0.8
"""Share of experiments in which an effect "that could have been seen" is seen."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def chi_nodes(df: float) -> tuple[Array, Array]:
    """Values of sqrt(chi-squared / df) and their weights, which add up to 1: Gauss and Legendre's, over quantiles."""
    return np.sqrt(chdtri(df, (1 - _NODES) / 2) / df), _WEIGHTS / 2


def power_of_t(df: float, effect: float) -> float:
    """Share of experiments in which |t| exceeds its critical value, for a true effect in standard errors."""
    sd, weight = chi_nodes(df)
    critical = t_quantile(df) * sd
    return float(weight @ (ndtr(effect - critical) + ndtr(-effect - critical)))


@cache
def detectable_errors(df: float) -> float:
    """True effect, in standard errors, that the test sees with a power of 80 %."""
    return float(brentq(lambda effect: power_of_t(df, effect) - POWER, 0.0, 4 * t_quantile(df) + 4))
