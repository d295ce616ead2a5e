"""How the checks of a multiplier are written for readers: rows for tables, sentences for the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.fieller import Fieller
from analysis.multiplier import Multiplier
from analysis.separate import CurvePoint
from analysis.study import Study
from analysis.wording import arm_name, estimate_text, half_width, interval_text, sentence, times

INTERVALS = ("arm", "paired t", "profile likelihood", "Fieller", "all arms at once", "separate fits")
OTHERS = ("arm", "M", "one size left out", "most moved by", "no law, mean", "baseline reached")
EXPONENTS = (
    *("arm", "alpha, baseline", "alpha, arm", "difference", "95 % interval", "smallest that could be seen", "p"),
)
CURVE = ("arm", "at its smallest compute", "in the middle", "at its largest")
SEEDS = ("arm", "sd of ln L, one run", "df", "one M fits all sizes: F", "p")


def interval_row(s: Study) -> tuple[str, ...]:
    """The 95 % interval of M by each way."""
    unpaired = s.separate and s.separate.at(s.separate.arm.centre_ln_compute, paired=False).interval
    return (
        arm_name(s.multiplier.arm),
        interval_text(s.multiplier.interval),
        interval_text(s.profile) if s.profile else "unbounded",
        fieller_text(s.fieller) if s.fieller else "",
        interval_text(s.simultaneous.interval) if s.simultaneous else "",
        interval_text(unpaired or None),
    )


def fieller_text(f: Fieller) -> str:
    """Fieller's set; where it is unbounded, what it still leaves out."""
    if f.bounded:
        return interval_text(f.ends)
    if f.ends is None:
        return "unbounded: any M"
    low, high = (f"{end:.3g}" for end in f.ends)
    return f"unbounded: below {low} or above {high}"


def other_row(s: Study) -> tuple[str, ...]:
    """The estimate under other choices: one size fewer, no law."""
    m = s.multiplier
    left_out = [x for x in s.left_out if x.estimate.ln_multiplier is not None]
    moved = max(left_out, key=lambda x: abs((x.estimate.ln_multiplier or 0.0) - (m.ln_multiplier or 0.0)), default=None)
    reached = [x.ln_multiplier for x in s.law_free if x.ln_multiplier is not None]
    return (
        arm_name(m.arm),
        estimate_text(m),
        range_of([x.estimate for x in left_out], m) if left_out else "needs four sizes",
        moved.size if moved else "",
        times(math.exp(sum(reached) / len(reached))) if reached else "not reached",
        reached_text(s),
    )


def reached_text(s: Study) -> str:
    """At how many sizes the baseline's runs reached the arm's loss, and which they did not."""
    missed = [x.size for x in s.law_free if x.ln_multiplier is None]
    count = f"{len(s.law_free) - len(missed)} of {len(s.law_free)}"
    return f"{count}; not reached: {', '.join(missed)}" if missed else count


def range_of(estimates: Sequence[Multiplier], like: Multiplier) -> str:
    """Least and greatest of several estimates, rounded like another."""
    values = sorted(m.multiplier for m in estimates if m.multiplier is not None)
    return " to ".join(times(value, half_width(like.interval)) for value in (values[0], values[-1]))


def exponent_row(s: Study) -> tuple[str, ...]:
    """Each arm's own exponent, the difference, and the smallest difference that the runs could have shown."""
    if s.separate is None:
        return ()
    d = s.separate.exponent_difference
    return (
        arm_name(s.multiplier.arm),
        f"{s.separate.baseline.exponent:.4f}",
        f"{s.separate.arm.exponent:.4f}",
        f"{d.difference:+.4f}",
        f"{d.interval[0]:+.4f} to {d.interval[1]:+.4f}",
        f"{d.detectable:.4f}",
        f"{d.p_value:.2g}",
    )


def curve_row(s: Study) -> tuple[str, ...]:
    """M by an exponent for each arm, at the ends and in the middle of the arm's runs."""
    if s.separate is None:
        return ()
    low, high = s.separate.arm.ln_compute_range
    points = [s.separate.at(x) for x in (low, s.separate.arm.centre_ln_compute, high)]
    return arm_name(s.multiplier.arm), *map(_point_text, points)


def _point_text(point: CurvePoint) -> str:
    text = times(point.multiplier, half_width(point.interval))
    interval = f" ({interval_text(point.interval)})" if point.interval else ""
    return f"{text}{interval}" + ("" if point.in_range else ", extrapolated")


def floor_rows(studies: Sequence[Study]) -> list[tuple[str, ...]]:
    """One row a floor: M of every arm with its interval; blank where the arm's losses are below the floor."""
    values = sorted({f.floor for s in studies for f in s.floors})
    by_arm = [{f.floor: f.estimate for f in s.floors} for s in studies]
    return [(f"{floor:g}", *(_with_interval(arm.get(floor)) for arm in by_arm)) for floor in values]


def _with_interval(m: Multiplier | None) -> str:
    if m is None:
        return ""
    return estimate_text(m) + (f" ({interval_text(m.interval)})" if m.interval else "")


def seed_row(s: Study) -> tuple[str, ...]:
    """The noise of runs from seeds, and whether one M fits every size."""
    found = s.seeds
    if found is None:
        return ()
    fits = (f"{found.lack_of_fit:.2f}", f"{found.p_value:.2g}") if found.lack_of_fit is not None else ("", "")
    return arm_name(s.multiplier.arm), f"{found.run_sd:.2g}", str(found.df), *fits


def answers(studies: Sequence[Study]) -> list[str]:
    """The answer of every arm, what is left to say where it has no interval, and what it says of the claim."""
    return [line for s in studies for line in (sentence(s.multiplier), _weak_text(s), verdict_text(s)) if line]


def _weak_text(s: Study) -> str:
    """Fieller's set where a weak exponent leaves no interval."""
    if s.fieller is None or s.fieller.bounded:
        return ""
    return f"{arm_name(s.multiplier.arm)}: what these runs allow, by Fieller's method, is {fieller_text(s.fieller)}."


def verdict_text(s: Study) -> str:
    """What the table says of the claim, in one sentence; nothing where nothing was claimed."""
    v = s.verdict
    if v is None:
        return ""
    start = f"{arm_name(s.multiplier.arm)} and the claim of {v.claim:g}x: {v.verdict}"
    if v.interval_90 is None:
        return f"{start}; there is no interval to hold against it."
    ninety = f"the 90 % interval, {interval_text(v.interval_90)},"
    bounds = (
        f"{v.bounds[0]:.3f} to {v.bounds[1]:.3f}, which is the claim give or take {100 * v.margin:.3g} % of compute"
    )
    if v.verdict == "consistent":
        return f"{start}; {ninety} lies within {bounds}."
    if v.verdict == "not consistent":
        return f"{start}; the claim lies outside the 95 % interval, {interval_text(s.multiplier.interval)}."
    return f"{start}; the 95 % interval holds the claim, and {ninety} reaches beyond {bounds}."
