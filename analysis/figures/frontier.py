"""L(N, D) against compute: the runs, curves of equal size, and the best use of compute."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.allocation import FLOPS_PER_PARAMETER_TOKEN, compute_range, exponents, optimal_size
from analysis.figures.layout import legend_above, new_figure, plain_log_axis
from analysis.figures.style import styled
from analysis.ledgers import Unit, axis_unit
from analysis.size_tokens import SizeTokensLaw
from analysis.wording import count_text

MOST_CURVES = 5
_BEYOND = 10.0
"""Factor of compute by which the best use is drawn beyond the runs, dashed."""


@styled
def frontier(law: SizeTokensLaw) -> Figure:
    """Loss against C = 6 N D, both logarithmic.

    Curves of equal size run over the compute of the runs near that size. The black curve is the lowest loss for each
    amount of compute: solid over the runs, dashed on to ten times more.
    """
    rows = law.rows
    ln_size = rows.x + rows.centre[0]
    compute = FLOPS_PER_PARAMETER_TOKEN * np.exp(rows.x + rows.y + sum(rows.centre))
    low, high = compute_range(law)
    unit = axis_unit("6nd", high)
    shade = _Shades(ln_size)

    figure = new_figure(2.9)
    axes = figure.add_subplot(xscale="log", yscale="log")
    plain_log_axis(axes.xaxis)
    plain_log_axis(axes.yaxis)
    axes.scatter(compute / unit.scale, np.exp(rows.ln_loss), s=7, c=shade(ln_size), linewidths=0, zorder=3, gid="runs")
    entries = {}
    for size in _sizes(ln_size):
        near = compute[np.abs(ln_size - size) <= _spacing(ln_size) / 2]
        _draw_size(axes, law, math.exp(size), (near.min(), near.max()), unit, shade(size))
        entries[f"N = {count_text(math.exp(size))}"] = Line2D([], [], color=tuple(shade(size)))
    for ends, style in (((low, high), "-"), ((high, high * _BEYOND), "--")):
        _draw_best(axes, law, ends, unit, style)
    a = float(exponents(law.parameters[None])[0][0])
    entries[f"best N, as C^{a:.2f}"] = Line2D([], [], color="#1a1a1a")
    entries["beyond the runs"] = Line2D([], [], color="#1a1a1a", linestyle="--", linewidth=1)
    axes.set_xlabel(f"training compute, 6 N D ({unit.label})")
    axes.set_ylabel("loss (nats per token)")
    legend_above(figure, entries)
    return figure


class _Shades:
    """Colour by size, dark is small: a map that keeps its order in grey and for colour-blind readers."""

    def __init__(self, ln_size: np.ndarray) -> None:
        self.low, self.span = ln_size.min(), np.ptp(ln_size)

    def __call__(self, ln_size: np.ndarray | float) -> np.ndarray:
        return np.asarray(colormaps["viridis"](0.05 + 0.85 * (np.asarray(ln_size) - self.low) / self.span))


def _sizes(ln_size: np.ndarray) -> list[float]:
    """At most five sizes of the runs, near evenly spaced from the least to the largest."""
    wanted = np.linspace(ln_size.min(), ln_size.max(), MOST_CURVES)
    return sorted({float(ln_size[np.abs(ln_size - each).argmin()]) for each in wanted})


def _spacing(ln_size: np.ndarray) -> float:
    return float(np.ptp(ln_size)) / (MOST_CURVES - 1)


def _draw_size(
    axes: Axes, law: SizeTokensLaw, size: float, ends: tuple[float, float], unit: Unit, colour: np.ndarray
) -> None:
    x = np.geomspace(*ends, 60)
    loss = law.loss(np.full_like(x, size), x / FLOPS_PER_PARAMETER_TOKEN / size)
    axes.plot(x / unit.scale, loss, color=colour, linewidth=1, zorder=3.5, gid="size")


def _draw_best(axes: Axes, law: SizeTokensLaw, ends: tuple[float, float], unit: Unit, style: str) -> None:
    x = np.geomspace(*ends, 60)
    size = optimal_size(law.parameters[None], x)[0]
    loss = law.loss(size, x / FLOPS_PER_PARAMETER_TOKEN / size)
    axes.plot(x / unit.scale, loss, color="#1a1a1a", linestyle=style, linewidth=1.6, zorder=2.5, gid="best")
