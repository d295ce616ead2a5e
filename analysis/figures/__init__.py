"""Every figure, one file each; `draw_all` writes them as PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.compute import loss_compute
from analysis.figures.curve import multiplier_curve
from analysis.figures.floors import pinned_floors
from analysis.figures.forest import forest
from analysis.figures.frontier import frontier
from analysis.figures.pairs import paired_losses
from analysis.figures.planning import power_curves
from analysis.figures.style import styled
from analysis.figures.training import training_curves
from analysis.ledgers import leading
from analysis.loss_laws import size_tokens
from analysis.losses import Losses, of_runs
from analysis.plan import next_plan
from analysis.runs import Runs
from analysis.size_tokens import SizeTokensLaw
from analysis.store import write

__all__ = [
    *("draw_all", "draw_laws", "forest", "frontier", "loss_compute", "multiplier_curve", "paired_losses"),
    *("pinned_floors", "render", "training_curves"),
]


def draw_all(runs: Runs, curves: pd.DataFrame | None, folder: Path, claim: float | None = None) -> list[Path]:
    """Draw every figure that the data allow into a folder.

    Args:
        runs: the table.
        curves: points over training (`load_curves`), or None where there are none.
        folder: where `<figure>.png` and `<figure>.svg` go.
        claim: a claimed multiplier to mark in the forest plot.

    Returns:
        The files written: loss_compute_<ledger> for every ledger, the leading one first; in that one paired_losses,
        forest, and (where an arm has an estimate) multiplier_curve, pinned_floors and power; training_curves; and
        those of `draw_laws`.

    Raises:
        OutputError: a file cannot be written.
    """
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
    figures |= {name: figure for name, figure in secondary.items() if figure is not None}
    if curves is not None and curves["run"].isin(runs.table["run"]).any():
        figures["training_curves"] = training_curves(runs, curves)
    return _write(figures, folder) + draw_laws(of_runs(runs), folder)


def draw_laws(losses: Losses, folder: Path) -> list[Path]:
    """Draw what L(N, D) says into a folder: size_tokens_<arm> for every arm that has such a law, as PNG and SVG."""
    laws = {arm: each.law for arm, each in size_tokens(losses, replicates=0).items()}
    names = {arm: "size_tokens_" + re.sub(r"\W+", "_", arm) for arm in laws}
    figures = {names[arm]: frontier(law) for arm, law in laws.items() if isinstance(law, SizeTokensLaw)}
    return _write(figures, folder)


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
