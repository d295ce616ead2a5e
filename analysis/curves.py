"""Losses over training: curves.csv as `collect` writes it, and the two arms of one size side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.collect import CURVE_COLUMNS
from analysis.columns import read_columns
from analysis.pairing import BASELINE
from analysis.runs import Runs

_TEXTS = ("run", "variant", "size")
_TRAINING_COLUMNS = ("size", "variant", "tokens", "val_loss")
_ENOUGH_VALIDATIONS = 5


@dataclass(frozen=True)
class Training:
    """Losses of several arms at the same tokens."""

    size: str
    loss: pd.DataFrame
    """One row a number of tokens (the index), one column a variant, the baseline first; nats per token."""
    column: str
    """`val_loss`, or `train_loss` as a running mean."""


def load_curves(folder: Path) -> pd.DataFrame | None:
    """The points over training in a results folder, or None where there are none.

    Returns:
        Columns run, variant, size, seed, tokens, train_loss, val_loss (nats per token, NaN where not measured).

    Raises:
        TableError: curves.csv is there and is not what `collect` writes.
    """
    curves = read_columns(folder / "curves.csv", CURVE_COLUMNS, _TEXTS, "write it again with collect")
    if curves is None:
        return None
    curves = curves.dropna(subset=["tokens"])
    return curves if len(curves) else None


def load_training(folder: Path) -> Training | None:
    """A published curve, training.csv: columns size, variant, tokens, val_loss, of one size.

    Raises:
        TableError: it is there and is something else.
    """
    path = folder / "training.csv"
    curves = read_columns(path, _TRAINING_COLUMNS, ("size", "variant"), "give it one row a size, variant and tokens")
    return None if curves is None else _side_by_side(curves, "val_loss")


def largest(runs: Runs, curves: pd.DataFrame) -> Training | None:
    """The arms of the largest size of a table, over its finished runs, seeds averaged; None without a baseline there.

    Args:
        runs: the table.
        curves: as `load_curves` gives them.
    """
    finished = runs.table[runs.table["status"] == "finished"].sort_values("params")
    curves = curves[curves["run"].isin(finished["run"])]
    sizes = [size for size in finished["size"] if (curves["size"] == size).any()]
    if not sizes:
        return None
    return _side_by_side(curves[curves["size"] == sizes[-1]], loss_column(curves))


def loss_column(curves: pd.DataFrame) -> str:
    """`val_loss` where the runs have five points of it or more, else `train_loss`."""
    return "val_loss" if curves.groupby("run")["val_loss"].count().median() >= _ENOUGH_VALIDATIONS else "train_loss"


def smoothed(loss: pd.Series, column: str) -> pd.Series:
    """Training losses as a running mean over a twentieth of the points; validation losses as they are."""
    window = 1 if column == "val_loss" else max(1, len(loss) // 20)
    return loss.rolling(window, min_periods=1).mean()


def _side_by_side(curves: pd.DataFrame, column: str) -> Training | None:
    loss = curves.pivot_table(column, "tokens", "variant", sort=False).sort_index()
    if BASELINE not in loss or len(loss.columns) < 2:
        return None
    arms = [variant for variant in loss.columns if variant != BASELINE]
    loss = loss[[BASELINE, *arms]].dropna().apply(smoothed, column=column)
    return Training(str(curves["size"].iloc[0]), loss, column) if len(loss) > 1 else None
