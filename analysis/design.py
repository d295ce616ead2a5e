"""What a table of runs was laid out to show: a ladder of sizes, arms at one size, block sizes, or a grid of shapes."""

from __future__ import annotations

import re
from enum import Enum

import numpy as np
import pandas as pd

from analysis.pairing import BASELINE
from analysis.powerlaw import MIN_POINTS
from analysis.runs import Runs

FULL = "full"
"""The arm with one sublayer a block."""
_BLOCK_SIZE = re.compile(r"block_size_(\d+)")
_SHAPE = re.compile(r"d(\d+(?:\.\d+)?)-h(\d+(?:\.\d+)?)")


class Design(Enum):
    """The designs that have figures of their own."""

    LADDER = "sizes, each in two arms or more"
    ARMS = "three arms or more at one size"
    BLOCK_SIZES = "arms `block_size_<S>` at one size, S sublayers in a block; `full` is S = 1"
    SHAPES = "sizes `d<d_model / layers>-h<heads / layers>`, each in two arms or more"
    OTHER = "none of these"


def design(runs: Runs) -> Design:
    """The design of a table, by the names and the number of the sizes and arms of its pairs."""
    sizes, arms = runs.pairs["size"].unique(), runs.pairs["arm"].unique()
    if len(sizes) > 1 and all(map(_SHAPE.fullmatch, sizes)):
        return Design.SHAPES
    if len(sizes) == 1 and len(arms) > 1:
        named = all(arm == FULL or _BLOCK_SIZE.fullmatch(arm) for arm in arms)
        return Design.BLOCK_SIZES if named else Design.ARMS
    enough = len(sizes) and runs.pairs.groupby("arm")["size"].nunique().max() >= MIN_POINTS
    return Design.LADDER if enough else Design.OTHER


def arm_losses(runs: Runs) -> dict[str, float]:
    """Loss of every arm at one size, the baseline first (nats per token): means over the seeds of its pairs."""
    baseline = runs.pairs.drop_duplicates("seed")["loss_baseline"].mean()
    arms = runs.pairs.groupby("arm", sort=False)["loss_arm"].mean()
    return {BASELINE: float(baseline), **{str(arm): float(loss) for arm, loss in arms.items()}}


def block_sizes(runs: Runs) -> dict[int, float]:
    """Loss by block size in sublayers, ascending (nats per token)."""
    losses = arm_losses(runs)
    found = {int(named[1]): losses[arm] for arm in losses if (named := _BLOCK_SIZE.fullmatch(arm))}
    return dict(sorted((found | ({1: losses[FULL]} if FULL in losses else {})).items()))


def shape_grids(runs: Runs) -> dict[str, pd.DataFrame]:
    """Loss of each arm, the baseline first: one row a heads / layers, descending, one column a d_model / layers."""
    pairs = runs.pairs
    baseline = pairs.drop_duplicates(["size", "seed"]).assign(arm=BASELINE, loss_arm=lambda rows: rows["loss_baseline"])
    rows = pd.concat([baseline, pairs])
    rows[["width", "heads"]] = rows["size"].str.extract(_SHAPE).astype(float)
    grids = {}
    for arm, own in rows.groupby("arm", sort=False):
        grids[str(arm)] = own.pivot_table("loss_arm", "heads", "width").sort_index(ascending=False)
    return grids


def best_shape(grid: pd.DataFrame) -> tuple[float, float]:
    """The d_model / layers and the heads / layers of the lowest loss of a grid."""
    row, column = np.unravel_index(np.nanargmin(grid), grid.shape)
    return float(grid.columns[int(column)]), float(grid.index[int(row)])
