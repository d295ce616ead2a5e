"""The power curve: the smallest multiplier that a design detects, over its number of sizes."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.figures.layout import legend_above, new_figure
from analysis.figures.style import series, styled
from analysis.plan import Plan
from analysis.student import POWER


@styled
def power_curves(made: Plan) -> Figure:
    """One line a number of seeds; the multiplier that was asked for is a dotted line, the cheapest design a ring."""
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    seeds = sorted({design.seeds for design in made.detects})
    look = series([f"{r} seeds" for r in seeds])
    entries: dict[str, Line2D] = {}
    for r in seeds:
        style = look[f"{r} seeds"]
        points = [(d.sizes, m) for d, m in made.detects.items() if d.seeds == r and m is not None]
        axes.plot(*zip(*points) if points else ((), ()), style.marker, color=style.colour, linestyle=style.dashes)
        entries[f"{r} seed{'s' if r > 1 else ''}"] = Line2D(
            [], [], color=style.colour, marker=style.marker, linestyle=style.dashes
        )
    if made.asked is not None:
        axes.axhline(made.asked, color="#777777", linestyle=":", linewidth=1)
        entries[f"{made.asked:g}\N{MULTIPLICATION SIGN}, asked for"] = Line2D([], [], color="#777777", linestyle=":")
    if made.cheapest is not None and made.asked is not None:
        ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "color": "#1a1a1a", "linestyle": ""}
        at = made.detects.get(made.cheapest) or made.asked
        axes.plot([made.cheapest.sizes], [at], **ring)  # type: ignore[arg-type]
        name = f"cheapest: {made.cheapest.text}"
        entries[name] = Line2D([], [], **ring)  # type: ignore[arg-type]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("sizes")
    axes.set_ylabel(f"multiplier detected in {POWER:.0%}\nof experiments")
    axes.margins(x=0.08)
    axes.set_ylim(bottom=1.0)
    legend_above(figure, entries)
    return figure
