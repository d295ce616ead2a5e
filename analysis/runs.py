"""Load a table of runs, ours or from elsewhere: read the CSV, check every row, pair the arms."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.columns import check_printable
from analysis.errors import TableError
from analysis.ledgers import COLUMN, SOURCES
from analysis.loss_rounding import rounding_step, rounding_text
from analysis.pairing import BASELINE, Finding, Hygiene, pair
from analysis.powerlaw import MIN_POINTS
from scaling.compute import PFLOPS_DAY

NUMBERS = (
    *("val_loss", "train_loss", "params", "params_total", "tokens", "steps", "batch_tokens", "seq_len"),
    *(*COLUMN.values(), "compute_pfs_days", "superseded_rows", "damaged_rows"),
)
TEXTS = (
    *("run", "size", "variant", "status", "data", "data_hash", "batches_hash", "schedule", "tuning"),
    *("machine", "note"),
)
BESIDE = (
    *("curves.csv", "training.csv", "dynamics.csv", "depth.csv", "depth_weights.csv"),
    *("ablations.csv", "block_size.csv", "shape_grid.csv"),
)
"""What a results folder may hold beside its table of runs."""
_MAY_BE_ZERO = ("superseded_rows", "damaged_rows")
_NEEDED = {
    "size": "a name for each pair of shapes that are compared",
    "variant": f"the arm, one of them {BASELINE!r}",
    "val_loss": "the final validation loss in nats per token",
}


@dataclass(frozen=True)
class Runs:
    """A checked table of runs.

    `table` has one row a line of the file (columns: `line`, `seed`, and every name of NUMBERS and TEXTS, missing as NaN
    or ""); `pairs` has one row a pair of finished runs that may be compared (`pairing.pair` lists its columns).
    """

    path: Path
    sha256: str
    table: pd.DataFrame
    pairs: pd.DataFrame
    hygiene: Hygiene
    loss_step: float = 0.0
    """Step to which the finished runs' losses were rounded (nats per token), 0 if they were not."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our names of the columns that the file calls otherwise, with the file's names."""

    @property
    def arms(self) -> list[str]:
        """The arms that are compared with the baseline, in the order of the table."""
        return [variant for variant in self.table["variant"].unique() if variant not in ("", BASELINE)]

    @property
    def ledgers(self) -> list[str]:
        """The ledgers in which at least one pair has compute."""
        return [x for x in COLUMN if (self.pairs[f"{x}_baseline"].notna() & self.pairs[f"{x}_arm"].notna()).any()]


def load(table: str | Path, columns: Mapping[str, str] | None = None) -> Runs:
    """Read and check a table of runs that a multiplier can be estimated from: `read_runs`, then `check_ladder`."""
    runs = read_runs(table, columns)
    check_ladder(runs)
    return runs


def read_runs(table: str | Path, columns: Mapping[str, str] | None = None) -> Runs:
    """Read a table of runs and check every row.

    Needed are the columns size, variant, val_loss and some compute; seed (0) and status (finished) may be left out.
    A byte-order mark, CRLF, other columns and scientific notation are fine.

    Args:
        table: a CSV file, or a folder that holds runs.csv (or exactly one other table).
        columns: our name of a column -> the name that the file gives it.

    Raises:
        TableError: the table cannot be read or cannot be used; one line that names the column or the rows.
    """
    path = find_table(Path(table))
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TableError(f"{path} is not UTF-8 text: save the table as CSV in UTF-8") from None
    check_printable(path, text)
    rows = _rows(path, text, columns or {})
    frame, copies = _without_copies(path, pd.DataFrame([_checked(path, row) for row in rows]))
    _check_arms(path, frame)
    pairs, findings = pair(frame)
    finished = frame[frame["status"] == "finished"]
    step = rounding_step(finished["val_loss"])
    rounded = [Finding("rounded losses", "every finished run", rounding_text(step))] if step else []
    hygiene = Hygiene(len(rows), len(finished), len(pairs), (*copies, *findings, *rounded))
    return Runs(path, hashlib.sha256(data).hexdigest(), frame, pairs, hygiene, step, dict(columns or {}))


def check_ladder(runs: Runs) -> None:
    """Raise TableError unless some arm is paired with the baseline at enough sizes, with compute in one ledger."""
    path, hygiene = runs.path, runs.hygiene
    sizes = runs.pairs.groupby("arm")["size"].nunique()
    most = int(sizes.max()) if len(sizes) else 0
    if most < MIN_POINTS:
        lost = "; ".join(f"{f.subject}: {f.reason}" for f in hygiene.losses[:3])
        more = f" (and {len(hygiene.losses) - 3} more)" if len(hygiene.losses) > 3 else ""
        raise TableError(
            f"{path} has {most} paired sizes and a fit needs {MIN_POINTS}: train more sizes in both arms"
            + (f", or mend what was left out: {lost}{more}" if lost else "")
        )
    if not runs.ledgers:
        raise TableError(f"{path} has no pair with both runs' compute in one ledger: fill in one of {SOURCES}")


def find_table(table: Path) -> Path:
    """The file of a table that was given as a file or as its folder."""
    if table.is_dir():
        if (table / "runs.csv").is_file():
            return table / "runs.csv"
        others = [path for path in table.glob("*.csv") if path.name not in BESIDE]
        if len(others) == 1:
            return others[0]
        raise TableError(f"{table} holds no runs.csv: write it with `python -m analysis collect RUNS {table}`")
    if not table.is_file():
        raise TableError(f"{table} does not exist: give a table of runs (CSV) or a folder that holds runs.csv")
    return table


def _rows(path: Path, text: str, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows as text by column, each with its line; renames and checks the columns."""
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[dict[str, Any]] = []
    try:
        header = renamed(path, [name.strip() for name in next(reader, [])], columns)
        for values in reader:
            if not any(value.strip() for value in values):
                continue
            if len(values) != len(header):
                raise TableError(
                    f"{path} line {reader.line_num} has {len(values)} cells and the header has {len(header)}: "
                    "mend the line (a cell with a comma needs quotes)"
                )
            rows.append({"line": reader.line_num, **dict(zip(header, map(str.strip, values), strict=True))})
    except csv.Error as error:
        raise TableError(f"{path} line {reader.line_num} is not CSV ({error}): save the table as CSV again") from None
    _check_columns(path, header)
    if not rows:
        raise TableError(f"{path} has a header and no runs: train some, then collect them")
    return rows


def renamed(path: Path, header: list[str], columns: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """The header in our names. A column that already has one of the names asked for loses it.

    Args:
        path: of the table, for messages.
        header: names in the file.
        columns: our names of columns with the file's.
        also: further names that count as ours.

    Raises:
        TableError: a name that is none of ours, or a column that the file does not have.
    """
    known = (*_NEEDED, *NUMBERS, *(name for name in TEXTS if name not in _NEEDED), "seed", *also)
    known = tuple(dict.fromkeys(known))
    for ours, theirs in columns.items():
        if ours not in known:
            raise TableError(f"there is no column {ours!r} to be read from another: it can be {', '.join(known)}")
        if theirs not in header:
            raise TableError(
                f"{path} has no column {theirs!r} to read {ours} from; the columns are {', '.join(header) or 'none'}"
            )
    ours_by_theirs = {theirs: ours for ours, theirs in columns.items()}
    if len(ours_by_theirs) < len(columns):
        raise TableError(f"one column of {path} was given two names: {', '.join(columns.values())}")
    return [ours_by_theirs.get(name, f"{name} (not used)" if name in columns else name) for name in header]


def _check_columns(path: Path, header: list[str]) -> None:
    for name, meaning in _NEEDED.items():
        if name not in header:
            raise TableError(
                f"{path} has no column {name}: add it ({meaning}), or say which column holds it with "
                f"--columns.{name} NAME; the columns are {', '.join(header) or 'none'}"
            )
    for name in (*NUMBERS, *TEXTS, "seed"):
        if header.count(name) > 1:
            raise TableError(f"{path} has the column {name} twice: keep one")
    if not any(name in header for name in (*COLUMN.values(), "compute_pfs_days")) and not (
        "params" in header and "tokens" in header
    ):
        raise TableError(f"{path} has no compute: add one of the columns {SOURCES}")


def _checked(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """One row with typed values; compute is completed from params, tokens and compute_pfs_days."""
    where = f"{path} line {row['line']}"
    typed: dict[str, Any] = {"line": row["line"], **{name: row.get(name, "") for name in TEXTS}}
    typed["status"] = row.get("status", "finished")
    finished = typed["status"] == "finished"
    typed["seed"] = _seed(where, row.get("seed", ""))
    for name in NUMBERS:
        typed[name] = _number(where, name, row.get(name, ""), finished)
    if not finished:
        return typed
    for name in ("size", "variant"):
        if not typed[name]:
            raise TableError(f"{where}: {name} is empty; a finished run needs it to be paired")
    if math.isnan(typed["val_loss"]):
        raise TableError(
            f"{where}: val_loss is {row['val_loss'] or 'empty'}; a finished run has a loss: fill it in, or give "
            "the row another status, such as diverged"
        )
    steps, batch, tokens = (typed[name] for name in ("steps", "batch_tokens", "tokens"))
    if steps * batch > 0 and tokens > 0 and steps * batch != tokens:
        raise TableError(f"{where}: {steps:g} steps of {batch:g} tokens are not {tokens:g} tokens: correct the row")
    if math.isnan(typed["flops_6nd"]):
        typed["flops_6nd"] = 6 * typed["params"] * tokens
    if math.isnan(typed["flops_paper"]):
        typed["flops_paper"] = typed["compute_pfs_days"] * PFLOPS_DAY
    if all(math.isnan(typed[column]) for column in COLUMN.values()):
        raise TableError(f"{where}: a finished run has no compute; fill in one of {SOURCES}")
    return typed


def _seed(where: str, text: str) -> int:
    try:
        value = float(text or 0)
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise TableError(f"{where}: seed is {text}; give a whole number, or leave it empty")


def _number(where: str, name: str, text: str, finished: bool) -> float:
    """The number of a cell; NaN if it is empty, and for anything in a run that did not finish."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        value = math.inf
    if math.isnan(value) or (0 < value < math.inf) or (value == 0 and name in _MAY_BE_ZERO):
        return value
    if not finished:
        return math.nan
    kind = "loss" if name.endswith("_loss") else "number"
    raise TableError(
        f"{where}: {name} is {text}; a finished run's {kind} is a finite number above 0: correct it, or give the row "
        "another status, such as diverged"
    )


def _without_copies(path: Path, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Finding]]:
    """Drop rows that say the same again; two that contradict are an error."""
    findings = []
    copies = []
    finished = frame[frame["status"] == "finished"]
    for (size, variant, seed), rows in finished.groupby(["size", "variant", "seed"], sort=False):
        first = rows.iloc[0]
        same = ["val_loss", "tokens", *(column for ledger, column in COLUMN.items() if ledger != "seconds")]
        for index, row in rows.iloc[1:].iterrows():
            name = f"{variant}, size {size}, seed {seed}"
            if not first[same].equals(row[same]):
                losses = " and ".join(repr(float(each["val_loss"])) for each in (first, row))
                raise TableError(
                    f"{path} lines {first['line']} and {row['line']} are both {name}, with losses {losses}: "
                    "keep one, or give them different sizes or seeds"
                )
            copies.append(index)
            findings.append(Finding("duplicate", name, f"line {row['line']} repeats line {first['line']}; dropped"))
    return frame.drop(index=copies).reset_index(drop=True), findings


def _check_arms(path: Path, frame: pd.DataFrame) -> None:
    variants = [variant for variant in frame["variant"].unique() if variant]
    if BASELINE not in variants:
        raise TableError(
            f"{path} has no variant {BASELINE!r}, only {', '.join(variants) or 'unnamed ones'}: "
            f"give the arm that the others are compared with that name"
        )
    if len(variants) == 1:
        raise TableError(f"{path} has one arm only, {BASELINE!r}: a multiplier needs another arm at the same sizes")
