"""The Lightning trainer of a run: device, strategy, precision, loggers."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy

from scaling.config import ExecutionConfig, RunConfig
from scaling.errors import TrainingError
from scaling.process import is_first_process
from scaling.records import RunDirectory
from scaling.training.checkpoint import RotatingCheckpoints
from scaling.training.sharding import Sharded


def build_trainer(run: RunDirectory, config: RunConfig, callbacks: list[pl.Callback]) -> pl.Trainer:
    """The trainer of a run.

    Raises:
        TrainingError: the machine or the environment lacks what the settings ask for.
    """
    execution = config.execution
    _check_devices(config)
    trainer = pl.Trainer(
        accelerator={"cuda": "gpu"}.get(execution.accelerator, execution.accelerator),
        devices=execution.devices,
        strategy=_strategy(execution),
        max_steps=config.steps,
        max_epochs=-1,
        accumulate_grad_batches=config.batch_sequences // (config.micro_batch * execution.devices),
        precision="bf16-mixed" if config.train.precision == "bf16" else "32-true",
        logger=_loggers(run, config) if is_first_process() else False,
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
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]  # `stopping.py` has them
    return trainer


def _strategy(execution: ExecutionConfig) -> Strategy | str:
    if execution.devices == 1:
        return "auto"
    if execution.strategy == "fsdp":
        return Sharded(execution.devices)
    return DDPStrategy(find_unused_parameters=False, gradient_as_bucket_view=True)


class _WandbRun(WandbLogger):
    """A W&B run that ends with the training, not only with the process."""

    def finalize(self, status: str) -> None:
        super().finalize(status)
        self.experiment.finish(exit_code=int(status != "success"))


def _loggers(run: RunDirectory, config: RunConfig) -> list[Logger]:
    """What is written beside metrics.csv, below the run's directory; a resumed run goes on in the same W&B run."""
    loggers: list[Logger] = []
    for name in config.execution.loggers:
        try:
            if name == "tensorboard":
                loggers.append(TensorBoardLogger(run.path, name="tensorboard", version=""))
            else:
                project = os.environ.get("WANDB_PROJECT", "attnres-scaling")
                mode = os.environ.get("WANDB_MODE", "offline")
                loggers.append(
                    _WandbRun(run.name, run.path, id=run.name, project=project, mode=mode, config=asdict(config))
                )
        except ModuleNotFoundError:
            raise TrainingError(
                f"execution.loggers names {name}, which is not installed: pip install 'attnres-scaling[{name}]'"
            ) from None
    return loggers


def _check_devices(config: RunConfig) -> None:
    """Raise TrainingError where the machine lacks what the settings ask for."""
    execution = config.execution
    gpus = torch.cuda.device_count()
    if execution.accelerator == "cuda" and not gpus:
        raise TrainingError("execution.accelerator is cuda, but torch sees no GPU: set it to cpu or auto")
    if execution.accelerator != "cpu" and 0 < gpus < execution.devices:
        raise TrainingError(f"execution.devices is {execution.devices}, but torch sees {gpus} GPUs: lower it")
    if config.model.kimi is not None:
        from scaling.model.kimi import check_kernels  # needs transformers, which takes seconds to import

        check_kernels(on_gpu=execution.accelerator != "cpu" and gpus > 0)
    compilers = (os.environ.get("CXX", "g++"), "g++", "clang++", "c++")
    if execution.compile and not any(map(shutil.which, compilers)):
        raise TrainingError(
            "execution.compile needs a C++ compiler, and there is none: install g++, or set it to false"
        )
