"""Train one run to the end of its schedule, from its start or from its newest usable checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from rich.console import Console

from scaling.compute import forward_flops, ledgers, parameters
from scaling.config import RunConfig, digest
from scaling.data.corpus import check_tokens
from scaling.data.shards import load_index
from scaling.errors import Busy
from scaling.process import is_first_process, quieten_libraries
from scaling.records import RunDirectory
from scaling.training.checkpoint import usable_checkpoint
from scaling.training.datamodule import TokenData
from scaling.training.dynamics import Dynamics
from scaling.training.environment import machine, versions
from scaling.training.failures import failures_recorded
from scaling.training.module import TrainingModule
from scaling.training.processes import Processes
from scaling.training.progress import ProgressDisplay
from scaling.training.recorder import Recorder
from scaling.training.sharding import whole
from scaling.training.stopping import StopRequest
from scaling.training.trainer import build_trainer


def train(config: RunConfig, console: Console) -> dict[str, Any]:
    """Train a run and return its result; a finished run is left as it is.

    Raises:
        Busy: another process trains it.
        OutOfMemory: the micro-batch does not fit.
        Diverged: a loss or gradient was not finite.
        Stopped: a signal asked for it.
        ProcessLost: one of the run's other processes ended.
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
        with failures_recorded(run, config), StopRequest() as stop:
            return _train(run, config, console, stop)


def _train(run: RunDirectory, config: RunConfig, console: Console, stop: StopRequest) -> dict[str, Any]:
    quieten_libraries()
    data = TokenData(config)
    checkpoint, damaged = usable_checkpoint(run)
    message = _how_it_goes_on(checkpoint, damaged)
    if message:
        console.print(message, highlight=False, soft_wrap=True)
    attempt = _record_attempt(run, config, data, checkpoint)

    with run.report() as report, Processes(run, config, report):
        if is_first_process():
            report.say(attempt=attempt, steps=config.steps, message=message)
        module = TrainingModule(config)
        if config.execution.compile:
            # Parts of a tensor that leave a graph, as where DDP and FSDP cut it, would else be made from the wrong one.
            torch._functorch.config.view_replay_for_aliased_outputs = False
            # FSDP cuts it at every sublayer, which is compiled by itself with and without gradients: 8 is for fewer.
            torch._dynamo.config.recompile_limit = 4 * config.model.n_sublayers
            module.model.compile(dynamic=False)
        recorder = Recorder(run, config, data, attempt, message, report, stop)
        callbacks: list[pl.Callback] = [recorder, ProgressDisplay(config, recorder, console)]
        if config.execution.dynamics_every is not None:
            callbacks.insert(0, Dynamics(run, config, data, attempt, recorder))
        trainer = build_trainer(run, config, callbacks)
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
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
    if is_first_process():
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


def _how_it_goes_on(checkpoint: Path | None, damaged: list[str]) -> str:
    start = f"the run goes on from {checkpoint.name}" if checkpoint else "the run starts from its beginning"
    return f"{' and '.join(damaged)} damaged and passed over: {start}" if damaged else ""


def weights_hash(model: torch.nn.Module) -> str:
    """SHA-256 of every weight's name and bytes; where they lie in shares, every process has to ask."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(whole(tensor).detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
