"""The local queue: one fresh process a run, one slot each; failures are retried and never stop the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scaling.config import RunConfig
from scaling.errors import Busy, Diverged, OutOfMemory, RecordError, ScalingError, Stopped
from scaling.process import PARENT
from scaling.records import RunDirectory
from scaling.sweep.slots import Slot

POLL_SECONDS = 0.5
STOP_SECONDS = 20.0
"""How long runs may take to end when asked to."""

NOT_RETRIED = (ScalingError.exit_status, Diverged.exit_status, OutOfMemory.exit_status)


@dataclass(frozen=True)
class Failure:
    """A run that did not finish."""

    run: str
    reason: str
    log: Path


class LocalQueue:
    """Works through the runs of a plan that have no result yet."""

    def __init__(self, runs: list[RunConfig], slots: list[Slot], on_event: Callable[[str, RunConfig], None]):
        """Set up.

        Args:
            runs: what to train; finished runs are skipped.
            slots: as many runs go at a time.
            on_event: called with `started`, `finished`, `waiting`, `retried` or `failed` and the run, from any thread.
        """
        self.slots, self.on_event = slots, on_event
        self.failures: list[Failure] = []
        self._pending = [(config, config.directory) for config in runs]
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._mutex = threading.Lock()
        self._stopped = threading.Event()

    def work(self) -> list[Failure]:
        """Train everything; returns the runs that did not finish, in order."""
        with ThreadPoolExecutor(len(self.slots)) as pool:
            futures = [pool.submit(self._serve, slot) for slot in self.slots]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self.stop()
                raise
        return sorted(self.failures, key=lambda failure: failure.run)

    def stop(self) -> None:
        """End every run at once; each goes on from its checkpoint when the sweep is started again."""
        self._stopped.set()
        self._signal_all(signal.SIGTERM)
        patience = time.monotonic() + STOP_SECONDS
        while self._processes and time.monotonic() < patience:
            time.sleep(POLL_SECONDS)
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        with self._mutex:
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def _serve(self, slot: Slot) -> None:
        while not self._stopped.is_set() and (job := self._take()):
            config, run = job
            try:
                self._train(config, run, slot)
            except (OSError, RecordError) as error:  # of this run's files: the others go on
                self._fail(config, run, str(error))

    def _take(self) -> tuple[RunConfig, RunDirectory] | None:
        """The next run that nobody trains; waits while all that are left are trained by another sweep."""
        while not self._stopped.is_set():
            with self._mutex:
                self._pending = [(config, run) for config, run in self._pending if not _is_finished(run)]
                if not self._pending:
                    return None
                for i, (_, run) in enumerate(self._pending):
                    if not run.is_locked():
                        return self._pending.pop(i)
            time.sleep(POLL_SECONDS)
        return None

    def _train(self, config: RunConfig, run: RunDirectory, slot: Slot) -> None:
        retries, tried = config.execution.retries, config
        self.on_event("started", config)
        while not self._stopped.is_set():
            launched = time.time()
            code = self._launch(tried, run, slot)
            if code == 0:
                self.on_event("finished", config)
                return
            if self._stopped.is_set():
                return
            if code == Busy.exit_status:
                with self._mutex:
                    self._pending.append((config, run))
                self.on_event("waiting", config)
                return
            smaller = tried.smaller_micro_batch
            if _ran_out_of_memory(run, code, launched) and smaller is not None:
                tried = replace(tried, execution=replace(tried.execution, micro_batch=smaller))
            elif code in NOT_RETRIED or retries == 0:
                self._fail(config, run, _reason(run, code))
                return
            else:
                retries -= 1
            self.on_event("retried", config)

    def _fail(self, config: RunConfig, run: RunDirectory, reason: str) -> None:
        self.failures.append(Failure(run.name, reason, run.log))
        self.on_event("failed", config)

    def _launch(self, config: RunConfig, run: RunDirectory, slot: Slot) -> int:
        run.write_config(asdict(config))
        command = [sys.executable, "-m", "scaling", "train", str(run.path / "config.yaml")]
        with open(run.log, "ab") as log, self._mutex:
            if self._stopped.is_set():
                return Stopped.exit_status
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment, PARENT: str(os.getpid())},
                start_new_session=True,
            )
            self._processes.add(process)
        if slot.cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, slot.cores)
        try:
            return process.wait()
        finally:
            with self._mutex:
                self._processes.discard(process)


def _is_finished(run: RunDirectory) -> bool:
    try:
        return run.read_result() is not None
    except RecordError:  # its own process will say what is wrong
        return False


def _ran_out_of_memory(run: RunDirectory, code: int, launched: float) -> bool:
    """By the exit status, or, where another device's process found out first, by what that one wrote down."""
    if code == OutOfMemory.exit_status:
        return True
    status = run.read_status()
    return status.get("error") == OutOfMemory.__name__ and status.get("updated", 0.0) >= launched


def _reason(run: RunDirectory, code: int) -> str:
    status = run.read_status()
    if status["state"] in ("failed", "diverged"):
        return str(status.get("message", status["state"]))
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
