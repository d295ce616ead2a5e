"""Coverage of every method in every group of settings: one dot a setting, the goal as a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.calibrate import GOAL, SIZES, Coverage
from analysis.figures.layout import legend_above, new_figure
from analysis.figures.style import series, styled
from analysis.powerlaw import CONFIDENCE

_LOWEST = 0.9
"""Coverage at the left edge; what is lower is drawn on it, as an arrow."""


@styled
def coverage(found: Sequence[Coverage]) -> Figure:
    """One row a group and method, from the plain experiment down; colour is the number of sizes."""
    rows = list(dict.fromkeys((c.group, c.method) for c in found))
    figure = new_figure(0.9 + 0.16 * len(rows) + 0.17 * len(dict.fromkeys(group for group, _ in rows)))
    axes = figure.add_subplot()
    axes.axvspan(*GOAL, color="#e8f1f8", zorder=0)
    axes.axvline(CONFIDENCE, color="#777777", linewidth=0.8)
    names = [f"{n} sizes" for n in SIZES]
    look = series(names)
    places, labels, height = [], [], 0.0
    for i, (group, method) in enumerate(rows):
        if i == 0 or rows[i - 1][0] != group:
            height -= 1.1
            title = axes.text(
                0.015, height + 0.05, group, transform=axes.get_yaxis_transform(), va="center", fontsize=7
            )
            title.set_in_layout(False)
        height -= 1
        places.append(height)
        labels.append(method)
        for j, name in enumerate(names):
            values = np.array(
                [c.coverage for c in found if (c.group, c.method, c.setting.sizes) == (group, method, SIZES[j])]
            )
            y = np.full(len(values), height + (1 - j) * 0.25)
            low = values < _LOWEST
            axes.plot(values[~low], y[~low], look[name].marker, color=look[name].colour, markersize=2.2, alpha=0.7)
            if low.any():  # an empty line that is not clipped would still take up room at the corner
                axes.plot(
                    np.full(low.sum(), _LOWEST), y[low], "<", color=look[name].colour, markersize=2.6, clip_on=False
                )
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.set_ylim(height - 0.7, -0.4)
    axes.set_xlim(_LOWEST, 1.003)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of simulated tables whose set\nholds the true multiplier (band: goal)")
    legend_above(
        figure,
        {name: look[name].point() for name in names}
        | {"lower": Line2D([], [], color="#777777", marker="<", linestyle="")},
    )
    return figure
