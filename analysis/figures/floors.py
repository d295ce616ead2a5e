"""M against a floor E pinned under the loss: how far the answer leans on the law's form."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures.layout import legend_above, new_figure
from analysis.figures.style import looks, styled
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.study import studies
from analysis.wording import arm_name


@styled
def pinned_floors(runs: Runs, ledger: str) -> Figure | None:
    """One line an arm with its 95 % interval at each floor, side by side; None where no arm has an estimate."""
    drawn = [s for s in studies(runs, ledger) if s.floors]
    if not drawn:
        return None
    look = looks([BASELINE, *runs.arms])
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    step = min(s.floors[1].floor for s in drawn)
    for place, s in enumerate(drawn):
        style = look[s.multiplier.arm]
        shift = (place - (len(drawn) - 1) / 2) * step * 0.12
        known = [(f.floor + shift, f.estimate.multiplier, f.estimate.interval) for f in s.floors]
        known = [(x, m, interval) for x, m, interval in known if m is not None]
        axes.plot(
            [x for x, _, _ in known],
            [m or 1.0 for _, m, _ in known],
            style.marker,
            color=style.colour,
            linestyle=style.dashes,
            linewidth=0.9,
        )
        for x, _, interval in known:
            if interval:
                axes.plot([x, x], interval, color=style.colour, linewidth=1.1)
    axes.axhline(1, color=look[BASELINE].colour, linewidth=0.8)
    axes.set_xlabel(f"floor E, pinned (nats per token); ledger {ledger}")
    axes.set_ylabel("compute multiplier M")
    legend_above(figure, {arm_name(s.multiplier.arm): look[s.multiplier.arm].point() for s in drawn})
    return figure
