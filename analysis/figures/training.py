"""Loss over training: one panel a size, one line a run, against tokens."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.curves import loss_column, smoothed
from analysis.figures.crowd import Crowd
from analysis.figures.layout import NICE_STEPS, legend_above, new_figure
from analysis.figures.style import styled
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.wording import shorten

LOSS_TEXT = {"val_loss": "validation loss", "train_loss": "training loss, running mean"}
SKIPPED = 0.2
"""Share of the tokens at the start of training that does not decide how far the loss axis reaches."""


@styled
def training_curves(runs: Runs, curves: pd.DataFrame) -> Figure:
    """Loss against tokens for every run of the table, seeds as equal lines.

    Validation loss where the runs have five points of it or more, else training loss as a running mean. Where there
    are many arms, those whose losses end lowest and highest at the largest size have names.

    Args:
        runs: the table; its runs are drawn, and its sizes are the panels, in order of parameters.
        curves: columns run, variant, size, seed, tokens, train_loss, val_loss (NaN where missing).
    """
    curves = curves[curves["run"].isin(runs.table["run"])]
    column = loss_column(curves)
    order = runs.table[runs.table["size"].isin(curves["size"])].sort_values("params")["size"].unique()
    crowd = Crowd(
        _ends(curves, column, order[-1]).reindex([v for v in (BASELINE, *runs.arms) if v in set(curves["variant"])])
    )
    rows = math.ceil(len(order) / 2)
    figure = new_figure(0.5 + 1.35 * rows)
    panels = figure.subplots(rows, min(2, len(order)), squeeze=False).flat
    scale, unit = tokens_unit(curves["tokens"].max())
    for size, axes in zip(order, panels, strict=False):
        _draw_panel(axes, curves[curves["size"] == size], column, crowd, scale)
        axes.set_title(shorten(size))
    figure.supxlabel(f"tokens{unit}", fontsize=8)
    between = " " if rows > 1 else "\n"
    figure.supylabel(f"{LOSS_TEXT[column]}{between}(nats per token)", fontsize=8)
    entries = crowd.legend()
    spare = next(panels, None)
    if spare is None:
        legend_above(figure, entries)
    else:
        spare.set_axis_off()
        spare.legend(list(entries.values()), list(entries), loc="center")
    return figure


def tokens_unit(largest: float) -> tuple[float, str]:
    """A unit in which a number of tokens needs no exponent: its size, and how a label names it."""
    units = ((1e9, " (billion)"), (1e6, " (million)"), (1e3, " (thousand)"))
    return next(((scale, name) for scale, name in units if largest >= scale), (1.0, ""))


def _ends(curves: pd.DataFrame, column: str, size: str) -> pd.Series:
    """The last loss of every variant at a size, seeds averaged."""
    own = curves[curves["size"] == size].dropna(subset=[column]).sort_values("tokens")
    return own.groupby(["variant", "seed"])[column].last().groupby("variant").mean()


def _draw_panel(axes: Axes, curves: pd.DataFrame, column: str, crowd: Crowd, scale: float) -> None:
    lowest, highest = math.inf, -math.inf
    for variant in crowd.drawn(curves["variant"]):
        for _, run in curves[curves["variant"] == variant].groupby("run"):
            points = run.dropna(subset=[column]).sort_values("tokens")
            loss = smoothed(points[column], column)
            axes.plot(points["tokens"] / scale, loss, **crowd.line(variant))  # type: ignore[arg-type]
            shown = loss[points["tokens"] >= SKIPPED * points["tokens"].max()]
            lowest, highest = min(lowest, shown.min()), max(highest, shown.max())
    if lowest < highest:
        axes.set_ylim(lowest - 0.05 * (highest - lowest), highest + 0.05 * (highest - lowest))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=NICE_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE_STEPS))
