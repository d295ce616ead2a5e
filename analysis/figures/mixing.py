"""The depth mixing matrix of a run as a heat map."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.figures.layout import new_figure
from analysis.figures.style import styled
from analysis.mixing import Mixing
from analysis.wording import arm_name


@styled
def mixing_map(mixing: Mixing) -> Figure:
    """A square for each read and value, white above the diagonal; blue is negative where M has signs.

    Each row is divided by its largest magnitude: what a sublayer reads is normed, so only ratios within a row count.
    """
    figure = new_figure(2.9)
    axes = figure.subplots()
    matrix = np.where(np.tri(len(mixing.mean), dtype=bool), mixing.mean, np.nan)
    matrix /= np.nanmax(np.abs(matrix), axis=1, keepdims=True)
    signed = float(np.nanmin(matrix)) < -0.01
    image = axes.imshow(
        matrix, vmin=-1 if signed else 0, vmax=1, cmap="RdBu_r" if signed else "viridis", interpolation="none"
    )
    axes.set_title(f"{arm_name(mixing.variant)}: semiseparable rank {np.median(mixing.ranks):.0f}")
    axes.set_xlabel("embedding (0) and outputs of sublayers")
    axes.set_ylabel("read of a sublayer (last: the head's)")
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    bar = figure.colorbar(image, ax=axes, aspect=25, pad=0.02)
    bar.set_label("weight / largest of its row")
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure
