"""Does a nominal 95 % interval hold the truth in 95 % of experiments? Simulated tables, counted.

A table whose exponent's interval includes 0 has no interval of the primary method; what is then reported, Fieller's
unbounded set, is what is counted, and `bounded` says how often there was an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.fieller import fieller_sets
from analysis.paired import Array, Paired, paired
from analysis.powerlaw import t_quantile
from analysis.profile import profile_cut, profile_ends, profile_excess
from analysis.simulate import MIDDLE_LOSS, Setting, Tables, simulate
from analysis.simultaneous import dunnett_quantile, pooled_errors, pooled_variance

GOAL = (0.935, 0.970)
"""Coverage that the primary interval is to have."""
NOISES = ((0.0028, 0.0013), (0.0, 0.0022), (0.006, 0.0013), (0.0028, 0.004))
"""Standard deviations of a size and of a run in ln L."""
SIZES = (3, 5, 8)
MULTIPLIERS = (1.0, 1.1, 1.25)
Held = tuple[NDArray[Any], NDArray[Any]]
"""(tables,) whether each table's set holds the truth, and half its width in ln M, infinite if it is unbounded."""
_WIDTHS_FROM = 400
"""Tables from which the median half-width of the profile's interval is taken: its ends are searched for."""


class CalibrationError(AnalysisError):
    """A calibration of no tables."""


@dataclass(frozen=True)
class Coverage:
    """One method at one setting."""

    group: str
    method: str
    setting: Setting
    tables: int
    coverage: float
    """Share of tables whose set holds the true M (all true M at once where there are several arms)."""
    bounded: float
    """Share of tables with a bounded interval."""
    coverage_bounded: float | None
    """Share of these whose interval holds the truth; None if there are none, and for the profile (not all known)."""
    median_half_width: float | None
    """Of ln M; None where more than half of the tables have no bounded interval."""

    def record(self) -> dict[str, Any]:
        """As it stands in coverage.json."""
        own = {key: value for key, value in asdict(self).items() if key != "setting"}
        return {"group": own.pop("group"), "method": own.pop("method"), **asdict(self.setting), **own}


def settings() -> Iterator[tuple[str, Setting]]:
    """Every group of settings: the plain experiment, and what could upset it."""
    for size_sd, run_sd in NOISES:
        for sizes in SIZES:
            for multiplier in MULTIPLIERS:
                plain = Setting(sizes, size_sd, run_sd, multiplier)
                yield "plain", plain
                yield "two seeds", replace(plain, seeds=2)
                yield "arm 2 % dearer", replace(plain, dearer=1.02)
                yield "five arms", replace(plain, arms=5)
                yield "five arms, one twice as noisy", replace(plain, arms=5, last_arm_noise=2.0)
                for floor in (1.0, 1.5):
                    yield f"floor {floor:g}, same fall of ln L", replace(plain, floor=floor)
                    alpha = plain.alpha * (MIDDLE_LOSS - floor) / MIDDLE_LOSS
                    yield f"floor {floor:g}, same exponent of L - E", replace(plain, floor=floor, alpha=alpha)


def calibrate(cases: Iterable[tuple[str, Setting]], tables: int, seed: int = 0) -> list[Coverage]:
    """The coverage of every method in every case; each case has a stream of random numbers of its own.

    Args:
        cases: groups with their settings, such as `settings()`.
        tables: simulated tables a case.
        seed: of the random numbers.

    Raises:
        CalibrationError: fewer than one table.
    """
    if tables < 1:
        raise CalibrationError(f"{tables} tables have no coverage: give at least 1")
    found = []
    for place, (group, setting) in enumerate(cases):
        drawn = simulate(setting, tables, np.random.default_rng([seed, place]))
        measured = _five_arms(setting, drawn) if setting.arms > 1 else _one_arm(setting, drawn)
        for method, (holds, half_widths) in measured.items():
            found.append(_summary(group, method, setting, holds, half_widths))
    return found


def outside_goal(found: list[Coverage]) -> list[Coverage]:
    """The settings at which the primary method misses its goal."""
    return [c for c in found if c.method in ("paired", "simultaneous") and not GOAL[0] <= c.coverage <= GOAL[1]]


def _one_arm(setting: Setting, drawn: Tables) -> dict[str, Held]:
    """What every method makes of one arm."""
    truth = math.log(setting.multiplier)
    p = paired(drawn.base_loss, drawn.arm_loss[0], drawn.base_compute, drawn.arm_compute)
    sets = fieller_sets(p)
    low, high = sets.ends
    methods = {
        "paired": _primary(p, truth, _t_half_width(p)),
        "fieller": (sets.holds(truth), np.where(sets.bounded, (high - low) / 2, np.inf)),
        "profile": (profile_excess(p, truth) <= profile_cut(p.sizes), _profile_half_widths(setting, drawn)),
        "separate fits": _separate(drawn, truth),
    }
    if setting.floor:
        base, arm = (np.log(np.exp(x) - setting.floor) for x in (drawn.base_loss, drawn.arm_loss[0]))
        pinned = paired(base, arm, drawn.base_compute, drawn.arm_compute)
        methods["paired, true floor pinned"] = _primary(pinned, truth, _t_half_width(pinned))
    return methods


def _five_arms(setting: Setting, drawn: Tables) -> dict[str, Held]:
    """The simultaneous intervals, and beside them each arm's own, which are not meant to hold all at once."""
    truth = math.log(setting.multiplier)
    p = paired(drawn.base_loss, drawn.arm_loss, drawn.base_compute, drawn.arm_compute)
    pooled_df = setting.arms * (p.sizes - 1)
    variance, df = pooled_errors(p, pooled_variance(p.ln_multipliers * p.alpha[..., None]), pooled_df)
    quantile = _interpolated(setting.arms, df, p.sizes - 2, pooled_df + p.sizes - 2)
    methods = {
        "simultaneous": _primary(p, truth, quantile * np.sqrt(variance)),
        "each arm's own": _primary(p, truth, _t_half_width(p)),
    }
    return {name: (np.all(holds, 0), np.max(half, 0)) for name, (holds, half) in methods.items()}


def _primary(p: Paired, truth: float, half_width: Array) -> Held:
    """The interval where the exponent is clear of 0, else Fieller's set."""
    sets = fieller_sets(p)
    holds = np.where(sets.bounded, np.abs(p.ln_multiplier - truth) <= half_width, sets.holds(truth))
    return holds, np.where(sets.bounded, half_width, np.inf)


def _t_half_width(p: Paired) -> Array:
    n = p.sizes
    return _interpolated(1, p.df, n - 2, 2 * n - 3) * np.sqrt(p.variance)


def _separate(drawn: Tables, truth: float) -> Held:
    """Two independent lines, M in the middle of the range from the baseline's exponent: `separate.py`, unpaired."""
    n = len(drawn.base_compute)
    x = drawn.base_compute - drawn.base_compute.mean()
    spread = float(x @ x)

    def line(y: Array) -> tuple[Array, Array, Array]:
        middle = y.mean(-1, keepdims=True)
        slope = ((y - middle) @ x) / spread
        return middle[..., 0], -slope, ((y - middle - slope[..., None] * x) ** 2).sum(-1) / (n - 2)

    (base, alpha, base_variance), (arm, _, arm_variance) = line(drawn.base_loss), line(drawn.arm_loss[0])
    worth = (base - arm) / alpha
    away = float(drawn.arm_compute.mean() - drawn.base_compute.mean())
    variance = ((base_variance + arm_variance) / n + worth**2 * base_variance / spread) / alpha**2
    half = t_quantile(2 * n - 4) * np.sqrt(variance)
    clear = alpha > t_quantile(n - 2) * np.sqrt(base_variance / spread)
    return np.abs(worth - away - truth) <= half, np.where(clear, half, np.inf)


def _profile_half_widths(setting: Setting, drawn: Tables) -> Array:
    few = paired(
        drawn.base_loss[:_WIDTHS_FROM], drawn.arm_loss[0, :_WIDTHS_FROM], drawn.base_compute, drawn.arm_compute
    )
    low, high = profile_ends(few)
    return np.asarray((high - low) / 2)


def _interpolated(arms: int, df: Array, lowest: float, highest: float) -> Array:
    """Dunnett's quantile (Student's for one arm) of many degrees of freedom, from 60 in even steps of 1 / df."""
    inverse = np.linspace(1 / highest, 1 / lowest, 60)
    return np.interp(1 / df, inverse, [dunnett_quantile(arms, 1 / float(x)) for x in inverse])


def _summary(group: str, method: str, setting: Setting, holds: NDArray[Any], half_widths: NDArray[Any]) -> Coverage:
    middle = float(np.median(half_widths))
    bounded = np.isfinite(half_widths)
    all_known = len(holds) == len(half_widths)
    return Coverage(
        group,
        method,
        setting,
        len(holds),
        float(holds.mean()),
        float(bounded.mean()),
        float(holds[bounded].mean()) if all_known and bounded.any() else None,
        middle if math.isfinite(middle) else None,
    )
