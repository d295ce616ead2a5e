"""Why a run ended before the end of its schedule: as an error with a remedy, and in its status."""

from __future__ import annotations

import contextlib
import pickle
import signal
from collections.abc import Iterator

from scaling.config import RunConfig
from scaling.errors import (
    CheckpointError,
    Diverged,
    OutOfMemory,
    ProcessLost,
    RecordError,
    ScalingError,
    Stopped,
    TrainingError,
)
from scaling.process import is_first_process
from scaling.records import RunDirectory
from scaling.training.stopping import StopNow

NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED")  # CPU, CUDA, C++, cuBLAS and cuDNN
NO_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "gloo", "TCPStore")


@contextlib.contextmanager
def failures_recorded(run: RunDirectory, config: RunConfig) -> Iterator[None]:
    """Write why a run stopped into its status, and turn what a user can mend into a ScalingError."""
    try:
        yield
    except (Exception, StopNow) as error:
        problem = _as_problem(error, run, config)
        if problem is None:
            raise
        record(run, problem)
        raise problem from None


def record(run: RunDirectory, problem: ScalingError) -> None:
    """Write into the status why the run ended; the first process does, for all of them."""
    if not is_first_process():
        return
    state = "diverged" if isinstance(problem, Diverged) else "stopped" if isinstance(problem, Stopped) else "failed"
    with contextlib.suppress(OSError, RecordError):
        reached = {k: v for k, v in run.read_status().items() if k in ("attempt", "step", "steps", "tokens")}
        run.write_status(state, **reached, message=str(problem), error=type(problem).__name__)


def process_lost(run: RunDirectory, config: RunConfig, number: int, status: int) -> ScalingError:
    """What the loss of process `number` means, by its exit status (negative for a signal)."""
    if status == OutOfMemory.exit_status:
        return _out_of_memory(run, config)
    if status == Stopped.exit_status:
        return _stopped(run)
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status} (see above)"
    return ProcessLost(
        f"process {number} of the {config.execution.devices} of {run.name} {how}: the same command goes on from the "
        "last checkpoint",
        max(status, 1),
    )


def _as_problem(error: BaseException, run: RunDirectory, config: RunConfig) -> ScalingError | None:
    """The error as one that a user can mend; None where it is a fault of the program."""
    if isinstance(error, ScalingError):
        return error
    if isinstance(error, StopNow):
        return _stopped(run)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _says(error, NO_MEMORY)):
        return _out_of_memory(run, config)
    if isinstance(error, OSError):
        what = f"{error.strerror or error}: {error.filename}" if error.filename else f"{error.strerror or error}"
        return TrainingError(
            f"{run.name} cannot read or write its files ({what}): free space or permit access, "
            "and the same command goes on from the last checkpoint"
        )
    if isinstance(error, pickle.UnpicklingError):
        return CheckpointError(
            f"a checkpoint of {run.path} holds more than tensors and plain values, and was not opened: "
            "it is not one of ours; delete it, or the run directory"
        )
    if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in str(error):
        return CheckpointError(
            f"{run.last_checkpoint} is of another model than the code builds now: "
            "bring the code back, or delete the run directory"
        )
    if isinstance(error, RuntimeError) and config.execution.devices > 1 and _says(error, NO_CONNECTION):
        return ProcessLost(
            f"a process of {run.name} lost its connection to the others: the same command goes on from the last "
            "checkpoint",
            1,
        )
    return None


def _says(error: BaseException, phrases: tuple[str, ...]) -> bool:
    return any(phrase in str(error) for phrase in phrases)


def _stopped(run: RunDirectory) -> Stopped:
    goes_on = "goes on from its last checkpoint" if run.last_checkpoint.exists() else "starts it again"
    return Stopped(f"{run.name} was stopped: the same command {goes_on}")


def _out_of_memory(run: RunDirectory, config: RunConfig) -> OutOfMemory:
    smaller = config.smaller_micro_batch
    said = f"{run.name} does not fit in memory with {config.micro_batch} sequences a forward pass"
    if smaller is None:
        return OutOfMemory(f"{said}: take a smaller model or sequence, or a device with more memory")
    return OutOfMemory(f"{said}: pass --execution.micro_batch {smaller}; the result is the same")
