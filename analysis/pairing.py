"""Which runs may be compared: pairs of one size and seed, and what was left out, with the reason."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from itertools import product

import pandas as pd

from analysis.ledgers import COLUMN

BASELINE = "baseline"
MATCHED = ("data_hash", "tokens", "schedule", "batches_hash")
"""Columns in which the two runs of a pair must agree, where they are recorded."""

KINDS = {
    "duplicate": "row repeats another: dropped",
    "unfinished": "run not finished: dropped, and every pair it belongs to",
    "unpaired": "run without its counterpart: not used",
    "pair dropped": "one of the two runs did not finish",
    "pair refused": "the two runs were not trained alike",
    "unchecked": "pair used, but not everything about it is recorded",
    "unequal tuning": "pair used, but its arms were tuned differently",
    "unequal machines": "pair used, but the seconds ledger compares machines too",
    "records": "what the run's own files say",
    "rounded losses": "used, with the error of rounding in the interval",
}
_LOSSES = ("unfinished", "unpaired", "pair dropped", "pair refused")


@dataclass(frozen=True)
class Finding:
    """One thing that was left out or is worth knowing: its kind (a key of KINDS), what it is about, and why."""

    kind: str
    subject: str
    reason: str


@dataclass(frozen=True)
class Hygiene:
    """What became of every row of a table."""

    rows_read: int
    rows_finished: int
    """Without the duplicates."""
    pairs_used: int
    findings: tuple[Finding, ...]

    @property
    def losses(self) -> list[Finding]:
        """The findings that took something out of the estimate."""
        return [finding for finding in self.findings if finding.kind in _LOSSES]

    @property
    def counts(self) -> str:
        """How often each kind was found, unfinished runs by their status: "2 unfinished (1 diverged, 1 running)"."""
        texts = []
        for kind in KINDS:
            if found := self.of(kind):
                statuses = Counter(f.reason.partition(":")[0] for f in found) if kind == "unfinished" else {}
                by_status = ", ".join(f"{n} {status}" for status, n in statuses.items())
                number = "" if kind == "rounded losses" else f"{len(found)} "
                texts.append(f"{number}{kind}" + (f" ({by_status})" if by_status else ""))
        return ", ".join(texts)

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]


@dataclass(frozen=True)
class SizePair:
    """The two arms at one size: means over their common seeds of ln L and ln C."""

    size: str
    seeds: tuple[int, ...]
    ln_loss_baseline: float
    ln_loss_arm: float
    ln_compute_baseline: float
    ln_compute_arm: float

    @property
    def loss_baseline(self) -> float:
        """Loss of the baseline (nats per token), the geometric mean over seeds."""
        return math.exp(self.ln_loss_baseline)

    @property
    def loss_arm(self) -> float:
        """Loss of the arm (nats per token), the geometric mean over seeds."""
        return math.exp(self.ln_loss_arm)


def pair(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Finding]]:
    """Pair every arm's finished runs with the baseline's of the same size and seed.

    Args:
        frame: the rows of `Runs.table`.

    Returns:
        One row a usable pair, with the columns arm, size, seed, loss_baseline, loss_arm and, for each ledger,
        `<ledger>_baseline` and `<ledger>_arm` (NaN where not recorded); and what was found on the way.
    """
    findings = [
        Finding("unfinished", _name(row), (row["status"] or "no status") + (f": {row['note']}" if row["note"] else ""))
        for _, row in frame[frame["status"] != "finished"].iterrows()
    ]
    findings += [Finding("records", _name(row), note) for _, row in frame.iterrows() if (note := _records(row))]
    cells = _cells(frame)
    arms = [variant for variant in frame["variant"].unique() if variant not in ("", BASELINE)]
    places = list(dict.fromkeys((size, seed) for size, _, seed in cells))
    pairs = []
    for arm, (size, seed) in product(arms, places):
        base, other = cells.get((size, BASELINE, seed)), cells.get((size, arm, seed))
        subject = f"{arm}, size {size}, seed {seed}"
        if base is not None and other is not None:
            found = _compare(base, other, subject)
            findings += found
            if not any(finding.kind in _LOSSES for finding in found):
                pairs.append(_pair_row(base, other))
        elif base is not None:
            findings.append(Finding("unpaired", subject, f"{_name(base)} has no {arm} run"))
        elif other is not None:
            findings.append(Finding("unpaired", subject, f"{_name(other)} has no {BASELINE} run"))
    columns = ["arm", "size", "seed", "loss_baseline", "loss_arm"]
    columns += [f"{ledger}_{side}" for ledger in COLUMN for side in ("baseline", "arm")]
    return pd.DataFrame(pairs, columns=columns), findings


def size_pairs(pairs: pd.DataFrame, arm: str, ledger: str) -> tuple[SizePair, ...]:
    """The pairs of one arm in one ledger, averaged over seeds, in order of the baseline's compute."""
    rows = pairs[pairs["arm"] == arm].dropna(subset=[f"{ledger}_baseline", f"{ledger}_arm"])
    sizes = []
    for size, seeds in rows.groupby("size", sort=False):
        columns = ("loss_baseline", "loss_arm", f"{ledger}_baseline", f"{ledger}_arm")
        means = (float(seeds[column].map(math.log).mean()) for column in columns)
        sizes.append(SizePair(str(size), tuple(int(seed) for seed in sorted(seeds["seed"])), *means))
    return tuple(sorted(sizes, key=lambda p: p.ln_compute_baseline))


def size_points(pairs: pd.DataFrame, variant: str, ledger: str) -> pd.DataFrame:
    """ln C and ln L of one variant, averaged over seeds: every size of an arm's pairs, or of any pair for the baseline.

    Returns:
        Columns size, ln_compute, ln_loss; in order of compute.
    """
    side = "baseline" if variant == BASELINE else "arm"
    rows = pairs if variant == BASELINE else pairs[pairs["arm"] == variant]
    rows = rows.drop_duplicates(["size", "seed"]).dropna(subset=[f"{ledger}_{side}"])
    logs = pd.DataFrame(
        {
            "size": rows["size"],
            "ln_compute": rows[f"{ledger}_{side}"].map(math.log),
            "ln_loss": rows[f"loss_{side}"].map(math.log),
        }
    )
    return logs.groupby("size", sort=False, as_index=False).mean().sort_values("ln_compute", ignore_index=True)


def _cells(frame: pd.DataFrame) -> dict[tuple[str, str, int], pd.Series]:
    """The run of each (size, variant, seed): the finished one if there is one."""
    named = frame[(frame["size"] != "") & (frame["variant"] != "")]
    cells: dict[tuple[str, str, int], pd.Series] = {}
    for _, row in named.iterrows():
        key = (row["size"], row["variant"], row["seed"])
        if key not in cells or row["status"] == "finished":
            cells[key] = row
    return cells


def _compare(base: pd.Series, other: pd.Series, subject: str) -> list[Finding]:
    """Everything that speaks against a pair, or is worth knowing about it."""
    halves = [f"{_name(row)} is {row['status'] or 'without status'}" for row in (base, other) if not _finished(row)]
    if halves:
        return [Finding("pair dropped", subject, " and ".join(halves))]
    found = []
    for column in MATCHED:
        a, b = base[column], other[column]
        if _missing(a) != _missing(b):
            found.append(Finding("unchecked", subject, f"{column} is recorded for one of the two runs only"))
        elif not _missing(a) and a != b:
            found.append(Finding("pair refused", subject, f"{column} differs: {_both(a, b, other)}"))
    for column, kind in (("tuning", "unequal tuning"), ("machine", "unequal machines")):
        if base[column] != other[column]:
            found.append(Finding(kind, subject, _both(*_differences(base[column], other[column]), other)))
    return found


def _differences(a: str, b: str) -> tuple[str, str]:
    """Of two JSON objects only the entries that differ; other texts whole."""
    try:
        one, two = json.loads(a), json.loads(b)
        keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
    except (ValueError, AttributeError, TypeError):
        return a, b
    first, second = (", ".join(f"{key} {side.get(key, 'not given')}" for key in keys) for side in (one, two))
    return first, second


def _both(a: object, b: object, other: pd.Series) -> str:
    first, second = (f"{x:g}" if isinstance(x, float) else str(x or "not recorded") for x in (a, b))
    return f"{first} ({BASELINE}) and {second} ({other['variant']})"


def _pair_row(base: pd.Series, other: pd.Series) -> dict[str, object]:
    row = {"arm": other["variant"], "size": other["size"], "seed": other["seed"]}
    for side, run in (("baseline", base), ("arm", other)):
        row[f"loss_{side}"] = run["val_loss"]
        row |= {f"{ledger}_{side}": run[column] for ledger, column in COLUMN.items()}
    return row


def _records(row: pd.Series) -> str:
    """What a finished run's own files have to say of it."""
    counts = [
        f"{row[column]:.0f} rows of metrics.csv {what}"
        for column, what in (("superseded_rows", "trained again after a resume"), ("damaged_rows", "cut short"))
        if row[column] > 0
    ]
    note = [row["note"]] if row["note"] and row["status"] == "finished" else []
    return "; ".join(counts + note)


def _finished(row: pd.Series) -> bool:
    return bool(row["status"] == "finished")


def _name(row: pd.Series) -> str:
    return str(row["run"] or f"line {row['line']} ({row['variant']}, size {row['size']}, seed {row['seed']})")


def _missing(value: object) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))
