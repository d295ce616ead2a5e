"""The local queue: one fresh process a run, on devices of its own; failures are retried and never stop the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scaling.config import RunConfig
from scaling.errors import Busy, Diverged, OutOfMemory, RecordError, ScalingError
from scaling.process import PARENT
from scaling.records import RunDirectory
from scaling.sweep.devices import Device, DevicePool, environment

POLL_SECONDS = 0.2
"""Time between two looks at the processes."""

NOT_RETRIED = (ScalingError.exit_status, Diverged.exit_status, OutOfMemory.exit_status)


@dataclass(frozen=True)
class Failure:
    """A run that did not finish."""

    run: str
    reason: str
    log: Path


@dataclass(eq=False)
class _Job:
    config: RunConfig
    run: RunDirectory
    tried: RunConfig
    """The same run, with a smaller micro-batch once memory has run out."""
    retries: int
    avoid: set[int] = field(default_factory=set)
    """Places of GPUs that it failed on for no known reason."""
    reason: str = "not started"
    """Why it has not finished."""
    devices: dict[int, Device] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    launched: float = 0.0


class LocalQueue:
    """Works through the runs of a plan that have no result yet, as long as somebody calls `advance`.

    Runs that need more devices go first, otherwise the plan's order holds; whoever fits starts. What one run leaves is
    enough for the next in line, which needs no more than it did, so smaller runs never keep a larger one waiting. A run
    that failed for no known reason is tried again on other GPUs where there are any, and waits for them if it must.
    """

    def __init__(
        self,
        runs: Sequence[RunConfig],
        devices: Sequence[Device],
        on_event: Callable[[str, RunConfig], None],
        say: Callable[[str], None] = print,
    ):
        """Set up.

        Args:
            runs: what to train; finished runs are skipped.
            devices: what they share; at least as many as any of them needs.
            on_event: called with `started`, `finished`, `waiting`, `retried`, `stopped` or `failed`, and the run.
            say: called with a line about a GPU that is given no run any more.
        """
        self.on_event, self.say = on_event, say
        self.failures: list[Failure] = []
        self.stopping = False
        self._pool = DevicePool(devices)
        self._running: list[_Job] = []
        self._waiting: list[_Job] = []
        for config in runs:
            self._wait(_Job(config, config.directory, config, config.execution.retries))

    def advance(self) -> bool:
        """Note which runs have ended, start those that fit; False once there is nothing left to wait for."""
        for job in list(self._running):
            assert job.process is not None
            code = job.process.poll()
            if code is not None:
                self._ended(job, code)
        kept: set[int] = set()
        for job in [] if self.stopping else list(self._waiting):
            needed = job.config.execution.devices
            places = self._pool.free(needed, job.avoid, kept)
            if len(places) == needed:
                self._consider(job, places)
            elif needed > self._pool.left:
                self._waiting.remove(job)
                if not _is_finished(job.run):
                    self._fail(job, f"{job.reason}: it needs {needed} of the {self._pool.left} GPUs that are left")
            elif job.avoid:  # what it waits for, nobody behind it gets
                kept.update(places)
        return bool(self._running or (self._waiting and not self.stopping))

    def stop(self) -> None:
        """Have every run finish its step, save and end; none is started any more."""
        self._signal_all(signal.SIGTERM)

    def kill(self) -> None:
        """End every run at once; each goes on from its checkpoint when it is started again."""
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        self.stopping = True
        for job in self._running:
            assert job.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, number)

    def _wait(self, job: _Job) -> None:
        self._waiting.append(job)
        self._waiting.sort(key=lambda waiting: -waiting.config.execution.devices)

    def _consider(self, job: _Job, places: Sequence[int]) -> None:
        """Start a run for which there are devices, unless it is finished, or trained by another sweep now."""
        if _is_finished(job.run):
            self._waiting.remove(job)
        elif not job.run.is_locked():
            self._waiting.remove(job)
            job.devices = self._pool.take(places)
            self._running.append(job)
            self.on_event("started", job.config)
            self._launch(job)

    def _launch(self, job: _Job) -> None:
        devices = list(job.devices.values())
        try:
            job.run.write_config(asdict(job.tried))
            job.launched = time.time()
            with open(job.run.log, "ab") as log:
                job.process = subprocess.Popen(
                    [sys.executable, "-m", "scaling", "train", str(job.run.path / "config.yaml")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment(devices), PARENT: str(os.getpid())},
                    start_new_session=True,
                )
        except OSError as error:  # of this run's files: the others go on
            self._release(job)
            self._fail(job, str(error))
            return
        if cores := {core for device in devices for core in device.cores}:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(job.process.pid, cores)

    def _ended(self, job: _Job, code: int) -> None:
        if code == 0:
            self._pool.succeeded(job.devices)
            self._release(job)
            self.on_event("finished", job.config)
        elif self.stopping:
            self._release(job)
            self.on_event("stopped", job.config)
        elif code == Busy.exit_status:
            self._release(job)
            self.on_event("waiting", job.config)
            self._wait(job)
        else:
            self._retry_or_fail(job, code)

    def _retry_or_fail(self, job: _Job, code: int) -> None:
        try:
            out_of_memory = _ran_out_of_memory(job, code)
            job.reason = _reason(job.run, code)
        except RecordError as error:
            self._release(job)
            self._fail(job, str(error))
            return
        smaller = job.tried.smaller_micro_batch if out_of_memory else None
        if smaller is not None:
            job.tried = replace(job.tried, execution=replace(job.tried.execution, micro_batch=smaller))
            self.on_event("retried", job.config)
            self._launch(job)
            return
        known = out_of_memory or code in NOT_RETRIED
        if not known:
            self._blame_devices(job)
        self._release(job)
        if known or job.retries == 0:
            self._fail(job, job.reason)
            return
        job.retries -= 1
        self.on_event("retried", job.config)
        self._wait(job)

    def _blame_devices(self, job: _Job) -> None:
        job.avoid.update(place for place, device in job.devices.items() if device.gpu)
        for gpu, before in self._pool.failed(job.devices, job.run.name).items():
            self.say(f"GPU {gpu} is set aside: two runs failed on it: {before}, {job.run.name} (log {job.run.log})")

    def _fail(self, job: _Job, reason: str) -> None:
        self.failures.append(Failure(job.run.name, reason, job.run.log))
        self.on_event("failed", job.config)

    def _release(self, job: _Job) -> None:
        self._running.remove(job)
        self._pool.give_back(job.devices)


def _is_finished(run: RunDirectory) -> bool:
    try:
        return run.read_result() is not None
    except RecordError:  # its own process will say what is wrong
        return False


def _ran_out_of_memory(job: _Job, code: int) -> bool:
    """By the exit status, or, where another device's process found out first, by what that one wrote down."""
    if code == OutOfMemory.exit_status:
        return True
    status = job.run.read_status()
    return status.get("error") == OutOfMemory.__name__ and status.get("updated", 0.0) >= job.launched


def _reason(run: RunDirectory, code: int) -> str:
    status = run.read_status()
    if status["state"] in ("failed", "diverged"):
        return str(status.get("message", status["state"]))
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
