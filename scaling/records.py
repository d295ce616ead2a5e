"""What a run directory holds. The only writer of those files, and what reads them back; needs no torch.

    config.yaml    the run's whole configuration
    run.json       identity, shape, parameters, FLOPs per token, data fingerprint; versions and machine per attempt
    metrics.csv    append-only rows, each with its attempt
    dynamics.parquet  magnitudes, gradients and depth weights of every sublayer, where they are asked for
    status.json    where the run is; written whole, then renamed
    last.ckpt      newest checkpoint (previous.ckpt: the one before)
    result.json    only at the end of the schedule
    log.txt        what the process printed, where a sweep started it
    lock           held (flock) by the process that trains the run

`results/README.md` is the dictionary of every field.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml

from scaling.dynamics_table import decode, encode, last_attempts
from scaling.errors import RecordError
from scaling.record_values import CONTROL_CHARACTERS, STATES, problem_of

FORMAT = 1
METRICS = (
    "attempt", "step", "tokens", "train_loss", "val_loss", "learning_rate", "grad_norm", "expert_imbalance", "seconds",
)  # fmt: skip
_WHOLE = ("attempt", "step", "tokens")
LOCK_ATTEMPTS, LOCK_PAUSE = 20, 0.05  # tries and seconds
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""What a file system without locks answers, for example Lustre mounted without them."""
HEARTBEAT_SECONDS = 10.0
"""A run that trains rewrites its status at least this often."""
HEARTBEATS_MISSED = 6
"""As many in a row, and a process of another host, whose lock may not be seen from here, counts as dead."""


@dataclass(frozen=True)
class Metrics:
    """Rows of metrics.csv, one per `tokens` (the last attempt's), in order of tokens; missing values are None."""

    rows: list[dict[str, Any]]
    superseded: int
    """Rows of earlier attempts that a resumed run went through again."""
    damaged: int
    """Rows cut short by a killed process."""

    @property
    def device_seconds(self) -> float:
        """Seconds of training steps, validation and loading from disk left out."""
        return math.fsum(row["seconds"] or 0.0 for row in self.rows)


class RunDirectory:
    """The files of one run, by what they mean."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def name(self) -> str:
        """`<variant>-<size>-s<seed>-<hash>`."""
        return self.path.name

    @property
    def last_checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.path / "last.ckpt"

    @property
    def previous_checkpoint(self) -> Path:
        """The checkpoint before the newest."""
        return self.path / "previous.ckpt"

    @property
    def log(self) -> Path:
        """What the process printed, where a sweep started it."""
        return self.path / "log.txt"

    # --- writing

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.yaml whole."""
        self._replace("config.yaml", yaml.safe_dump(config, sort_keys=False))

    def write_run(self, run: dict[str, Any]) -> None:
        """Write run.json whole."""
        self._replace("run.json", _dump({"format": FORMAT, **run}))

    def write_status(self, state: str, **fields: Any) -> None:
        """Write status.json whole: the state, the time, the process, and `fields` (step, tokens, message, ...)."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is not one of {STATES}")
        status = {"state": state, "updated": time.time(), "host": socket.gethostname(), "pid": os.getpid(), **fields}
        self._replace("status.json", _dump(status))

    def report(self) -> Report:
        """A context in which the run is `running`, for the process that trains it."""
        return Report(self)

    def write_result(self, result: dict[str, Any]) -> None:
        """Write result.json whole. Equal runs have equal bytes, so nothing measured in seconds belongs here."""
        self._replace("result.json", _dump(result))

    def open_metrics(self, attempt: int) -> MetricsWriter:
        """Open metrics.csv for appending rows of one attempt."""
        return MetricsWriter(self.path / "metrics.csv", attempt)

    def append_dynamics(self, rows: list[dict[str, Any]]) -> None:
        """Write dynamics.parquet whole, with rows of `DYNAMICS` after those it has; a damaged file is set aside."""
        path = self.path / "dynamics.parquet"
        try:
            content = encode(rows, after=path.read_bytes() if path.exists() else None)
        except RecordError:
            os.replace(path, path.with_suffix(".damaged"))
            content = encode(rows)
        self._replace(path.name, content)

    def _replace(self, name: str, content: str | bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            with open(temporary, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    # --- reading

    def read_config(self) -> dict[str, Any]:
        """The run's configuration as plain types.

        Raises:
            RecordError: the file is missing or damaged.
        """
        path = self.path / "config.yaml"
        try:
            value = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecordError(f"{path} is missing: the run never started, or this is not a run directory") from None
        except (yaml.YAMLError, UnicodeDecodeError):
            raise RecordError(f"{path} is not YAML: restore it, or delete the run directory and train again") from None
        if not isinstance(value, dict):
            raise RecordError(f"{path} holds no settings: restore it, or delete the run directory and train again")
        return value

    def read_run(self) -> dict[str, Any] | None:
        """run.json, or None if the run never started."""
        return self._read("run.json")

    def read_result(self) -> dict[str, Any] | None:
        """result.json, or None if the run has not reached the end of its schedule."""
        return self._read("result.json")

    def read_status(self) -> dict[str, Any]:
        """status.json with the state that holds now.

        A run with a result is `finished`, whatever its process could still write, and none without is; one whose
        process died is `lost`, never `running`. On another host's word alone it runs while its heartbeat is fresh,
        because not every shared folder shares locks.
        """
        status = self._read("status.json") or {"state": "pending"}
        if (self.path / "result.json").exists():
            status["state"] = "finished"
        elif status["state"] in ("running", "finished") and not (self.is_locked() or _beats_elsewhere(status)):
            status["state"] = "lost"
        return status

    def read_metrics(self, batch_tokens: int | None = None) -> Metrics:
        """metrics.csv without the rows that a later attempt went through again.

        Args:
            batch_tokens: if given, tokens = step x batch_tokens is checked.

        Raises:
            RecordError: a header that is not ours, or rows whose tokens and steps contradict.
        """
        path = self.path / "metrics.csv"
        if not path.exists():
            return Metrics([], 0, 0)
        kept: dict[int, dict[str, Any]] = {}
        read = damaged = 0
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            if ",".join(METRICS).startswith(",".join(header)) and tuple(header) != METRICS:
                return Metrics([], 0, damaged=1)  # cut short within the header
            if tuple(header) != METRICS:
                raise RecordError(f"{path} has columns {header}, not {list(METRICS)}: it is not a metrics.csv of ours")
            for values in lines:
                row = _metrics_row(values)
                if row is None:
                    damaged += 1
                    continue
                if batch_tokens is not None and row["tokens"] != row["step"] * batch_tokens:
                    raise RecordError(
                        f"{path} has {row['tokens']} tokens at step {row['step']}, but a step is {batch_tokens}: "
                        "the rows belong to another run; delete the run directory and train again"
                    )
                read += 1
                earlier = kept.get(row["tokens"])
                if earlier is None or row["attempt"] >= earlier["attempt"]:
                    kept[row["tokens"]] = row
        return Metrics([kept[t] for t in sorted(kept)], read - len(kept), damaged)

    def read_dynamics(self) -> list[dict[str, Any]]:
        """The last attempt's row of dynamics.parquet for every step and sublayer, in their order; none if it is off.

        Raises:
            RecordError: the file is damaged or not ours.
        """
        path = self.path / "dynamics.parquet"
        try:
            return last_attempts(decode(path.read_bytes())) if path.exists() else []
        except RecordError as error:
            raise RecordError(f"{path} {error}: delete it; the run and its losses do not need it") from None

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise RecordError(f"{path} is not JSON: delete it, and the run goes on from its checkpoint") from None
        if not isinstance(value, dict):
            raise RecordError(f"{path} holds no object: delete it, and the run goes on from its checkpoint")
        if problem := problem_of(name, value):
            raise RecordError(f"{path} holds {problem}, which no run writes: delete it, or the run directory")
        return value

    # --- one process a run

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the run for this process; yields False if another process holds it.

        Raises:
            RecordError: its file system has no locks.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "w") as file:
            for _ in range(LOCK_ATTEMPTS):  # somebody who only looks (is_locked) holds it for an instant
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_PAUSE)
                    continue
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    raise RecordError(
                        f"{self.path} is on a file system that has no locks: choose another execution.runs_folder"
                    ) from None
                yield True
                return
            yield False

    def is_locked(self) -> bool:
        """Whether a process is training this run now; by its heartbeat where the file system has no locks."""
        try:
            file = open(self.path / "lock")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                return self._beats()
        return False

    def _beats(self) -> bool:
        try:
            status = self._read("status.json") or {}
        except RecordError:  # its own process will say what is wrong
            return False
        return status.get("state") == "running" and _is_fresh(status)


class Report:
    """What status.json says of a run in training: the state `running`, and again and again that its process lives.

    On leaving, it says no more, so that a final state stays.
    """

    def __init__(self, run: RunDirectory):
        self.run = run
        self._fields: dict[str, Any] = {}
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Report:
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say no more; what is being written is whole when this returns."""
        self._over.set()
        with self._mutex:
            pass

    def say(self, **fields: Any) -> None:
        """Write `fields` (step, tokens, message, ...) now, and at every heartbeat until there are others.

        Raises:
            OSError: the disk is full or read-only.
        """
        with self._mutex:
            self._fields = fields
            self.run.write_status("running", **fields)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_SECONDS):
            with self._mutex, contextlib.suppress(OSError):  # the run itself will meet a full disk, and say so
                if self._fields and not self._over.is_set():
                    self.run.write_status("running", **self._fields)


class MetricsWriter:
    """Appends rows to metrics.csv; a line that a killed process left unfinished is closed first."""

    def __init__(self, path: Path, attempt: int):
        self.attempt = attempt
        self._file: TextIO = open(path, "a+", newline="", encoding="utf-8", errors="replace")
        self._csv = csv.DictWriter(self._file, METRICS, lineterminator="\n")
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if len(lines) < 2 and not (lines and lines[0].endswith("\n")):
            self._file.truncate(0)
            self._csv.writeheader()
        elif not lines[-1].endswith("\n"):
            self._file.write("\n")
        self._file.flush()

    def append(self, **values: float | int | None) -> None:
        """Write one row: any of METRICS but `attempt`; what is not given or not finite is left empty."""
        row: dict[str, Any] = {"attempt": self.attempt}
        for key, value in values.items():
            finite = value is not None and math.isfinite(value)
            row[key] = (value if key in _WHOLE else f"{value:.9g}") if finite else ""
        self._csv.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def find_runs(folder: str | Path) -> list[RunDirectory]:
    """The run directories directly below a folder, by name.

    Raises:
        RecordError: the folder does not exist, or a run's name has control characters.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder} is not a folder: give the folder of a sweep's runs, for example runs/demo")
    runs = [RunDirectory(p) for p in sorted(folder.iterdir()) if (p / "config.yaml").is_file()]
    for run in runs:
        if CONTROL_CHARACTERS.search(run.name):
            raise RecordError(f"{folder} holds {run.name!r}, a name with control characters: rename or remove it")
    return runs


def _beats_elsewhere(status: dict[str, Any]) -> bool:
    """Whether a process of another host wrote this status a short while ago."""
    return status.get("host") != socket.gethostname() and _is_fresh(status)


def _is_fresh(status: dict[str, Any]) -> bool:
    return time.time() - status.get("updated", 0.0) < HEARTBEATS_MISSED * HEARTBEAT_SECONDS


def _metrics_row(values: list[str]) -> dict[str, Any] | None:
    if len(values) != len(METRICS):
        return None
    try:
        return {
            key: int(text) if key in _WHOLE else (float(text) if text else None)
            for key, text in zip(METRICS, values, strict=True)
        }
    except ValueError:
        return None


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
