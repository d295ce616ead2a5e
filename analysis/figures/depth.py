"""Magnitudes over depth: outputs, hidden states, gradients."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.dynamics import Depth
from analysis.figures.layout import NICE_STEPS, legend_above, new_figure, plain_log_axis
from analysis.figures.style import looks, styled
from analysis.ledgers import power_text
from analysis.wording import arm_name

_DECADE = 10.0
_MARKED = {"markersize": 2.5, "linewidth": 1.0}
_THIN = 0.6


@styled
def by_depth(depth: Depth) -> Figure:
    """One panel a magnitude, one line an arm over Transformer layers; logarithmic where the panel spans a decade.

    Where both sublayers of a layer were measured, attention is a thin line and the MLP stands for the layer, as the
    paper has one value a layer: the MLP writes last, so its gradient is that of what leaves the layer.
    Of two arms the titles say how many times the largest value is the smallest, of all layers, as the paper counts,
    and without layer 0, which reads the embedding alone and can be far from all others.
    """
    variants = list(dict.fromkeys(str(v) for table in depth.magnitudes.values() for v in table))
    look = looks(variants)
    figure = new_figure(0.4 + 1.6 * len(depth.magnitudes))
    panels = figure.subplots(len(depth.magnitudes), 1, sharex=True, squeeze=False).flat
    for (name, table), axes in zip(depth.magnitudes.items(), panels, strict=True):
        thin = depth.attention.get(name, pd.DataFrame())
        values = np.concatenate([table.to_numpy().ravel(), thin.to_numpy().ravel()])
        power = _power(float(np.nanmax(values)))
        for variant in map(str, thin):
            axes.plot(thin.index, thin[variant] / 10.0**power, color=look[variant].colour, linewidth=_THIN)
        for variant in map(str, table):
            style = {"color": look[variant].colour, "marker": look[variant].marker} | _MARKED
            axes.plot(table.index, table[variant] / 10.0**power, **style)  # type: ignore[arg-type]
        if _span(values) >= _DECADE:
            axes.set_yscale("log")
            plain_log_axis(axes.yaxis)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=NICE_STEPS))
        axes.set_ylabel(_label(name, power, depth.gradient_unit))
        if len(variants) == 2:
            axes.set_title(_spans(table, "range (MLP)" if depth.attention else "range"))
    last = max(int(table.index.max()) for table in depth.magnitudes.values())
    axes.set_xticks([tick for tick in MaxNLocator(8, integer=True).tick_values(0, last) if 0 <= tick <= last])
    axes.set_xlabel("Transformer layer, from 0")
    entries = {arm_name(v): look[v].point() for v in variants}
    if depth.attention:
        entries["MLP"] = Line2D([], [], color="#777777", marker="o", **_MARKED)  # type: ignore[arg-type]
        entries["attention"] = Line2D([], [], color="#777777", linewidth=_THIN)
    legend_above(figure, entries)
    return figure


def _label(name: str, power: int, gradient_unit: str) -> str:
    if name != "gradient_norm":
        magnitude = {"output_rms": "output", "hidden_rms": "hidden state"}[name]
        return f"{magnitude} (rms, {power_text(power)})" if power else f"{magnitude} (rms)"
    unit = " ".join(part for part in (power_text(power) if power else "", gradient_unit) if part)
    return f"gradient norm\n({unit})" if unit else "gradient norm"


def _power(largest: float) -> int:
    """The power of ten to divide by for numbers that need no exponent."""
    return 0 if 0.1 <= largest < 1000 else math.floor(math.log10(largest))


def _span(values: np.ndarray) -> float:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return high / low if low > 0 else math.inf


def _spans(table: pd.DataFrame, of: str) -> str:
    """The largest over the smallest value of every arm, with layer 0 and without."""
    names = [arm_name(str(variant)) for variant in table]
    everywhere = ", ".join(f"{name} {span}" for name, span in zip(names, _times(table), strict=True))
    return f"{of}: {everywhere}" + (f"\nfrom layer 1: {', '.join(_times(table.iloc[1:]))}" if len(table) > 1 else "")


def _times(table: pd.DataFrame) -> list[str]:
    spans = [_span(values.to_numpy()) for _, values in table.items()]
    return [f"{span:.{int(span < 10)}f}\N{MULTIPLICATION SIGN}" for span in spans]
