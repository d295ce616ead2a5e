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
from dataclasses import asdict, dataclass
from pathlib import Path

from scaling.config import RunConfig
from scaling.errors import Busy, Diverged, OutOfMemory, ScalingError
from scaling.records import RunDirectory
from scaling.sweep.slots import Slot

POLL_SECONDS = 0.5

NOT_RETRIED = (ScalingError.exit_status, Diverged.exit_status)


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
            on_event: called with `started`, `finished`, `retried` or `failed` and the run, from any thread.
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
        with self._mutex:
            processes = list(self._processes)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def _serve(self, slot: Slot) -> None:
        while not self._stopped.is_set() and (job := self._take()):
            self._train(*job, slot)

    def _take(self) -> tuple[RunConfig, RunDirectory] | None:
        """The next run that nobody trains; waits while all that are left are trained by another sweep."""
        while not self._stopped.is_set():
            with self._mutex:
                self._pending = [(config, run) for config, run in self._pending if run.read_result() is None]
                if not self._pending:
                    return None
                for i, (_, run) in enumerate(self._pending):
                    if not run.is_locked():
                        return self._pending.pop(i)
            time.sleep(POLL_SECONDS)
        return None

    def _train(self, config: RunConfig, run: RunDirectory, slot: Slot) -> None:
        micro_batch, retries = config.micro_batch, config.execution.retries
        self.on_event("started", config)
        while not self._stopped.is_set():
            code = self._launch(config, run, slot, micro_batch)
            if code == 0:
                self.on_event("finished", config)
                return
            if self._stopped.is_set():
                return
            if code == Busy.exit_status:
                with self._mutex:
                    self._pending.append((config, run))
                return
            if code == OutOfMemory.exit_status and micro_batch % 2 == 0:
                micro_batch //= 2
            elif code in NOT_RETRIED or retries == 0:
                self.failures.append(Failure(run.name, _reason(run, code), run.log))
                self.on_event("failed", config)
                return
            else:
                retries -= 1
            self.on_event("retried", config)

    def _launch(self, config: RunConfig, run: RunDirectory, slot: Slot, micro_batch: int) -> int:
        run.write_config(asdict(config))
        command = [sys.executable, "-m", "scaling", "train", str(run.path / "config.yaml")]
        if micro_batch != config.micro_batch:
            command += ["--execution.micro_batch", str(micro_batch)]
        with open(run.log, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment},
                start_new_session=True,
            )
        with self._mutex:
            self._processes.add(process)
        if slot.cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, slot.cores)
        try:
            return process.wait()
        finally:
            with self._mutex:
                self._processes.discard(process)


def _reason(run: RunDirectory, code: int) -> str:
    status = run.read_status()
    if status["state"] in ("failed", "diverged"):
        return str(status.get("message", status["state"]))
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
