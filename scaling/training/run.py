"""Train one run to the end of its schedule, from its start or from its newest usable checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

from scaling.compute import forward_flops, ledgers, parameters
from scaling.config import RunConfig, digest
from scaling.errors import Busy, CheckpointError, Diverged, OutOfMemory, ScalingError, Stopped, TrainingError
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
        if result is None:
            with _failures_recorded(run, config):
                result = _train(run, config, console)
        return result


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
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)

    result = {
        "run": run.name,
        "steps": config.steps,
        "tokens": config.tokens,
        "val_loss": recorder.progress.val_loss,
        "val_tokens": config.train.validation_tokens,
        "train_loss": recorder.progress.train_loss,
        "data_hash": data.index.hash,
        "batches_hash": recorder.progress.batches_hash,
        "weights_hash": weights_hash(module.model),
    }
    if trainer.is_global_zero:
        run.write_result(result)
        run.write_status(
            "finished", attempt=attempt, step=config.steps, steps=config.steps, tokens=config.tokens, message=message
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
    accelerator = {"cuda": "gpu"}.get(execution.accelerator, execution.accelerator)
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise TrainingError("execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto")
    return pl.Trainer(
        accelerator=accelerator,
        devices=execution.devices,
        max_steps=config.steps,
        max_epochs=-1,
        accumulate_grad_batches=config.batch_sequences // (config.micro_batch * execution.devices),
        gradient_clip_val=config.train.clip_norm,
        precision="bf16-mixed" if config.train.precision == "bf16" else "32-true",
        logger=logger,
        callbacks=callbacks,
        plugins=[RotatingCheckpoints(run)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=run.path,
    )


def _record_attempt(run: RunDirectory, config: RunConfig, data: TokenData, checkpoint: Path | None) -> int:
    """Write config.yaml and run.json; returns the number of this attempt.

    Raises:
        CheckpointError: the directory's run was trained on other tokens.
    """
    before = run.read_run() or {}
    if before and before["data"]["hash"] != data.index.hash:
        raise CheckpointError(
            f"{run.path} was trained on other tokens than {data.index.folder} has now: "
            "give another execution.runs_folder, or delete the run directory"
        )
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
                "hash": data.index.hash,
                "train_tokens": data.index.tokens("train"),
                "validation_tokens": config.train.validation_tokens,
            },
            "attempts": [*attempts, entry],
        }
    )
    return attempt


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
        raised = TrainingError(
            f"{run.name} cannot write its files ({error.strerror or error}): free space or permit writing in "
            f"{run.path}, and the same command goes on from the last checkpoint"
        )
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raised = OutOfMemory(
            f"{run.name} does not fit in memory with {config.micro_batch} sequences a forward pass: pass "
            f"--execution.micro_batch {max(1, config.micro_batch // 2)}; the result is the same"
        )
    except SIGTERMException:
        raise Stopped(f"{run.name} was stopped: the same command goes on from its last checkpoint") from None
    with contextlib.suppress(OSError):
        run.write_status(state, steps=config.steps, message=str(raised))
    raise raised from None


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def weights_hash(model: torch.nn.Module) -> str:
    """SHA-256 of every weight's name and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _quieten() -> None:
    """Keep Lightning's remarks on the machine and on loaders out of a run's log."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
