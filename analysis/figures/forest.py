"""Forest plot: M of every size, ledger and arm, with the interval of each estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.layout import legend_above, new_figure, plain_log_axis
from analysis.figures.style import Look, looks, styled
from analysis.multiplier import estimates
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.study import Study, studies
from analysis.wording import arm_name, shorten

_TOO_WIDE = 4.0
"""An interval is cut where it reaches this many times as far from the sizes as they lie apart."""


@styled
def forest(runs: Runs, ledger: str, claim: float | None = None) -> Figure:
    """Per arm: what each size says in one ledger, then the estimate in every ledger with its interval.

    Sizes are small markers, open where the baseline's runs did not reach the loss. They have no interval of their own:
    one run a size has no scatter. The thin line of the ledger's estimate is the interval that holds for all arms at
    once.
    """
    chosen = [s for s in studies(runs, ledger) if s.multiplier.numbers is not None]
    others = {x: {m.arm: m for m in estimates(runs, x)} for x in runs.ledgers if x != ledger}
    look = looks([BASELINE, *runs.arms])
    rows = sum(len(s.multiplier.sizes) + 1 + len(others) for s in chosen) + 0.7 * len(chosen)
    figure = new_figure(0.8 + 0.15 * max(rows, 4))
    axes = figure.add_subplot()
    axes.set_xscale("log")
    plain_log_axis(axes.xaxis)
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for s in chosen:
        y = _draw_sizes(axes, s, look[s.multiplier.arm], y, ticks)
        for name, m in [(ledger, s.multiplier), *((x, found[s.multiplier.arm]) for x, found in others.items())]:
            if m.multiplier is None:
                continue
            y -= 1
            ticks.append((y, f"all sizes, {name}"))
            axes.plot([m.multiplier], [y], look[m.arm].marker, color=look[m.arm].colour, zorder=4)
            if m.interval:
                axes.plot(m.interval, [y, y], color=look[m.arm].colour, linewidth=2.2, zorder=3)
            if name == ledger and s.simultaneous:
                axes.plot(s.simultaneous.interval, [y, y], color=look[m.arm].colour, linewidth=0.8, zorder=2)
        y -= 0.7
    axes.axvline(1, color=look[BASELINE].colour, linewidth=0.8)
    _limit(axes, chosen)
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0, labelsize=7)
    axes.set_ylim(y + 0.2, -0.3)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"compute multiplier M; sizes in ledger {ledger}")
    entries = {arm_name(s.multiplier.arm): look[s.multiplier.arm].point() for s in chosen}
    if any(not size.in_range for s in chosen for size in s.multiplier.sizes):
        entries["beyond the baseline's runs"] = Line2D(
            [], [], color="#777777", marker="o", linestyle="", markerfacecolor="white"
        )
    entries["95 % interval"] = Line2D([], [], color="#777777", linewidth=2.2)
    if any(s.simultaneous for s in chosen):
        entries["for all arms at once"] = Line2D([], [], color="#777777", linewidth=0.8)
    if claim is not None:
        axes.axvline(claim, color="#777777", linestyle=":", linewidth=1)
        entries[f"claim, {claim:g}\N{MULTIPLICATION SIGN}"] = Line2D([], [], color="#777777", linestyle=":")
    legend_above(figure, entries)
    return figure


def _draw_sizes(axes: Axes, s: Study, look: Look, y: float, ticks: list[tuple[float, str]]) -> float:
    for size in s.multiplier.sizes:
        y -= 1
        ticks.append((y, shorten(size.pair.size)))
        face = look.colour if size.in_range else "white"
        axes.plot([size.multiplier], [y], look.marker, color=look.colour, markerfacecolor=face, markersize=3, zorder=3)
    return y


def _limit(axes: Axes, chosen: Sequence[Study]) -> None:
    """Keep one endless interval from flattening everything else."""
    values = [size.ln_multiplier for s in chosen for size in s.multiplier.sizes] + [0.0]
    if not values:
        return
    reach = max(max(values) - min(values), 0.02) * _TOO_WIDE
    low, high = (math.log(x) for x in axes.get_xlim())
    axes.set_xlim(math.exp(max(low, min(values) - reach)), math.exp(min(high, max(values) + reach)))
