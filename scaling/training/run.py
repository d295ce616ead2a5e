"""Train one run to the end of its schedule, from its start or from its newest usable checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

from scaling.compute import forward_flops, ledgers, parameters
from scaling.config import ExecutionConfig, RunConfig, digest
from scaling.data.corpus import check_tokens
from scaling.data.shards import load_index
from scaling.errors import (
    Busy,
    CheckpointError,
    Diverged,
    OutOfMemory,
    RecordError,
    ScalingError,
    Stopped,
    TrainingError,
)
from scaling.records import RunDirectory
from scaling.training.checkpoint import RotatingCheckpoints, usable_checkpoint
from scaling.training.datamodule import TokenData
from scaling.training.environment import is_first_process, machine, versions
from scaling.training.module import TrainingModule
from scaling.training.progress import ProgressDisplay
from scaling.training.recorder import Recorder


def train(config: RunConfig, console: Console) -> dict[str, Any]:
    """Train a run and return its result; a finished run is left as it is.

    Raises:
        Busy: another process trains it.
        OutOfMemory: the micro-batch does not fit.
        Diverged: a loss or gradient was not finite.
        ScalingError: anything else a user can mend; what was reached stays on disk.
    """
    run = config.directory
    with run.lock() if is_first_process() else contextlib.nullcontext(True) as held:
        if not held:
            raise Busy(f"{run.name} is being trained by another process: wait for it, or stop it first")
        result = run.read_result()
        if result is not None:
            check_tokens(run, load_index(config.data, config.execution.data_folder))
            return result
        with _failures_recorded(run, config):
            return _train(run, config, console)


def _train(run: RunDirectory, config: RunConfig, console: Console) -> dict[str, Any]:
    _quieten()
    data = TokenData(config)
    checkpoint, damaged = usable_checkpoint(run)
    message = _how_it_goes_on(checkpoint, damaged)
    if message:
        console.print(message, highlight=False, soft_wrap=True)
    attempt = _record_attempt(run, config, data, checkpoint)

    module = TrainingModule(config)
    if config.execution.compile:
        module.model.compile(dynamic=False)
    recorder = Recorder(run, config, data, attempt, message)
    trainer = _trainer(run, config, [recorder, ProgressDisplay(config, recorder, console)])
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as end:  # what Lightning makes of Ctrl-C
        if end.code == 1:
            raise Stopped(_stopped(run)) from None
        raise

    result = {
        "run": run.name,
        "steps": config.steps,
        "tokens": config.tokens,
        "val_loss": recorder.progress.val_loss,
        "val_tokens": config.train.validation_tokens,
        "data_hash": data.corpus.index.hash,
        "batches_hash": recorder.progress.batches_hash,
        "weights_hash": weights_hash(module.model),
    }
    if trainer.is_global_zero:
        run.write_result(result)
        run.write_status(
            "finished",
            attempt=attempt,
            step=config.steps,
            steps=config.steps,
            tokens=config.tokens,
            message=message,
        )
    return result


def _trainer(run: RunDirectory, config: RunConfig, callbacks: list[pl.Callback]) -> pl.Trainer:
    execution = config.execution
    logger: Any = False
    if execution.tensorboard:
        from lightning.pytorch.loggers import TensorBoardLogger

        try:
            logger = TensorBoardLogger(run.path, name="tensorboard", version="")
        except ModuleNotFoundError:
            raise TrainingError(
                "execution.tensorboard needs TensorBoard: pip install 'attnres-scaling[tensorboard]'"
            ) from None
    _check_devices(execution)
    accelerator = {"cuda": "gpu"}.get(execution.accelerator, execution.accelerator)
    return pl.Trainer(
        accelerator=accelerator,
        devices=execution.devices,
        max_steps=config.steps,
        max_epochs=-1,
        accumulate_grad_batches=config.batch_sequences // (config.micro_batch * execution.devices),
        precision="bf16-mixed" if config.train.precision == "bf16" else "32-true",
        logger=logger,
        callbacks=callbacks,
        plugins=[RotatingCheckpoints(run), LightningEnvironment()],  # one node a run, also within a Slurm job
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=run.path,
    )


def _check_devices(execution: ExecutionConfig) -> None:
    """Raise TrainingError where the machine lacks what the settings ask for."""
    gpus = torch.cuda.device_count()
    if execution.accelerator == "cuda" and not gpus:
        raise TrainingError("execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto")
    if execution.accelerator != "cpu" and 0 < gpus < execution.devices:
        raise TrainingError(f"execution.devices is {execution.devices}, but torch sees {gpus} GPUs: lower it")
    compilers = (os.environ.get("CXX", "g++"), "g++", "clang++", "c++")
    if execution.compile and not any(map(shutil.which, compilers)):
        raise TrainingError(
            "execution.compile needs a C++ compiler, and there is none: install g++, or set it to false"
        )


def _record_attempt(run: RunDirectory, config: RunConfig, data: TokenData, checkpoint: Path | None) -> int:
    """Write config.yaml and run.json; returns the number of this attempt.

    Raises:
        CheckpointError: the directory's run was trained on other tokens.
    """
    before = run.read_run() or {}
    check_tokens(run, data.corpus.index)
    attempts = before.get("attempts", [])
    attempt = len(attempts) + 1
    if not is_first_process():
        return attempt
    entry = {
        "attempt": attempt,
        "from": checkpoint.name if checkpoint else "start",
        "micro_batch": config.micro_batch,
        "devices": config.execution.devices,
        "compile": config.execution.compile,
        "versions": versions(),
        "machine": machine(),
    }
    shape = config.shape
    run.write_config(asdict(config))
    run.write_run(
        {
            "run": run.name,
            "variant": config.variant,
            "size": config.model.name,
            "seed": config.seed,
            "shape": asdict(shape),
            "parameters": parameters(shape),
            "flops_per_token": ledgers(shape),
            "forward_flops": forward_flops(shape),
            "training": {
                "tokens": config.tokens,
                "steps": config.steps,
                "batch_tokens": config.train.batch_tokens,
                "schedule": digest({**config.train.schedule_identity(), "steps": config.steps}),
                "tuning": config.train.tuning(),
            },
            "data": {
                "name": config.data.name,
                "hash": data.corpus.index.hash,
                "train_tokens": data.corpus.index.tokens("train"),
                "validation_tokens": config.train.validation_tokens,
            },
            "attempts": [*attempts, entry],
        }
    )
    return attempt


def _stopped(run: RunDirectory) -> str:
    return f"{run.name} was stopped: the same command goes on from its last checkpoint"


def _how_it_goes_on(checkpoint: Path | None, damaged: list[str]) -> str:
    start = f"the run goes on from {checkpoint.name}" if checkpoint else "the run starts from its beginning"
    return f"{' and '.join(damaged)} damaged and passed over: {start}" if damaged else ""


@contextlib.contextmanager
def _failures_recorded(run: RunDirectory, config: RunConfig) -> Iterator[None]:
    """Write why a run stopped into its status, and turn what a user can mend into a ScalingError."""
    state, raised = "failed", ScalingError()
    try:
        yield
        return
    except Diverged as error:
        state, raised = "diverged", error
    except ScalingError as error:
        raised = error
    except OSError as error:
        what = f"{error.strerror or error}: {error.filename}" if error.filename else f"{error.strerror or error}"
        raised = TrainingError(
            f"{run.name} cannot read or write its files ({what}): free space or permit access, "
            "and the same command goes on from the last checkpoint"
        )
    except SIGTERMException:
        raise Stopped(_stopped(run)) from None
    except RuntimeError as error:
        if _is_out_of_memory(error):
            raised = OutOfMemory(_remedy_for_memory(run, config))
        elif "Error(s) in loading state_dict" in str(error):
            raised = CheckpointError(
                f"{run.last_checkpoint} is of another model than the code builds now: "
                "bring the code back, or delete the run directory"
            )
        else:
            raise
    if is_first_process() or isinstance(raised, OutOfMemory):
        with contextlib.suppress(OSError, RecordError):
            reached = {k: v for k, v in run.read_status().items() if k in ("attempt", "step", "steps", "tokens")}
            run.write_status(state, **reached, message=str(raised), error=type(raised).__name__)
    raise raised from None


def _remedy_for_memory(run: RunDirectory, config: RunConfig) -> str:
    smaller = config.smaller_micro_batch
    said = f"{run.name} does not fit in memory with {config.micro_batch} sequences a forward pass"
    if smaller is None:
        return f"{said}: take a smaller model or sequence, or a device with more memory"
    return f"{said}: pass --execution.micro_batch {smaller}; the result is the same"


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def weights_hash(model: torch.nn.Module) -> str:
    """SHA-256 of every weight's name and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _quieten() -> None:
    """Keep Lightning's remarks on the machine and on loaders out of a run's log."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
