"""One page for runs that are no ladder: arms at one size, block sizes, shapes at equal compute. No multiplier."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.design import Design, arm_losses, best_shape, block_sizes, design, shape_grids
from analysis.figures import draw_all, draw_beside
from analysis.ledgers import leading
from analysis.page import escape, table, to_html
from analysis.pairing import BASELINE
from analysis.report import hygiene_text, made_from, run_table, setting
from analysis.report_pictures import picture_sections
from analysis.runs import Runs
from analysis.store import write
from analysis.wording import arm_name, loss_text


def write_arms_report(runs: Runs, curves: pd.DataFrame | None, folder: Path) -> list[Path]:
    """Draw the figures and write report.md and report.html into a folder.

    Args:
        runs: a table with at least one pair that has compute in a ledger.
        curves: points over training, or None where there are none.
        folder: the results folder.

    Returns:
        The two pages; nothing is written where there is no figure.

    Raises:
        OutputError: a file cannot be written.
    """
    drawn = draw_all(runs, curves, folder / "figures") + draw_beside(runs, folder / "figures")
    figures = {path.stem: path.relative_to(folder) for path in drawn if path.suffix == ".png"}
    if not figures:
        return []
    title = f"Losses: {folder.resolve().name}"
    gaps = runs.pairs.assign(gap=runs.pairs["loss_baseline"] - runs.pairs["loss_arm"])
    rows = [
        (arm_name(pair["arm"]), pair["size"], pair["seed"], *map(loss_text, pair[["loss_baseline", "loss_arm", "gap"]]))
        for _, pair in gaps.iterrows()
    ]
    sections = [
        f"# {escape(title)}",
        f"**{escape(_answer(runs))}**",
        f"Losses are nats per token on the validation set at the end of training. {_noise(runs)} A compute multiplier "
        "needs a ladder of sizes, which this is not.",
        *picture_sections(figures),
        "## What each pair says",
        table(("arm", "size", "seed", "baseline's loss", "arm's loss", "difference"), rows),
        "## What was run",
        setting(runs),
        run_table(runs, leading(runs.ledgers)),
        "## What was left out",
        hygiene_text(runs),
        made_from(runs),
    ]
    markdown = "\n\n".join(sections) + "\n"
    return [write(folder / "report.md", markdown), write(folder / "report.html", to_html(markdown, title, folder))]


def _answer(runs: Runs) -> str:
    """What the table shows, in a sentence."""
    laid_out = design(runs)
    if laid_out is Design.SHAPES:
        best = [
            "{} at {:g} and {:g}".format(arm_name(arm), *best_shape(grid)) for arm, grid in shape_grids(runs).items()
        ]
        return f"Lowest loss at d_model / layers and heads / layers: {'; '.join(best)}."
    if runs.pairs["size"].nunique() > 1:
        below = (runs.pairs["loss_arm"] < runs.pairs["loss_baseline"]).sum()
        return f"In {below} of {len(runs.pairs)} pairs the arm is below the baseline."
    losses = arm_losses(runs)
    if laid_out is Design.BLOCK_SIZES:
        loss, size = min((loss, size) for size, loss in block_sizes(runs).items())
        name = f"Block size {size}"
    else:
        loss, arm = min((loss, arm) for arm, loss in losses.items() if arm != BASELINE)
        name = arm_name(arm)
    gap = losses[BASELINE] - loss
    return f"{name} has the lowest loss of the arms, {abs(gap):.4f} {'below' if gap >= 0 else 'above'} the baseline's."


def _noise(runs: Runs) -> str:
    if runs.pairs["seed"].nunique() > 1:
        return "Figures show means over seeds."
    return "With one seed, nothing here says how large a difference two equal runs would have."
