"""Arms at one size: the loss of each, as a bar from the baseline's."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.design import arm_losses
from analysis.figures.layout import NICE_STEPS, make_room, new_figure
from analysis.figures.style import looks, styled
from analysis.pairing import BASELINE
from analysis.runs import Runs
from analysis.wording import arm_name


@styled
def ablation_bars(runs: Runs) -> Figure:
    """One bar an arm, sorted, the lowest loss on top; the baseline is the line that bars start from.

    Labels are losses in nats per token, with as many decimals as the table's, at most four.
    """
    losses = arm_losses(runs)
    baseline = losses.pop(BASELINE)
    arms = sorted(losses, key=lambda arm: -losses[arm])
    look = looks([BASELINE, *runs.arms])
    decimals = 3 if runs.loss_step >= 1e-3 else 4
    figure = new_figure(0.75 + 0.19 * len(arms))
    axes = figure.add_subplot()
    labels = []
    for place, arm in enumerate(arms):
        loss = losses[arm]
        axes.barh(place, loss - baseline, left=baseline, height=0.62, color=look[arm].colour)
        side = -1 if loss <= baseline else 1
        labels.append(
            axes.annotate(
                f"{loss:.{decimals}f}",
                (loss, place),
                (3 * side, 0),
                textcoords="offset points",
                ha="right" if side < 0 else "left",
                va="center",
                fontsize=7,
            )
        )
    axes.axvline(baseline, color=look[BASELINE].colour, linewidth=1)
    axes.set_yticks(range(len(arms)), [arm_name(arm) for arm in arms])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(arms) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=NICE_STEPS))
    below = sum(loss < baseline for loss in losses.values())
    figure.suptitle(f"{below} of {len(arms)} arms end below the baseline, {baseline:.{decimals}f}", fontsize=8)
    axes.set_xlabel("validation loss (nats per token)")
    make_room(figure, axes, labels)
    return figure
