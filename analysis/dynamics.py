"""What aggregating depth does inside the model: magnitudes by depth, and the weights of the sources.

Ours are in dynamics.csv as `collect` writes it, published ones in depth.csv and depth_weights.csv.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.columns import read_columns
from analysis.errors import TableError
from analysis.pairing import BASELINE
from analysis.runs import Runs

KINDS = ("attention", "mlp")
"""The two sublayers of a Transformer layer, in their order."""
MAGNITUDES = ("output_rms", "hidden_rms", "gradient_norm")
_OURS = ("run", "variant", "size", "seed", "tokens", "sublayer", "kind", *MAGNITUDES, "weights")
_DEPTH = ("variant", "transformer_block", "output_rms", "gradient_norm")
_WEIGHTS = ("variant", "layer", "before", "source", "weight")


@dataclass(frozen=True)
class Depth:
    """Magnitudes by Transformer layer (the index, from 0), one column a variant, the baseline first."""

    magnitudes: dict[str, pd.DataFrame]
    """By the names of MAGNITUDES, those that were measured: of the layer, or of its MLP, the last to write."""
    attention: dict[str, pd.DataFrame]
    """The same of the layers' attention; nothing where a layer has one value."""
    gradient_unit: str
    """Empty where it is not known."""


Weights = dict[str, np.ndarray]
"""Weights of one variant for each of KINDS: (Transformer layers, sources), NaN where there is no source."""


def load_dynamics(runs: Runs) -> tuple[Depth, dict[str, Weights]] | None:
    """The end of training in the dynamics.csv beside a table, at the largest size of its finished runs, seeds averaged.

    Returns:
        Magnitudes of both kinds of sublayer, and the weights of every variant that has them; None without dynamics.csv.

    Raises:
        TableError: dynamics.csv is not what `collect` writes.
    """
    path = runs.path.parent / "dynamics.csv"
    texts = ("run", "variant", "size", "kind", "weights")
    rows = read_columns(path, _OURS, texts, "write it again with collect")
    if rows is None:
        return None
    finished = runs.table[runs.table["status"] == "finished"].sort_values("params")
    rows = rows[rows["run"].isin(finished["run"]) & rows["kind"].isin(KINDS)]
    rows = rows[rows["size"] == next((size for size in finished["size"][::-1] if (rows["size"] == size).any()), None)]
    rows = rows[rows["tokens"] == rows.groupby("run")["tokens"].transform("max")]
    attention, mlp = (_by_layer(rows[rows["kind"] == kind]) for kind in KINDS)
    weights = {
        variant: found
        for variant in rows["variant"].unique()
        if (found := _weights_of(path, rows[(rows["variant"] == variant) & (rows["weights"] != "")])) is not None
    }
    return Depth(mlp, attention, "nats per token"), weights


def load_depth(folder: Path) -> Depth | None:
    """Published magnitudes, depth.csv, whose Transformer blocks are our layers.

    Raises:
        TableError: it is there and is something else.
    """
    rows = read_columns(folder / "depth.csv", _DEPTH, ("variant",), f"its columns are {', '.join(_DEPTH)}")
    if rows is None:
        return None
    names = ("output_rms", "gradient_norm")
    return Depth({name: _by_variant(rows, name, "transformer_block") for name in names}, {}, "")


def load_weights(folder: Path) -> dict[str, Weights]:
    """Published weights, depth_weights.csv, of the variants that have every source of every read.

    Raises:
        TableError: it is there and is something else.
    """
    path = folder / "depth_weights.csv"
    rows = read_columns(path, _WEIGHTS, ("variant", "before"), f"its columns are {', '.join(_WEIGHTS)}")
    if rows is None:
        return {}
    by_variant = {}
    for variant in rows["variant"].unique():
        own = rows[rows["variant"] == variant].sort_values("source")
        reads = {
            (kind, int(layer) - 1): own[(own["before"] == kind) & (own["layer"] == layer)]
            for kind in KINDS
            for layer in own["layer"].unique()
        }
        if all(len(read) and len(read) == read["source"].max() + 1 for read in reads.values()):
            by_variant[variant] = _matrices({key: read["weight"].tolist() for key, read in reads.items()})
    return by_variant


def _by_layer(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Those of MAGNITUDES that the rows of one kind of sublayer have."""
    rows = rows.assign(layer=rows["sublayer"] // len(KINDS))
    tables = {name: _by_variant(rows, name, "layer") for name in MAGNITUDES}
    return {name: table for name, table in tables.items() if not table.empty}


def _by_variant(rows: pd.DataFrame, name: str, place: str) -> pd.DataFrame:
    table = rows.dropna(subset=[name]).pivot_table(name, place, "variant", sort=False).sort_index()
    return table[sorted(table.columns, key=lambda variant: variant != BASELINE)]


def _weights_of(path: Path, rows: pd.DataFrame) -> Weights | None:
    if rows.empty:
        return None
    lists: dict[tuple[str, int], list[list[float]]] = {}
    try:
        for _, row in rows.iterrows():
            weights = [float(weight) for weight in json.loads(row["weights"])]
            lists.setdefault((row["kind"], int(row["sublayer"]) // 2), []).append(weights)
        return _matrices({read: np.mean(of_seeds, axis=0).tolist() for read, of_seeds in lists.items()})
    except (TypeError, ValueError) as error:
        raise TableError(
            f"{path} has weights that are no list of numbers ({error}): write it again with collect"
        ) from None


def _matrices(reads: dict[tuple[str, int], list[float]]) -> Weights:
    """One matrix a kind, from the weights of each (kind, Transformer layer from 0)."""
    shape = (max(layer for _, layer in reads) + 1, max(map(len, reads.values())))
    matrices = {kind: np.full(shape, np.nan) for kind in KINDS}
    for (kind, layer), weights in reads.items():
        matrices[kind][layer, : len(weights)] = weights
    return matrices
