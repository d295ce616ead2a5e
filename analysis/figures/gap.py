"""Loss over training of every arm of one size, and below it how far the arms are under the baseline."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.curves import Training
from analysis.figures.crowd import Crowd
from analysis.figures.layout import NICE_STEPS, legend_above, new_figure
from analysis.figures.style import looks, styled
from analysis.figures.training import LOSS_TEXT, SKIPPED, tokens_unit
from analysis.pairing import BASELINE
from analysis.wording import arm_name, shorten

_FEW_POINTS = 20
"""Up to so many points each has a marker, where few arms are drawn."""


@styled
def loss_gap(training: Training) -> Figure:
    """Two panels over tokens: loss (nats per token), and the baseline's loss less the arm's.

    Where there are many points, the start of training does not decide how far the axes reach.
    """
    loss = training.loss
    gap = loss.drop(columns=BASELINE).rsub(loss[BASELINE], axis=0)
    crowd = Crowd(loss.iloc[-1])
    scale, unit = tokens_unit(loss.index.max())
    by = "" if training.column == "val_loss" else "\nby training loss"
    figure = new_figure(3.4 if by else 3.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.7, 1))
    few = len(loss) <= _FEW_POINTS
    shown = loss.index >= (0 if few else SKIPPED * loss.index.max())
    for axes, table in ((upper, loss), (lower, gap)):
        for variant in crowd.drawn(map(str, table)):
            axes.plot(table.index / scale, table[variant], markersize=3, **crowd.line(variant, few))  # type: ignore[arg-type]
        low, high = table[shown].min().min(), table[shown].max().max()
        margin = 0.07 * (high - low) or 0.01
        axes.set_ylim(low - margin, high + margin)
        axes.yaxis.set_major_locator(MaxNLocator(5 if axes is upper else 3, steps=NICE_STEPS))
    lower.axhline(0, color=looks([BASELINE])[BASELINE].colour, linewidth=0.8)
    upper.set_title(_ends(gap.iloc[-1]) + by)
    lower.xaxis.set_major_locator(MaxNLocator(6, steps=NICE_STEPS))
    lower.set_xlabel(f"tokens{unit}; size {shorten(training.size)}")
    upper.set_ylabel(f"{LOSS_TEXT[training.column]}\n(nats per token)")
    lower.set_ylabel("gap\n(nats)")
    legend_above(figure, crowd.legend())
    return figure


def _ends(gaps: pd.Series) -> str:
    """What the figure shows, in a line."""
    if len(gaps) > 1:
        return f"{(gaps > 0).sum()} of {len(gaps)} arms end below the baseline"
    gap = gaps.iloc[0]
    return f"{arm_name(str(gaps.index[0]))} ends {abs(gap):.3f} {'lower' if gap >= 0 else 'higher'}"
