"""The ledgers of compute as a table of runs holds them: columns, units, and which one leads."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from analysis.errors import TableError
from scaling.compute import LEDGERS, PFLOPS_DAY

COLUMN = {"model": "flops_model", "6nd": "flops_6nd", "paper": "flops_paper", "seconds": "seconds"}
"""Column of each ledger in runs.csv; the order is the order in which a ledger leads when none is asked for."""

SOURCES = (
    "flops_model, flops_6nd, flops_paper, seconds, compute_pfs_days (the paper's ledger), or params and tokens (6nd)"
)
"""The columns that can say what a run's compute was."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Unit:
    """`scale` of the ledger's own unit (FLOPs, seconds) in one of this unit."""

    scale: float
    label: str


def leading(present: Collection[str], asked: str | None = None) -> str:
    """The ledger of the headline: the one asked for, else the first present of model, 6nd, paper, seconds.

    Raises:
        TableError: the ledger asked for does not exist or has no column in the table.
    """
    if asked is None:
        return next(ledger for ledger in COLUMN if ledger in present)
    if asked not in LEDGERS:
        raise TableError(f"there is no ledger {asked!r}: the ledgers are {', '.join(COLUMN)}")
    if asked not in present:
        raise TableError(f"the table has no compute in ledger {asked!r}: it has {', '.join(present)}")
    return asked


def law_unit(ledger: str) -> Unit:
    """Unit of C in a stored law L = A C^-alpha: the paper's for FLOPs."""
    return Unit(3600.0, "device hours") if ledger == "seconds" else Unit(PFLOPS_DAY, "PFLOP/s-days")


def axis_unit(ledger: str, largest: float) -> Unit:
    """A unit in which the largest compute of a figure is a number that needs no exponent."""
    if ledger == "seconds":
        return next(
            (Unit(scale, label) for scale, label in ((3600.0, "hours"), (60.0, "minutes")) if largest >= 2 * scale),
            Unit(1.0, "seconds"),
        )
    if largest >= PFLOPS_DAY / 100:
        return Unit(PFLOPS_DAY, "PFLOP/s-days")
    power = 3 * math.floor(math.log10(largest) / 3)
    return Unit(10.0**power, f"{power_text(power)} FLOPs" if power > 0 else "FLOPs")


def power_text(power: int) -> str:
    """A power of ten as people write it: "10⁻⁵"."""
    return f"10{str(power).translate(_SUPERSCRIPT)}"
