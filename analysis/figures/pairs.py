"""The pairs: what each size gains in loss, and the multiplier that the gain is worth."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator

from analysis.figures.layout import NICE_STEPS, legend_above, make_room, new_figure
from analysis.figures.style import Look, looks, styled
from analysis.multiplier import Multiplier, SizeMultiplier, estimates
from analysis.pairing import BASELINE, SizePair
from analysis.runs import Runs
from analysis.wording import arm_name, shorten, times


@styled
def paired_losses(runs: Runs, ledger: str) -> Figure:
    """Per size, the baseline's loss minus the arm's, labelled with the size's own multiplier in one ledger.

    A marker is open where no baseline run reached the arm's loss: there the multiplier leans on the fitted exponent
    beyond the runs.
    """
    multipliers = [m for m in estimates(runs, ledger) if m.pairs]
    look = looks([BASELINE, *runs.arms])
    compute = {p.size: p.ln_compute_baseline for m in multipliers for p in m.pairs}
    sizes = sorted(compute, key=lambda size: compute[size], reverse=True)
    figure = new_figure(0.85 + len(sizes) * max(0.24, 0.16 * len(multipliers)))
    axes = figure.add_subplot()
    labels = []
    for place, m in enumerate(multipliers):
        lift = 0.8 / len(multipliers) * ((len(multipliers) - 1) / 2 - place)
        labels += _draw_arm(axes, m, {size: y + lift for y, size in enumerate(sizes)}, look[m.arm])
    axes.axvline(0, color=look[BASELINE].colour, linewidth=0.8)
    axes.set_yticks(range(len(sizes)), [shorten(size) for size in sizes])
    axes.set_ylim(-0.6, len(sizes) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=NICE_STEPS))
    axes.set_ylabel("size")
    axes.set_xlabel(f"baseline's loss less the arm's (nats per token)\nlabel: multiplier of this size, ledger {ledger}")
    entries = {arm_name(m.arm): look[m.arm].point() for m in multipliers}
    if any(not size.in_range for m in multipliers for size in m.sizes):
        open_marker = Line2D([], [], color="#777777", marker="o", linestyle="", markerfacecolor="white")
        entries["beyond the baseline's runs"] = open_marker
    legend_above(figure, entries)
    make_room(figure, axes, labels)
    return figure


def _draw_arm(axes: Axes, m: Multiplier, heights: dict[str, float], look: Look) -> list[Annotation]:
    worth = {size.pair: size for size in m.sizes}
    return [label for pair in m.pairs if (label := _draw_pair(axes, pair, worth.get(pair), heights[pair.size], look))]


def _draw_pair(axes: Axes, pair: SizePair, size: SizeMultiplier | None, y: float, look: Look) -> Annotation | None:
    gain = pair.loss_baseline - pair.loss_arm
    face = look.colour if size and size.in_range else "white"
    axes.plot([0, gain], [y, y], color=look.colour, linewidth=0.8, alpha=0.5, zorder=2)
    axes.plot([gain], [y], look.marker, color=look.colour, markerfacecolor=face, zorder=3)
    if size is None:
        return None
    side = 1 if gain >= 0 else -1
    return axes.annotate(
        f"{times(size.multiplier)}\N{MULTIPLICATION SIGN}",
        (gain, y),
        (5 * side, 0),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=7,
        color=look.colour,
    )
