"""Loss against the size of a block, from Full to one block."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from analysis.design import FULL, arm_losses, block_sizes
from analysis.figures.layout import NICE_STEPS, legend_above, new_figure
from analysis.figures.style import looks, styled
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.wording import arm_name


@styled
def loss_by_block_size(runs: Runs) -> Figure:
    """Loss (nats per token) over S, sublayers in a block, logarithmic to base 2; Full is S = 1, the baseline a line."""
    losses = block_sizes(runs)
    baseline = arm_losses(runs)[BASELINE]
    look = looks([BASELINE, "block", FULL, *(f"block_size_{size}" for size in losses)])
    figure = new_figure(2.3)
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.axhline(baseline, color=look[BASELINE].colour, linewidth=1)
    axes.plot(list(losses), list(losses.values()), color=look["block"].colour, linewidth=1, zorder=2)
    for size, loss in losses.items():
        style = look[FULL if size == 1 else f"block_size_{size}"]
        axes.plot([size], [loss], style.marker, color=style.colour, zorder=3)
    axes.xaxis.set_major_locator(FixedLocator(list(losses)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE_STEPS))
    axes.margins(y=0.1)
    below = sum(loss < baseline for loss in losses.values())
    title = "Every block size ends" if below == len(losses) else f"{below} of {len(losses)} block sizes end"
    axes.set_title(f"{title} below the baseline")
    axes.set_xlabel("block size S (sublayers)")
    axes.set_ylabel("validation loss\n(nats per token)")
    entries = {arm_name(BASELINE): Line2D([], [], color=look[BASELINE].colour, linewidth=1)}
    entries |= {arm_name(v): look[v].point() for v in (FULL, "block") if v != FULL or 1 in losses}
    legend_above(figure, entries)
    return figure
