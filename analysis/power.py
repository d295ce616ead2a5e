"""Planning: the multiplier that a design can detect, and the cheapest design that detects a given one.

A design is a number of sizes, evenly spaced in ln C over a span, with a number of seeds each. Its primary estimate has
the variance of `multiplier.py` with the true values in place of the estimates,

    spread    2 run_sd^2 / (seeds sizes alpha^2)
    exponent  (ln M / alpha)^2 (size_sd^2 + run_sd^2 / (2 seeds)) / sum((ln C - mean)^2)

and detects M if its 95 % interval leaves out 1, which asks that the exponent be clearly positive too. Standard
deviations are in ln L. Cost is compute: every run of the ladder, in runs of its largest size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from analysis.errors import AnalysisError
from analysis.powerlaw import MIN_POINTS, t_quantile
from analysis.student import POWER, chi_nodes, power_of_t

LARGEST = 4.0
"""Multiplier beyond which a design counts as unable to detect any."""
MOST_SIZES, MOST_SEEDS = 10, 8
"""How far the search for the cheapest design goes."""


class DesignError(AnalysisError):
    """A design, or a noise, that cannot be."""


@dataclass(frozen=True)
class Noise:
    """What a design is up against."""

    run_sd: float
    """Standard deviation of ln L of one run about its size's."""
    size_sd: float = 0.0
    """Standard deviation of ln L of a size, common to its arms, about the power law."""
    alpha: float = 0.057
    """Exponent of L = A C^-alpha; the paper's by default."""
    span: float = 8.0
    """Largest compute over the smallest; the paper's by default."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for name, value, least in (
            ("sd", self.run_sd, 0.0),
            ("alpha", self.alpha, 0.0),
            ("span", self.span, 1.0),
        ):
            if not least < value < math.inf:
                raise DesignError(f"{name} is {value:g}: give a number above {least:g}")
        if not 0 <= self.size_sd < math.inf:
            raise DesignError(f"the size's sd is {self.size_sd:g}: give a number that is not negative")


@dataclass(frozen=True)
class Design:
    """Sizes, and seeds at each."""

    sizes: int
    seeds: int

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        if self.sizes < MIN_POINTS:
            raise DesignError(f"a design of {self.sizes} sizes has no exponent: give at least {MIN_POINTS}")
        if self.seeds < 1:
            raise DesignError(f"a design of {self.seeds} seeds has no runs: give at least 1")

    @property
    def text(self) -> str:
        """For readers: "5 sizes, 2 seeds"."""
        return f"{self.sizes} sizes, {self.seeds} seed{'s' if self.seeds > 1 else ''}"

    @property
    def runs(self) -> int:
        """Runs of the baseline and one arm."""
        return 2 * self.sizes * self.seeds

    def cost(self, span: float) -> float:
        """Compute of all runs of the baseline and one arm, in runs of the largest size."""
        return 2 * self.seeds * float(np.sum(span ** -np.linspace(0, 1, self.sizes)))


def detection(design: Design, noise: Noise, multiplier: float) -> float:
    """Share of experiments in which the interval leaves out 1 when the true multiplier is this one."""
    n, seeds, gain = design.sizes, design.seeds, abs(math.log(multiplier))
    exponent_se = _exponent_se(design, noise)
    spread = 2 * noise.run_sd**2 / (seeds * n * noise.alpha**2)
    exponent = (gain / noise.alpha) ** 2 * exponent_se**2
    df = (spread + exponent) ** 2 / (spread**2 / (n - 1) + exponent**2 / (n - 2))
    sd, weight = chi_nodes(n - 2)
    clear = float(weight @ ndtr(noise.alpha / exponent_se - t_quantile(n - 2) * sd))
    return clear * power_of_t(df, gain / math.sqrt(spread + exponent))


def detectable(design: Design, noise: Noise) -> float | None:
    """The smallest multiplier above 1 that the design detects in 80 % of experiments; None if none up to 4 is."""

    def short(ln_multiplier: float) -> float:
        return detection(design, noise, math.exp(ln_multiplier)) - POWER

    highest = math.log(LARGEST)
    # the error of the exponent grows with M, so detection need not rise all the way: look from below
    steps = np.geomspace(1e-5, highest, 24)
    first = next((i for i, step in enumerate(steps) if short(float(step)) >= 0), None)
    if first is None:
        return None
    if first == 0:
        return math.exp(float(steps[0]))
    return math.exp(brentq(short, float(steps[first - 1]), float(steps[first])))


def cheapest(noise: Noise, multiplier: float) -> Design | None:
    """The design of least compute that detects a multiplier, of up to 10 sizes and 8 seeds; None if none does.

    Raises:
        DesignError: the multiplier is not a finite number above 0 other than 1.
    """
    if not 0 < multiplier < math.inf or multiplier == 1:
        raise DesignError(f"a multiplier of {multiplier:g} cannot be detected: give one above 0 other than 1")
    able = [
        design
        for design in grid(range(MIN_POINTS, MOST_SIZES + 1), range(1, MOST_SEEDS + 1))
        if detection(design, noise, multiplier) >= POWER
    ]
    return min(able, key=lambda design: (design.cost(noise.span), design.runs), default=None)


def grid(sizes: Sequence[int], seeds: Sequence[int]) -> list[Design]:
    """Every combination."""
    return [Design(n, r) for r in seeds for n in sizes]


def _exponent_se(design: Design, noise: Noise) -> float:
    compute = np.linspace(0, math.log(noise.span), design.sizes)
    variance = noise.size_sd**2 + noise.run_sd**2 / 2 / design.seeds
    return math.sqrt(variance / float(((compute - compute.mean()) ** 2).sum()))
