"""Magnitudes over depth: outputs, hidden states, gradients."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.dynamics import Depth
from analysis.figures.layout import NICE_STEPS, legend_above, new_figure, plain_log_axis
from analysis.figures.style import looks, styled
from analysis.ledgers import power_text
from analysis.wording import arm_name

_LABELS = {"output_rms": "output (rms", "hidden_rms": "hidden state (rms", "gradient_norm": "gradient (norm"}
_DECADE = 10.0


@styled
def by_depth(depth: Depth) -> Figure:
    """One panel a magnitude, one line an arm; logarithmic where the panel spans a decade.

    Of two arms the titles say how many times the largest value is the smallest.
    """
    variants = list(dict.fromkeys(str(v) for table in depth.magnitudes.values() for v in table))
    look = looks(variants)
    figure = new_figure(0.4 + 1.45 * len(depth.magnitudes))
    panels = figure.subplots(len(depth.magnitudes), 1, sharex=True, squeeze=False).flat
    for (name, table), axes in zip(depth.magnitudes.items(), panels, strict=True):
        values = table.to_numpy()
        power = _power(float(np.nanmax(values)))
        for variant in map(str, table):
            style = look[variant]
            line = {"color": style.colour, "marker": style.marker, "markersize": 2.5, "linewidth": 1}
            axes.plot(table.index, table[variant] / 10.0**power, **line)  # type: ignore[arg-type]
        if _span(values) >= _DECADE:
            axes.set_yscale("log")
            plain_log_axis(axes.yaxis)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=NICE_STEPS))
        axes.set_ylabel(_LABELS[name] + (f", {power_text(power)})" if power else ")"))
        if len(variants) == 2:
            axes.set_title(_spans(table))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel(f"{depth.place}, from 0")
    legend_above(figure, {arm_name(v): look[v].point() for v in variants})
    return figure


def _power(largest: float) -> int:
    """The power of ten to divide by for numbers that need no exponent."""
    return 0 if 0.1 <= largest < 1000 else math.floor(math.log10(largest))


def _span(values: np.ndarray) -> float:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return high / low if low > 0 else math.inf


def _spans(table: pd.DataFrame) -> str:
    """The largest over the smallest value of every arm."""
    spans = {arm_name(str(variant)): _span(values.to_numpy()) for variant, values in table.items()}
    texts = [f"{name} {span:.{int(span < 10)}f}\N{MULTIPLICATION SIGN}" for name, span in spans.items()]
    return "range: " + ", ".join(texts)
