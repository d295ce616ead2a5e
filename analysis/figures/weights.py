"""Which sources each read weighs how much, before attention and before the MLP."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.dynamics import KINDS, Weights
from analysis.figures.layout import new_figure
from analysis.figures.style import styled
from analysis.wording import arm_name

_NAMES = {"attention": "attention", "mlp": "MLP"}


@styled
def depth_weights(variant: str, weights: Weights) -> Figure:
    """Two panels with one colour bar; white where there is no source.

    A row is a Transformer layer, the first on top; a column is a source, the embedding first. A title says how much
    weight the newest source has, averaged over the reads that have two or more.
    """
    layers, sources = next(iter(weights.values())).shape
    figure = new_figure(0.9 + min(3.0, max(1.1, 1.25 * layers / sources)))
    panels = figure.subplots(1, 2, sharey=True)
    most = max(float(np.nanmax(weights[kind][1:], initial=0.1)) for kind in KINDS)
    for kind, axes in zip(KINDS, panels, strict=True):
        extent = (-0.5, sources - 0.5, layers + 0.5, 0.5)
        image = axes.imshow(
            weights[kind], vmin=0, vmax=most, cmap="viridis", aspect="auto", interpolation="none", extent=extent
        )
        axes.set_title(f"before {_NAMES[kind]}:\nnewest source {_newest(weights[kind]):.2f}")
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0].set_ylabel("Transformer layer")
    figure.supxlabel(f"source of {arm_name(variant)} (0: embedding)", fontsize=8)
    bar = figure.colorbar(image, ax=list(panels), aspect=25, pad=0.02, extend="max")
    bar.set_label("weight")
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _newest(weights: np.ndarray) -> float:
    """Mean weight of the last source of each read that has several."""
    last = [row[~np.isnan(row)][-1] for row in weights if (~np.isnan(row)).sum() > 1]
    return float(np.mean(last))
