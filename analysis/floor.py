"""The power law with a floor, L = E + A C^-alpha: E pinned to a value, or free.

Both minimise the squares of the residuals of ln L, as the law without a floor does (`powerlaw`), so that pinning E to 0
gives that law. A free floor is exploratory: a handful of sizes that span a factor of ten in compute hardly tell a floor
from a smaller exponent. Its interval is the set of floors at which the residual sum of squares is at most
1 + t^2 / (n - 3) times the least (the profile likelihood with the small-sample cut), and it may reach 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize_scalar

from analysis.errors import FitError
from analysis.powerlaw import MIN_POINTS, fit, t_quantile

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Pinned floors of the sweep, as shares of the lowest loss of the table."""
_HIGHEST = 0.999
"""Largest floor that is tried, as a share of the lowest loss."""


@dataclass(frozen=True)
class FloorLaw:
    """L = floor + exp(centre_ln_excess - exponent (ln C - centre_ln_compute)), the floor held fixed."""

    floor: float
    """E, nats per token."""
    points: int
    exponent: float
    exponent_se: float
    """With the floor taken as known."""
    centre_ln_compute: float
    centre_ln_excess: float
    squares: float
    """Sum of the squared residuals of ln L."""

    @property
    def exponent_interval(self) -> tuple[float, float]:
        """95 % t interval of the exponent, with the floor taken as known."""
        half = t_quantile(self.points - 2) * self.exponent_se
        return self.exponent - half, self.exponent + half

    @property
    def residual_sd(self) -> float:
        """Standard deviation of ln L about the law, on points less two degrees of freedom."""
        return math.sqrt(self.squares / (self.points - 2))

    def coefficient(self, unit: float = 1.0) -> float:
        """A: the loss above the floor at C = one `unit` (in the ledger's own unit, FLOPs or seconds)."""
        return math.exp(self.centre_ln_excess - self.exponent * (math.log(unit) - self.centre_ln_compute))

    def loss(self, ln_compute: ArrayLike) -> np.ndarray:
        """Loss (nats per token) at ln C."""
        away = np.asarray(ln_compute, dtype=float) - self.centre_ln_compute
        return self.floor + np.exp(self.centre_ln_excess - self.exponent * away)


@dataclass(frozen=True)
class FreeFloor:
    """The law with its best floor, exploratory, and how far the floor can be moved."""

    law: FloorLaw
    interval: tuple[float, float]
    """95 % interval of E; 0 where no floor at all is within it."""
    exponents: tuple[float, float]
    """The exponents at the two ends of the interval."""


def pinned(ln_compute: ArrayLike, ln_loss: ArrayLike, floor: float) -> FloorLaw:
    """Fit A and alpha with the floor held fixed, by Gauss and Newton's method from the straight line of ln(L - E).

    Args:
        ln_compute: (n,) natural logarithm of compute, in the ledger's own unit.
        ln_loss: (n,) natural logarithm of loss in nats per token.
        floor: E in nats per token, from 0 to below the lowest loss.

    Raises:
        FitError: too few points, no spread in compute, or a floor that is not below every loss.
    """
    x, y = np.asarray(ln_compute, dtype=float), np.asarray(ln_loss, dtype=float)
    if not 0 <= floor < math.exp(y.min(initial=math.inf)):
        raise FitError(f"a floor of {floor:g} is not from 0 to below the lowest loss: pin it lower")
    line = fit(x, np.log(np.exp(y) - floor))
    centre = line.centre_ln_compute
    dx = x - centre
    level, slope = line.centre_ln_loss, -line.exponent
    squares = _squares(floor, level + slope * dx, y)
    for _ in range(100):
        excess = np.exp(level + slope * dx)
        share = excess / (floor + excess)
        design = np.stack([share, share * dx], axis=1)
        step = np.linalg.lstsq(design, y - np.log(floor + excess), rcond=None)[0]
        while (new := _squares(floor, level + step[0] + (slope + step[1]) * dx, y)) > squares and np.any(step):
            step = step / 2 if np.abs(step).max() > 1e-15 else 0 * step
        level, slope, squares = level + step[0], slope + step[1], min(new, squares)
        if np.abs(step).max() < 1e-13:
            break
    share = np.exp(level + slope * dx) / (floor + np.exp(level + slope * dx))
    normal = np.array([[share @ share, share @ (share * dx)], [share @ (share * dx), (share * dx) @ (share * dx)]])
    variance = squares / (len(x) - 2) * normal[0, 0] / np.linalg.det(normal)
    return FloorLaw(floor, len(x), -float(slope), math.sqrt(variance), centre, float(level), float(squares))


def free(ln_compute: ArrayLike, ln_loss: ArrayLike) -> FreeFloor:
    """Fit A, alpha and the floor: the profile over the floor, from 0 to just below the lowest loss.

    Raises:
        FitError: fewer than four points, no spread in compute, or a loss that does not fall with compute.
    """
    x, y = np.asarray(ln_compute, dtype=float), np.asarray(ln_loss, dtype=float)
    n = len(x)
    if n < MIN_POINTS + 1:
        raise FitError(f"a free floor needs at least {MIN_POINTS + 1} sizes and there are {n}: train more sizes")
    if fit(x, y).exponent <= 0:
        raise FitError("loss does not fall with compute, so there is no floor that it falls to")
    highest = _HIGHEST * math.exp(y.min())

    def squares(floor: float) -> float:
        return pinned(x, y, floor).squares

    grid = highest * (1 - np.geomspace(1, 1e-3, 60))
    profile = np.array([squares(floor) for floor in grid])
    best = int(profile.argmin())
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(squares, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    floor = float(found.x) if found.fun < profile[best] else float(grid[best])
    law = pinned(x, y, floor)
    cut = law.squares * (1 + t_quantile(n - 3) ** 2 / (n - 3))
    ends = (
        _crossing(squares, cut, [*grid[: best + 1][::-1]], floor),
        _crossing(squares, cut, [*grid[best:], highest], floor),
    )
    return FreeFloor(law, ends, (pinned(x, y, ends[0]).exponent, pinned(x, y, ends[1]).exponent))


def sweep(ln_compute: ArrayLike, ln_loss: ArrayLike, floors: Sequence[float]) -> list[FloorLaw]:
    """The law at every pinned floor that lies below all losses."""
    lowest = math.exp(float(np.min(np.asarray(ln_loss))))
    return [pinned(ln_compute, ln_loss, floor) for floor in floors if floor < _HIGHEST * lowest]


def _squares(floor: float, ln_excess: np.ndarray, ln_loss: np.ndarray) -> float:
    return float(np.sum((np.log(floor + np.exp(ln_excess)) - ln_loss) ** 2))


def _crossing(squares: object, cut: float, floors: Sequence[float], start: float) -> float:
    """Where the profile first rises above the cut along some floors; the last of them if it does not."""
    inside = start
    for floor in floors:
        if squares(floor) > cut:  # type: ignore[operator]
            return float(brentq(lambda e: squares(e) - cut, inside, floor, xtol=1e-12))  # type: ignore[operator]
        inside = floor
    return float(inside)
