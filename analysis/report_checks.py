"""The part of the page that says how far the answer leans on each choice of method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.page import figure_link, table
from analysis.study import Study
from analysis.study_wording import (
    CURVE,
    EXPONENTS,
    INTERVALS,
    OTHERS,
    SEEDS,
    curve_row,
    exponent_row,
    floor_rows,
    interval_row,
    other_row,
    seed_row,
)
from analysis.wording import arm_name


def check_sections(studies: Sequence[Study], figures: Mapping[str, Path]) -> list[str]:
    """Paragraphs, tables and figures, in one ledger; nothing where no arm has an estimate.

    Args:
        studies: every arm.
        figures: paths by the figure's name; one that is missing is left out.
    """
    answered = [s for s in studies if s.multiplier.numbers is not None]
    if not answered:
        return []
    separate = [s for s in answered if s.separate]
    seeded = [s for s in answered if s.seeds]
    sections = [
        "## How far the answer leans on the method",
        _drawn(figures, "forest", "multiplier of every size, ledger and arm"),
        "The same question by other ways to an interval. The paired t interval is the answer. The profile likelihood "
        "takes nothing to be linear; Fieller's set stays right where the exponent is weak, and is wider because it "
        "takes all its degrees of freedom from the exponent; the intervals of all arms at once hold together with 95 % "
        "confidence and take a run's noise to be the same in every arm; separate fits leave out that a size moves its "
        "arms together, as published curves do.",
        table(INTERVALS, map(interval_row, answered)),
        "Other choices: every size left out once, and no law at all, by interpolation between the baseline's own runs.",
        table(OTHERS, map(other_row, answered)),
    ]
    if separate:
        sections += [
            "With an exponent for each arm, M changes with compute. The exponents differ beyond doubt only if the "
            "interval of their difference leaves out 0; a difference below the smallest that could be seen (in 80 % of "
            "experiments like this one) may be there unseen.",
            table(EXPONENTS, map(exponent_row, separate)),
            table(CURVE, map(curve_row, separate)),
            _drawn(figures, "multiplier_curve", "multiplier over compute, hatched where extrapolated"),
        ]
    sections += [
        "A floor E under the loss, pinned and not fitted, since a handful of sizes cannot tell it from the exponent:",
        table(("E", *(arm_name(s.multiplier.arm) for s in answered)), floor_rows(answered)),
        _drawn(figures, "pinned_floors", "multiplier against a pinned floor under the loss"),
    ]
    if seeded:
        sections += [
            "Seeds say how far two equal runs lie apart; a small p says that one multiplier does not fit all sizes.",
            table(SEEDS, map(seed_row, seeded)),
        ]
    if "power" in figures:
        sections += [
            "## The next experiment",
            "With this table's noise, the smallest multiplier that sizes and seeds detect, over the same range of "
            "compute. The verb `power` finds the cheapest design for a given multiplier.",
            _drawn(figures, "power", "smallest multiplier detected, over sizes and seeds"),
        ]
    return [section for section in sections if section]


def _drawn(figures: Mapping[str, Path], name: str, alternative: str) -> str:
    return figure_link(figures[name], alternative) if name in figures else ""
