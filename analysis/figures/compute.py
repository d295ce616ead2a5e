"""Loss against compute: the sizes, the fitted laws, and the multiplier as the distance between two curves."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from analysis.figures.layout import legend_inside, make_room, new_figure, plain_log_axis
from analysis.figures.style import Look, looks, styled
from analysis.laws import arm_laws
from analysis.ledgers import axis_unit
from analysis.multiplier import Multiplier, estimates
from analysis.pairing import BASELINE, size_points
from analysis.powerlaw import PowerLaw
from analysis.runs import Runs
from analysis.wording import arm_name, estimate_text, interval_text

_LABEL_HEIGHT = 0.17
"""Height of a two-line label as a share of the axes."""


@styled
def loss_compute(runs: Runs, ledger: str) -> Figure:
    """Loss against compute in one ledger, both logarithmic.

    Curves are each arm's own fit: solid over its runs, dashed on to losses that only others reached. An arrow leads
    from the arm's curve to the baseline's at equal loss; its label is the paired estimate with its interval.
    """
    points = {variant: size_points(runs.pairs, variant, ledger) for variant in (BASELINE, *runs.arms)}
    points = {variant: p for variant, p in points.items() if len(p)}
    laws = {variant: law for variant, law in arm_laws(runs, ledger).items() if isinstance(law, PowerLaw)}
    look = looks([BASELINE, *runs.arms])
    losses, compute = (np.concatenate([p[column] for p in points.values()]) for column in ("ln_loss", "ln_compute"))
    reach = _reach(compute)
    unit = axis_unit(ledger, math.exp(compute.max()))

    figure = new_figure(2.9)
    axes = figure.add_subplot(xscale="log", yscale="log")
    plain_log_axis(axes.xaxis)
    plain_log_axis(axes.yaxis)
    for variant, p in points.items():
        if variant in laws:
            _draw_law(axes, laws[variant], look[variant].colour, unit.scale, losses, reach)
        axes.plot(
            np.exp(p["ln_compute"]) / unit.scale,
            np.exp(p["ln_loss"]),
            look[variant].marker,
            color=look[variant].colour,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=3,
        )
    axes.set_xlabel(f"training compute, ledger {ledger} ({unit.label})")
    axes.set_ylabel("validation loss (nats per token)")
    labels = _draw_arrows(axes, estimates(runs, ledger), laws, look, unit.scale, reach)
    make_room(figure, axes, labels)
    entries = {arm_name(v): Line2D([], [], color=look[v].colour, marker=look[v].marker) for v in points}
    entries["fit beyond its runs"] = Line2D([], [], color="#777777", linestyle="--", linewidth=1)
    legend_inside(figure, axes, entries)
    return figure


def _reach(ln_compute: np.ndarray) -> tuple[float, float]:
    """How far curves may be extended: as far again as the sizes span, a factor of ten at least."""
    further = max(math.log(10), np.ptp(ln_compute))
    return ln_compute.min() - further, ln_compute.max() + further


def _draw_law(
    axes: Axes, law: PowerLaw, colour: str, scale: float, ln_losses: np.ndarray, reach: tuple[float, float]
) -> None:
    start, end = law.ln_compute_range
    _draw_curve(axes, law, (start, end), scale, color=colour, gid="fit")
    if law.exponent > 0:
        first, last = (law.ln_compute(math.exp(ln_loss)) for ln_loss in (ln_losses.max(), ln_losses.min()))
        for span in ((max(first, reach[0]), start), (end, min(last, reach[1]))):
            if span[0] < span[1]:
                _draw_curve(axes, law, span, scale, color=colour, linestyle="--", linewidth=1, gid="extension")


def _draw_curve(axes: Axes, law: PowerLaw, span: tuple[float, float], scale: float, **style: object) -> None:
    x = np.linspace(*span, 50)
    axes.plot(np.exp(x) / scale, law.loss(x), **style)  # type: ignore[arg-type]


def _draw_arrows(
    axes: Axes,
    multipliers: list[Multiplier],
    laws: dict[str, PowerLaw],
    look: dict[str, Look],
    scale: float,
    reach: tuple[float, float],
) -> list[Annotation]:
    """One arrow an arm, about the middle of the losses that both arms reached, far enough apart for the labels.

    An arm whose curve is too flat to reach that loss anywhere near the runs has none.
    """
    falling = {variant for variant, law in laws.items() if law.exponent > 0}
    drawn = [m for m in multipliers if m.multiplier is not None and {BASELINE, m.arm} <= falling]
    low, high = (math.log(x) for x in axes.get_ylim())
    shared = {m.arm: _shared_ln_losses(m) for m in drawn}
    labels = []
    for place, m in enumerate(drawn):
        above_middle = ((len(drawn) - 1) / 2 - place) * _LABEL_HEIGHT * (high - low)
        ln_loss = float(np.mean(list(shared.values()))) + above_middle
        loss = math.exp(ln_loss)
        ends = [laws[variant].ln_compute(loss) for variant in (m.arm, BASELINE)]
        if min(ends) < reach[0] or max(ends) > reach[1]:
            continue
        start, end = (math.exp(x) / scale for x in ends)
        arrow = {"arrowstyle": "-|>", "color": look[m.arm].colour, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end, loss), (start, loss), arrowprops=arrow, gid=f"arrow {m.arm}", zorder=4)
        interval = f"({interval_text(m.interval)})" if m.interval else "(no interval)"
        lowest, highest = shared[m.arm]
        extrapolated = "" if lowest <= ln_loss <= highest else "\nextrapolated"
        labels.append(
            axes.annotate(
                f"{arm_name(m.arm)} {estimate_text(m)}\N{MULTIPLICATION SIGN}\n{interval}{extrapolated}",
                (max(start, end), loss),
                (5, -3),
                textcoords="offset points",
                va="bottom",
                color=look[m.arm].colour,
                gid=f"label {m.arm}",
            )
        )
    return labels


def _shared_ln_losses(m: Multiplier) -> tuple[float, float]:
    """Lowest and highest ln L that both arms reached; if there is none, the ends of the gap, the higher first."""
    baseline = [pair.ln_loss_baseline for pair in m.pairs]
    arm = [pair.ln_loss_arm for pair in m.pairs]
    return max(min(baseline), min(arm)), min(max(baseline), max(arm))
