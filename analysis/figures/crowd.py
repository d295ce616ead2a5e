"""Many arms as lines of one figure: a few have names, the others are one thin grey crowd."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.lines import Line2D

from analysis.figures.style import Look, looks
from analysis.pairing import BASELINE
from analysis.wording import arm_name

MOST = 6
"""Arms beside the baseline that half a page has room to tell apart."""
_BEST, _WORST = 3, 2
GREY = Look("#bdbdbd", "", (0, ()))
_THIN = 0.7


class Crowd:
    """How every arm of a figure is drawn, by where its loss ends."""

    def __init__(self, ends: pd.Series) -> None:
        """`ends`: the last loss of every variant (the index), NaN where there is none."""
        variants = [str(variant) for variant in ends.index]
        self._looks = looks(variants)
        self.many = len(set(variants) - {BASELINE}) > MOST
        order = [str(variant) for variant in ends.drop(BASELINE, errors="ignore").dropna().sort_values().index]
        named = [BASELINE, *order[:_BEST], *order[-_WORST:]] if self.many else variants
        self.named = [variant for variant in named if variant in variants]
        """Variants with a name, in the order of the legend: the baseline, then from the lowest loss up."""
        self.others = [variant for variant in variants if variant not in self.named]

    def drawn(self, present: Iterable[str]) -> list[str]:
        """The variants of a panel in the order of drawing, the crowd first."""
        there = set(present)
        return [variant for variant in (*self.others, *self.named) if variant in there]

    def line(self, variant: str, marker: bool = False) -> dict[str, object]:
        """Properties of a variant's line; markers only where few arms have them."""
        if variant in self.others:
            return {"color": GREY.colour, "linewidth": _THIN}
        look = self._looks[variant]
        return {
            "color": look.colour,
            "linestyle": look.dashes,
            "marker": look.marker if marker and not self.many else "",
        }

    def legend(self) -> dict[str, Line2D]:
        """The names, and how many have none."""
        entries = {arm_name(variant): self._looks[variant].line() for variant in self.named}
        if self.others:
            entries[f"{len(self.others)} others"] = Line2D([], [], color=GREY.colour, linewidth=_THIN)
        return entries
