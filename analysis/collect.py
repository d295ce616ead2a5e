"""Run directories to runs.csv, curves.csv and dynamics.csv: one row a run, whatever its state.

Compute is recounted from the recorded shape, never taken from the file, so that a changed formula reaches old runs; a
stored count that disagrees is noted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.errors import TableError
from scaling.compute import ledgers, non_embedding_parameters, parameters, shape_of_record
from scaling.records import RecordError, RunDirectory, find_runs

RUN_COLUMNS = (
    *("run", "variant", "size", "seed", "status", "val_loss", "train_loss", "params", "params_total"),
    *("tokens", "steps", "batch_tokens", "seq_len", "flops_model", "flops_6nd", "flops_paper", "seconds"),
    *("data", "data_hash", "batches_hash", "schedule", "tuning", "machine"),
    *("superseded_rows", "damaged_rows", "note"),
)
CURVE_COLUMNS = ("run", "variant", "size", "seed", "tokens", "train_loss", "val_loss")
DYNAMICS_COLUMNS = (
    *("run", "variant", "size", "seed", "tokens", "sublayer", "kind"),
    *("output_rms", "hidden_rms", "gradient_norm", "entropy", "embedding_share", "predecessor_share", "weights"),
)
DYNAMICS_STEPS = 5
"""Steps of a run in dynamics.csv, evenly apart from the first to the last: the whole series is in the run directory."""
_NAME = re.compile(r"(?P<variant>[^-]+)-(?P<size>.+)-s(?P<seed>\d+)-[^-]+")


@dataclass(frozen=True)
class Collected:
    """Rows of runs.csv, of curves.csv and of dynamics.csv; a missing value is None or absent."""

    runs: list[dict[str, Any]]
    curves: list[dict[str, Any]]
    dynamics: list[dict[str, Any]]

    @property
    def problems(self) -> list[str]:
        """One line a run that has something to say of itself: broken files, stale compute, rows left out."""
        lines = []
        for run in self.runs:
            notes = [run["note"]] if run.get("note") else []
            for column, what in (("superseded_rows", "trained again after a resume"), ("damaged_rows", "cut short")):
                if run.get(column):
                    notes.append(f"{run[column]} rows of metrics.csv {what}, left out")
            if notes:
                lines.append(f"{run['run']} ({run['status']}): {'; '.join(notes)}")
        return lines


def collect(folder: str | Path) -> Collected:
    """Read every run directory directly below a folder.

    A run whose files are broken becomes a row with status `failed` and a note; it does not stop the others.

    Raises:
        RecordError: the folder does not exist.
        TableError: it holds no run.
    """
    directories = find_runs(folder)
    if not directories:
        raise TableError(f"{folder} holds no run directories: give the folder of a sweep's runs, such as runs/demo")
    runs, curves, dynamics = [], [], []
    for directory in directories:
        row, curve = _read(directory)
        depths = _by_depth(row, directory)
        runs.append(row)
        identity = {key: row.get(key) for key in ("run", "variant", "size", "seed")}
        curves += [identity | point for point in curve]
        dynamics += [identity | depth for depth in depths]
    return Collected(runs, curves, dynamics)


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV in full precision; missing is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _read(directory: RunDirectory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of one run, and its points over training."""
    row: dict[str, Any] = {"run": directory.name, "status": "failed"}
    if match := _NAME.fullmatch(directory.name):
        row |= {"variant": match["variant"], "size": match["size"], "seed": int(match["seed"])}
    curve: list[dict[str, Any]] = []
    try:
        status = directory.read_status()
        run = directory.read_run()
        if run is None and status["state"] == "failed":
            return row | {"note": str(status.get("message", ""))}, curve
        if run is None and status["state"] != "pending":
            raise RecordError("run.json is missing: delete the run directory and train again")
        notes = [str(status["message"])] if status.get("message") else []
        if run is not None:
            notes += _describe(row, run)
            curve = _follow(row, directory)
        if status["state"] == "finished":
            _finish(row, directory)
        row["status"] = status["state"]
    except (RecordError, OSError) as error:
        notes = [str(error).replace(f"{directory.path}/", "")]
    except KeyError as error:
        notes = [f"the run's files have no {error}: delete the run directory and train again"]
    except (TypeError, ValueError, AttributeError) as error:
        notes = [f"the run's files do not fit this version ({error}): delete the run directory and train again"]
    row["note"] = " ".join("; ".join(notes).split())
    return row, curve


def _describe(row: dict[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Fill in what run.json says; returns what does not agree with a recount."""
    shape = shape_of_record(run["shape"])
    training = run["training"]
    counted = ledgers(shape)
    row |= {
        "variant": run["variant"],
        "size": run["size"],
        "seed": run["seed"],
        "params": non_embedding_parameters(shape),
        "params_total": sum(parameters(shape).values()),
        "tokens": training["tokens"],
        "steps": training["steps"],
        "batch_tokens": training["batch_tokens"],
        "seq_len": shape.seq_len,
        **{f"flops_{ledger}": per_token * training["tokens"] for ledger, per_token in counted.items()},
        "data": run["data"]["name"],
        "data_hash": run["data"]["hash"],
        "schedule": training["schedule"],
        "tuning": json.dumps(training["tuning"], sort_keys=True, separators=(",", ":")),
        "machine": _machine(run.get("attempts", [])),
    }
    return [
        f"run.json counts {stored:.9g} FLOPs per token in ledger {ledger}, the shape gives {counted[ledger]:.9g}: used"
        for ledger, stored in run.get("flops_per_token", {}).items()
        if ledger in counted and not math.isclose(stored, counted[ledger], rel_tol=1e-9)
    ]


def _follow(row: dict[str, Any], directory: RunDirectory) -> list[dict[str, Any]]:
    """Fill in what metrics.csv says; returns the points over training."""
    metrics = directory.read_metrics(row["batch_tokens"])
    row["superseded_rows"], row["damaged_rows"] = metrics.superseded, metrics.damaged
    row["train_loss"] = metrics.rows[-1]["train_loss"] if metrics.rows else None
    if any(point["seconds"] is not None for point in metrics.rows):
        row["seconds"] = metrics.device_seconds
    return [{key: point[key] for key in ("tokens", "train_loss", "val_loss")} for point in metrics.rows]


def _by_depth(row: dict[str, Any], directory: RunDirectory) -> list[dict[str, Any]]:
    """What dynamics.parquet says of a few steps; a file that cannot be read is noted, and the run's losses stay."""
    try:
        rows = directory.read_dynamics()
    except (RecordError, OSError) as error:
        row["note"] = "; ".join(filter(None, (row["note"], str(error).replace(f"{directory.path}/", ""))))
        return []
    steps = sorted({depth["step"] for depth in rows})
    last = len(steps) - 1
    kept = {steps[round(place * last / (DYNAMICS_STEPS - 1))] for place in range(DYNAMICS_STEPS)} if steps else set()
    return [{key: _six_digits(depth[key]) for key in DYNAMICS_COLUMNS[4:]} for depth in rows if depth["step"] in kept]


def _six_digits(value: Any) -> Any:
    """A measured number as a cell; a list of them as JSON."""
    if isinstance(value, list):
        return json.dumps([float(f"{number:.6g}") for number in value])
    return f"{value:.6g}" if isinstance(value, float) else value


def _finish(row: dict[str, Any], directory: RunDirectory) -> None:
    """Fill in what result.json says, and check that it belongs to this run."""
    result = directory.read_result()
    if result is None:
        raise RecordError("result.json is missing: train again")
    for key in ("run", "tokens", "data_hash"):
        if result[key] != row[key]:
            raise RecordError(f"result.json has {key} {result[key]}, this run has {row[key]}: it is another run's file")
    row |= {key: result[key] for key in ("val_loss", "batches_hash")}


def _machine(attempts: list[Mapping[str, Any]]) -> str:
    """The machines a run was trained on, each once."""
    named = (attempt.get("machine") or "" for attempt in attempts)
    texts = (", ".join(f"{k} {v}" for k, v in m.items()) if isinstance(m, Mapping) else str(m) for m in named)
    return "; ".join(dict.fromkeys(text for text in texts if text))
