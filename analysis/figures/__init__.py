"""Every figure, one file each; `draw_all` writes them as PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.curves import largest, load_training
from analysis.design import Design, design
from analysis.dynamics import load_depth, load_dynamics, load_weights
from analysis.figures.arms import ablation_bars
from analysis.figures.block_size import loss_by_block_size
from analysis.figures.compute import loss_compute
from analysis.figures.curve import multiplier_curve
from analysis.figures.depth import by_depth
from analysis.figures.floors import pinned_floors
from analysis.figures.forest import forest
from analysis.figures.frontier import frontier
from analysis.figures.gap import loss_gap
from analysis.figures.pairs import paired_losses
from analysis.figures.planning import power_curves
from analysis.figures.shapes import shape_grid
from analysis.figures.style import styled
from analysis.figures.training import training_curves
from analysis.figures.weights import depth_weights
from analysis.ledgers import leading
from analysis.loss_laws import size_tokens
from analysis.losses import Losses, of_runs
from analysis.plan import next_plan
from analysis.runs import Runs, check_ladder, read_runs
from analysis.size_tokens import SizeTokensLaw
from analysis.store import write

__all__ = [
    *("ablation_bars", "by_depth", "depth_weights", "draw_all", "draw_beside", "draw_laws", "forest", "frontier"),
    *("loss_by_block_size", "loss_compute", "loss_gap", "multiplier_curve", "paired_losses", "pinned_floors"),
    *("render", "shape_grid", "training_curves"),
]


def draw_all(runs: Runs, curves: pd.DataFrame | None, folder: Path, claim: float | None = None) -> list[Path]:
    """Draw every figure that a table and its curves allow into a folder.

    Args:
        runs: the table.
        curves: points over training (`load_curves`), or None where there are none.
        folder: where `<figure>.png` and `<figure>.svg` go.
        claim: a claimed multiplier to mark in the forest plot.

    Returns:
        The files written: the figures of the table's design (see `_of_table`), training_curves and loss_gap where there
        are curves, and those of `draw_laws` for a ladder.

    Raises:
        OutputError: a file cannot be written.
        TableError: a ladder has no compute in any ledger.
    """
    laid_out = design(runs)
    figures = _ladder(runs, claim) if laid_out is Design.LADDER else _of_table(runs)
    if curves is not None and curves["run"].isin(runs.table["run"]).any():
        figures["training_curves"] = training_curves(runs, curves)
        if (training := largest(runs, curves)) is not None:
            figures["loss_gap"] = loss_gap(training)
    drawn = _write(figures, folder)
    return drawn + draw_laws(of_runs(runs), folder) if laid_out is Design.LADDER else drawn


def draw_beside(runs: Runs, folder: Path) -> list[Path]:
    """Draw what lies beside a table of runs (its dynamics, and published tables) into a folder, as PNG and SVG.

    Returns:
        The files written: depth and depth_weights_<arm>, loss_gap, ablations, block_size and shape_grid, each where
        there are numbers for it.

    Raises:
        OutputError: a file cannot be written.
        TableError: one of the files is not what it should be.
    """
    source = runs.path.parent
    figures: dict[str, Figure] = {}
    for name in ("ablations.csv", "block_size.csv", "shape_grid.csv"):
        if (source / name).is_file() and source / name != runs.path:
            figures |= _of_table(read_runs(source / name))
    if (training := load_training(source)) is not None:
        figures["loss_gap"] = loss_gap(training)
    depth, weights = load_dynamics(runs) or (load_depth(source), load_weights(source))
    if depth is not None and depth.magnitudes:
        figures["depth"] = by_depth(depth)
    figures |= {f"depth_weights_{_file_name(arm)}": depth_weights(arm, found) for arm, found in weights.items()}
    return _write(figures, folder)


def _ladder(runs: Runs, claim: float | None) -> dict[str, Figure]:
    """loss_compute_<ledger> for every ledger, the leading one first; in that one paired_losses, forest, and (where an
    arm has an estimate) multiplier_curve, pinned_floors and power."""
    check_ladder(runs)
    first = leading(runs.ledgers)
    figures = {
        f"loss_compute_{ledger}": loss_compute(runs, ledger)
        for ledger in sorted(runs.ledgers, key=lambda ledger: ledger != first)
    }
    figures["paired_losses"] = paired_losses(runs, first)
    secondary = {
        "forest": forest(runs, first, claim),
        "multiplier_curve": multiplier_curve(runs, first),
        "pinned_floors": pinned_floors(runs, first),
    }
    if planned := next_plan(runs, first):
        secondary["power"] = power_curves(planned)
    return figures | {name: figure for name, figure in secondary.items() if figure is not None}


def _of_table(runs: Runs) -> dict[str, Figure]:
    """The figure of a table that is no ladder: ablations, block_size or shape_grid; none for other designs."""
    drawn = {
        Design.ARMS: ("ablations", ablation_bars),
        Design.BLOCK_SIZES: ("block_size", loss_by_block_size),
        Design.SHAPES: ("shape_grid", shape_grid),
    }.get(design(runs))
    return {drawn[0]: drawn[1](runs)} if drawn else {}


def draw_laws(losses: Losses, folder: Path) -> list[Path]:
    """Draw what L(N, D) says into a folder: size_tokens_<arm> for every arm that has such a law, as PNG and SVG."""
    laws = {arm: each.law for arm, each in size_tokens(losses, replicates=0).items()}
    drawn = {arm: law for arm, law in laws.items() if isinstance(law, SizeTokensLaw)}
    return _write({f"size_tokens_{_file_name(arm)}": frontier(law) for arm, law in drawn.items()}, folder)


def _file_name(arm: str) -> str:
    return re.sub(r"\W+", "_", arm)


def _write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    return [
        write(folder / f"{name}.{kind}", render(figure, kind))
        for name, figure in figures.items()
        for kind in ("png", "svg")
    ]


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a PNG or SVG file; equal figures have equal bytes."""
    buffer = io.BytesIO()

    @styled
    def save() -> Figure:
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
        return figure

    save()
    return buffer.getvalue()
