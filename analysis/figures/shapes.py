"""The best shape at equal compute: one grid of losses an arm."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.design import best_shape, shape_grids
from analysis.figures.layout import new_figure
from analysis.figures.style import styled
from analysis.runs import Runs
from analysis.wording import arm_name

_WIDEST = 10
"""Cells of two grids side by side that have room for a loss in the largest type."""
_BOLD = 0.88
"""Size of the best loss beside the others', so that bold digits leave room inside their frame."""


@styled
def shape_grid(runs: Runs) -> Figure:
    """Loss (nats per token, three decimals) over d_model / layers and heads / layers, one colour scale for all arms.

    The lowest loss of an arm is framed and named in its title; a cell without a pair of runs is white.
    """
    grids = shape_grids(runs)
    low = min(np.nanmin(grid) for grid in grids.values())
    high = max(np.nanmax(grid) for grid in grids.values())
    rows = math.ceil(len(grids) / 2)
    figure = new_figure(max(2.3, 0.85 + rows * (0.4 + 0.24 * max(len(grid) for grid in grids.values()))))
    panels = figure.subplots(rows, 2, sharey=True, squeeze=False)
    size = min(7.0, 7.0 * _WIDEST / 2 / max(len(grid.columns) for grid in grids.values()) * 0.9)
    for (arm, grid), axes in zip(grids.items(), panels.flat, strict=False):
        _draw(axes, grid, (low, high), size)
        axes.set_title("{}:\nbest at {:g}, {:g}".format(arm_name(arm), *best_shape(grid)))
    for axes in panels.flat[len(grids) :]:
        axes.set_axis_off()
    figure.suptitle("validation loss (nats per token)", fontsize=8)
    figure.supxlabel("d_model / Transformer layers", fontsize=8)
    figure.supylabel("heads / Transformer layers", fontsize=8)
    return figure


def _draw(axes: Axes, grid: pd.DataFrame, ends: tuple[float, float], size: float) -> None:
    shades = colormaps["viridis"]
    axes.imshow(grid, vmin=ends[0], vmax=ends[1], cmap=shades, aspect="auto")
    best = np.nanmin(grid)
    for (y, x), loss in np.ndenumerate(grid.to_numpy()):
        if math.isnan(loss):
            continue
        dark = (loss - ends[0]) / max(ends[1] - ends[0], 1e-12) < 0.55
        colour = "white" if dark else "#1a1a1a"
        weight, scale = ("bold", _BOLD) if loss == best else ("normal", 1)
        number = {"fontsize": size * scale, "fontweight": weight, "color": colour}
        axes.text(x, y, f"{loss:.3f}", ha="center", va="center", **number)  # type: ignore[arg-type]
        if loss == best:
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.6, gid="best")
            )
    axes.set_xticks(range(len(grid.columns)), [f"{x:g}" for x in grid.columns])
    axes.set_yticks(range(len(grid)), [f"{y:g}" for y in grid.index])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
