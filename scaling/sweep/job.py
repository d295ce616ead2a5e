"""What one job on a Slurm cluster does: train one run as the local queue would, on the devices it was given."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from submitit.helpers import DelayedSubmission

from scaling.config import RunConfig
from scaling.errors import RecordError, Stopped, SweepError
from scaling.loading import load
from scaling.records import RunDirectory
from scaling.sweep.devices import Device, visible_gpus
from scaling.sweep.queue import POLL_SECONDS, LocalQueue
from scaling.sweep.signals import Signals

TIME_IS_UP = signal.SIGUSR2
"""What submitit has Slurm send before the time limit."""


class TrainJob:
    """Stored by submitit, and called in the job.

    When the time is nearly up, the run is saved and the job goes back into the queue. On SIGTERM (preemption, or
    scancel) the run is saved and the job ends: whether it comes back is Slurm's to say.
    """

    def __init__(self, config: Path, patience: float):
        """Set up.

        Args:
            config: the run's config.yaml, seen from the folder that the job was submitted in.
            patience: seconds that the run may take to save when the time is up.
        """
        self.config, self.patience = config, patience

    def checkpoint(self) -> DelayedSubmission:
        """What the job does when it comes back; submitit asks."""
        return DelayedSubmission(self)

    def __call__(self) -> None:
        """Train; ends the process with a status that is not 0 unless the run has a result."""
        config = load(RunConfig, self.config)
        put_back = signal.getsignal(TIME_IS_UP)
        assert callable(put_back)
        # Slurm may send signals to every process of a job, and this one would end the training process
        signal.pthread_sigmask(signal.SIG_BLOCK, [TIME_IS_UP])
        asked: set[signal.Signals] = set()
        deadline = 0.0
        with Signals(TIME_IS_UP, signal.SIGTERM) as signals:
            queue = LocalQueue([config], allocated_devices(config), _say)
            while queue.advance():
                asked |= {*signals.received, *signal.sigpending()} & {TIME_IS_UP, signal.SIGTERM}  # type: ignore[arg-type]
                if asked and not queue.stopping:
                    print(
                        f"{', '.join(sorted(s.name for s in asked))}: the run finishes its step and saves", flush=True
                    )
                    deadline = time.monotonic() + self.patience
                    queue.stop()
                elif asked and time.monotonic() > deadline:
                    queue.kill()
                time.sleep(POLL_SECONDS)
        run = config.directory
        if asked and run.read_result() is None:
            if TIME_IS_UP in asked:
                note_pending(run)
                put_back(TIME_IS_UP, None)
            sys.exit(Stopped.exit_status)
        for failure in queue.failures:
            sys.exit(f"error: {failure.run}: {failure.reason}; log: {failure.log}")


def allocated_devices(config: RunConfig) -> list[Device]:
    """The GPUs that Slurm gave this job, or equal shares of its cores, which Slurm itself keeps apart.

    Raises:
        SweepError: there are fewer GPUs than the run needs.
    """
    execution = config.execution
    gpus = visible_gpus() if execution.accelerator != "cpu" else []
    if gpus or execution.accelerator == "cuda":
        if len(gpus) < execution.devices:
            raise SweepError(f"{config.run_name} needs {execution.devices} GPUs, and the job sees {len(gpus)}")
        return [Device(gpu=gpu) for gpu in gpus]
    threads = max(1, int(os.environ["SLURM_CPUS_PER_TASK"]) // execution.devices)
    return [Device(threads=threads)] * execution.devices


def note_pending(run: RunDirectory) -> None:
    """Write down that a run waits for its job, and how far it has come."""
    try:
        status = run.read_status()
    except RecordError:  # the run's own process will say what is wrong
        status = {}
    run.write_status("pending", **{k: status[k] for k in ("attempt", "step", "steps", "tokens") if k in status})


def _say(what: str, config: RunConfig) -> None:
    print(f"{what} {config.run_name}", flush=True)
