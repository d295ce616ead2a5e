"""Losses over compute, and over parameters and tokens: of a table of runs, or of a bare table of losses.

A bare table says nothing of arms: it has a loss (`val_loss` or `loss`) and parameters (`params` or `N`) with tokens
(`tokens` or `D`), or compute (`C`, FLOPs), which with one of the two gives the other by C = 6 N D. Where its rows are
measured optima, `N_sd` can say how well ln N is known.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.columns import check_printable
from analysis.errors import TableError
from analysis.pairing import BASELINE, Finding, size_points
from analysis.runs import Runs, find_table, renamed

ALL = "all rows"
"""The one arm of a bare table."""
NAMES = {"loss": ("val_loss", "loss"), "N": ("params", "N"), "D": ("tokens", "D"), "C": ("C",), "N_sd": ("N_sd",)}
"""The columns of a bare table; of two names for one thing the first that is there counts."""
FINISHED = ("finished", "")


@dataclass(frozen=True)
class Losses:
    """What the laws are fitted to."""

    path: Path
    sha256: str
    rows_read: int
    findings: tuple[Finding, ...]
    """What was left out of a bare table; a table of runs has its own account."""
    over_compute: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]
    """Ledger -> arm -> ln C (FLOPs or seconds) and ln loss, (n,) each, in order of compute."""
    over_size: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Arm -> parameters, tokens and losses, (n,) each: every finished run that has all three."""
    size_sd: np.ndarray | None = None
    """(n,) standard deviation of ln N in the rows of a bare table, where it says so."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our names of columns that were read from others, with the table's."""

    @property
    def lowest(self) -> float:
        """The lowest loss that a law over compute is fitted to."""
        return math.exp(min(ln_loss.min() for arms in self.over_compute.values() for _, ln_loss in arms.values()))


def is_bare(table: str | Path, columns: Mapping[str, str] | None = None) -> bool:
    """Whether a table has losses with their compute, or parameters and tokens, but no arms."""
    header = _read(find_table(Path(table)), columns)[1]
    found = {key for key, names in NAMES.items() if any(name in header for name in names)}
    return "variant" not in header and "loss" in found and ("C" in found or {"N", "D"} <= found)


def of_runs(runs: Runs) -> Losses:
    """The losses of a table of runs: over compute as sizes averaged over seeds, over N and D as single runs."""
    over_compute: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for ledger in runs.ledgers:
        points = {arm: size_points(runs.pairs, arm, ledger) for arm in (BASELINE, *runs.arms)}
        over_compute[ledger] = {
            arm: (p["ln_compute"].to_numpy(), p["ln_loss"].to_numpy()) for arm, p in points.items() if len(p)
        }
    finished = runs.table[runs.table["status"] == "finished"].dropna(subset=["params", "tokens"])
    over_size = {
        str(arm): (rows["params"].to_numpy(), rows["tokens"].to_numpy(), rows["val_loss"].to_numpy())
        for arm, rows in finished.groupby("variant", sort=False)
    }
    return Losses(runs.path, runs.sha256, runs.hygiene.rows_read, (), over_compute, over_size, columns=runs.columns)


def load_losses(table: str | Path, columns: Mapping[str, str] | None = None) -> Losses:
    """Read a bare table of losses.

    Rows whose status is not finished and exact copies are left out and named. Rows of one N and D with different
    losses are runs of their own.

    Args:
        table: the file, or the folder that holds it.
        columns: our names of columns with the table's own.

    Raises:
        TableError: a cell that should be a number above 0 is not; one line that names it.
    """
    path = find_table(Path(table))
    data, header, lines = _read(path, columns)
    ours = {key: next((name for name in names if name in header), "") for key, names in NAMES.items()}
    rows: dict[tuple[float, ...], int] = {}
    findings = []
    for line, cells in lines:
        if (status := cells.get("status", "")) not in FINISHED:
            findings.append(Finding("unfinished", f"line {line}", status))
            continue
        values = _completed({key: _number(path, line, name, cells.get(name, "")) for key, name in ours.items()})
        if values in rows:
            findings.append(Finding("duplicate", f"line {line}", f"repeats line {rows[values]}; dropped"))
        else:
            rows[values] = line
    if not rows:
        raise TableError(f"{path} has no finished rows: train some runs first")
    loss, size, tokens, compute, sd = np.array(list(rows)).T
    order = np.argsort(compute, kind="stable")
    ledger = "given" if ours["C"] else "6nd"
    over_size = {} if np.isnan(size).any() else {ALL: (size, tokens, loss)}
    over_compute = {ledger: {ALL: (np.log(compute[order]), np.log(loss[order]))}}
    size_sd = None if np.isnan(sd).any() else sd
    digest = hashlib.sha256(data).hexdigest()
    return Losses(path, digest, len(lines), tuple(findings), over_compute, over_size, size_sd, dict(columns or {}))


def _completed(values: dict[str, float]) -> tuple[float, ...]:
    """loss, N, D, C, N_sd of a row; of N, D and C any two give the third."""
    loss, size, tokens, compute = (values[key] for key in ("loss", "N", "D", "C"))
    if math.isnan(compute):
        compute = 6 * size * tokens
    elif math.isnan(tokens):
        tokens = compute / 6 / size
    elif math.isnan(size):
        size = compute / 6 / tokens
    return loss, size, tokens, compute, values["N_sd"]


def _number(path: Path, line: int, name: str, text: str) -> float:
    """The number of a cell; NaN where the table has no such column."""
    if not name:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise TableError(f"{path} line {line}: {name} is {text or 'empty'}; it is a finite number above 0: correct it")
    return value


def _read(path: Path, columns: Mapping[str, str] | None) -> tuple[bytes, list[str], list[tuple[int, dict[str, str]]]]:
    """The bytes of a table, its header, and its rows with their lines."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
        check_printable(path, text)
        reader = csv.reader(io.StringIO(text, newline=""))
        header = renamed(path, [name.strip() for name in next(reader, [])], columns or {}, also=sum(NAMES.values(), ()))
        rows = [
            (reader.line_num, dict(zip(header, map(str.strip, cells))))
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise TableError(f"{path} is not CSV in UTF-8: save the table as that") from None
    return data, header, rows
