"""M over compute, from an exponent for each arm: solid where both arms have runs, hatched where extrapolated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.layout import legend_above, new_figure, plain_log_axis
from analysis.figures.style import Look, looks, styled
from analysis.ledgers import axis_unit
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.separate import CurvePoint
from analysis.study import Study, studies
from analysis.wording import arm_name

_POINTS = 121


@styled
def multiplier_curve(runs: Runs, ledger: str) -> Figure | None:
    """One panel an arm, M against the arm's compute with its 95 % band; the estimate with one exponent is a thin line.

    None where no arm has a curve.
    """
    drawn = [s for s in studies(runs, ledger) if s.separate is not None and s.multiplier.sizes]
    if not drawn:
        return None
    look = looks([BASELINE, *runs.arms])
    largest = max(max(p.ln_compute_arm for p in s.multiplier.pairs) for s in drawn)
    unit = axis_unit(ledger, math.exp(largest))
    rows = math.ceil(len(drawn) / 2)
    figure = new_figure(0.6 + (1.9 if len(drawn) == 1 else 1.5 * rows))
    panels = figure.subplots(rows, min(2, len(drawn)), squeeze=False, sharey=True).flat
    for s, axes in zip(drawn, panels):
        _draw(axes, s, look[s.multiplier.arm], unit.scale, narrow=len(drawn) > 1)
        axes.set_title(arm_name(s.multiplier.arm))
    for axes in list(panels):
        axes.set_axis_off()
    _limit(figure.axes[0], drawn)
    figure.supxlabel(f"arm's training compute, ledger {ledger} ({unit.label})", fontsize=8)
    figure.supylabel("compute multiplier M", fontsize=8)
    legend_above(
        figure,
        {
            "M by an exponent for each arm": Line2D([], [], color="#777777"),
            "extrapolated": Patch(facecolor="white", edgecolor="#777777", hatch="////", linewidth=0),
            "sizes": Line2D([], [], color="#777777", marker="o", linestyle=""),
            "one exponent": Line2D([], [], color="#777777", linewidth=0.8, linestyle=":"),
        },
    )
    return figure


def _draw(axes: Axes, s: Study, look: Look, scale: float, narrow: bool) -> None:
    axes.set_xscale("log")
    plain_log_axis(axes.xaxis, narrow)
    if s.separate is None:
        return
    points = s.separate.curve(_POINTS)
    for run in _runs(points):
        inside = run[len(run) // 2].in_range
        x = [math.exp(point.ln_compute) / scale for point in run]
        axes.plot(
            x,
            [point.multiplier for point in run],
            color=look.colour,
            linestyle="-" if inside else "--",
            linewidth=1.3 if inside else 1,
            gid="in range" if inside else "extrapolated",
        )
        bounds = [point.interval for point in run]
        if all(bounds):
            low, high = np.array(bounds).T
            band = {"alpha": 0.2} if inside else {"facecolor": "none", "hatch": "////", "alpha": 0.35}
            axes.fill_between(x, low, high, color=look.colour, linewidth=0, **band)  # type: ignore[arg-type]
    for size in s.multiplier.sizes:
        face = look.colour if size.in_range else "white"
        x_size = math.exp(size.pair.ln_compute_arm) / scale
        axes.plot([x_size], [size.multiplier], look.marker, color=look.colour, markerfacecolor=face, markersize=3.5)
    if s.multiplier.multiplier:
        axes.axhline(s.multiplier.multiplier, color=look.colour, linewidth=0.8, linestyle=":")
    axes.axhline(1, color="#1a1a1a", linewidth=0.8)


def _runs(points: Sequence[CurvePoint]) -> list[list[CurvePoint]]:
    """The curve cut where it leaves the range, neighbours sharing their point so that the line does not break."""
    pieces: list[list[CurvePoint]] = [[points[0]]]
    for before, point in pairwise(points):
        pieces[-1].append(point)
        if point.in_range != before.in_range:
            pieces.append([point])
    return [piece for piece in pieces if len(piece) > 2]


def _limit(axes: Axes, drawn: Sequence[Study]) -> None:
    """The sizes and the curves fill the panel; a band that opens far beyond them is cut."""
    values = [size.multiplier for s in drawn for size in s.multiplier.sizes] + [1.0]
    for s in drawn:
        values += [p.multiplier for p in s.separate.curve(9)] if s.separate else []
    low, high = min(values), min(max(values), 50.0)
    margin = 0.6 * max(high - low, 0.05)
    axes.set_ylim(max(0.0, low - margin), high + margin)
