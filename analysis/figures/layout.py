"""What the figures share in placing things: a canvas, plain logarithmic axes, legends, room for labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from analysis.figures.style import WIDTH

NICE_STEPS = (1, 2, 2.5, 5, 10)
_GAP = 2.0
"""Pixels between a label and the frame."""


def new_figure(height: float) -> Figure:
    """An empty figure, half a page wide and `height` inches high, outside any window system."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    return figure


EVEN_SPAN = 4
"""Largest over smallest number up to which a logarithmic axis has evenly spaced ticks."""


def plain_log_axis(axis: Axis, narrow: bool = False) -> None:
    """Numbers as people write them on a logarithmic axis, few enough not to touch (fewer on a narrow panel)."""
    axis.set_major_locator(_RoundNumbers(narrow))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number_beside(value, axis)))
    axis.set_minor_locator(NullLocator())


def _number_beside(value: float, axis: Axis) -> str:
    """A tick's number; where ticks are evenly spaced, with as many decimals as its neighbours."""
    low, high = axis.get_view_interval()
    if high / low >= EVEN_SPAN:
        return f"{value:g}"
    decimals = max(len(f"{tick:g}".partition(".")[2]) for tick in axis.get_majorticklocs())
    return f"{value:.{decimals}f}"


class _RoundNumbers(Locator):
    """Evenly spaced numbers where the axis spans less than EVEN_SPAN, else 1, 2, 5 or whole decades."""

    def __init__(self, narrow: bool) -> None:
        self.narrow = narrow

    def __call__(self) -> Sequence[float]:
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        span = vmax / vmin
        if span < EVEN_SPAN:
            return MaxNLocator(3 if self.narrow else 6, steps=NICE_STEPS).tick_values(vmin, vmax)
        if self.narrow:
            return LogLocator(subs=(1, 3) if span < 100 else (1,), numticks=4).tick_values(vmin, vmax)
        return LogLocator(subs=(1, 2, 5) if span < 200 else (1,), numticks=6).tick_values(vmin, vmax)


def legend_above(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """The names of the arms (or of anything else) above the figure, as many in a row as fit; the figure grows."""
    height = figure.get_figheight()
    for columns in range(min(4, len(entries)), 0, -1):
        figure.set_figheight(height + 0.2 * math.ceil(len(entries) / columns))  # room enough to be measured in
        legend = figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside upper center",
            ncols=columns,
            columnspacing=1.2,
            handletextpad=0.5,
        )
        figure.draw_without_rendering()
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            figure.set_figheight(height + box.height / figure.dpi)
            return
        legend.remove()


def legend_inside(figure: Figure, axes: Axes, entries: dict[str, Line2D]) -> None:
    """The names in the lower left corner, which a falling curve leaves empty; above the figure if it does not."""
    legend = axes.legend(list(entries.values()), list(entries), loc="lower left")
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    curves = [line.get_transform().transform(line.get_xydata()) for line in axes.get_lines()]
    if any(box.contains(x, y) for curve in curves for x, y in curve):
        legend.remove()
        legend_above(figure, entries)


def make_room(figure: Figure, axes: Axes, labels: Sequence[Text]) -> None:
    """Widen the x axis until every label is inside it; the labels then no longer push the axes together."""
    for label in labels:
        label.set_in_layout(False)
    logarithmic = axes.get_xscale() == "log"
    for _ in range(20):
        figure.draw_without_rendering()
        frame = axes.get_window_extent()
        boxes = [label.get_window_extent() for label in labels]
        over_right = max((box.x1 + _GAP - frame.x1 for box in boxes), default=0.0)
        over_left = max((frame.x0 - box.x0 + _GAP for box in boxes), default=0.0)
        if over_left <= 0 and over_right <= 0:
            return
        left, right = (math.log(x) if logarithmic else x for x in axes.get_xlim())
        per_pixel = (right - left) / frame.width
        left -= max(0.0, over_left + 1) * per_pixel
        right += max(0.0, over_right + 1) * per_pixel
        axes.set_xlim(*(math.exp(x) if logarithmic else x for x in (left, right)))
