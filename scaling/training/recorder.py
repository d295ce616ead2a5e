"""What a run writes down while it trains: rows of metrics.csv, status.json, checkpoints."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl

from scaling.compute import flops_per_token
from scaling.config import RunConfig
from scaling.errors import Diverged
from scaling.records import MetricsWriter, RunDirectory
from scaling.training.clock import StepClock
from scaling.training.datamodule import TokenData
from scaling.training.evaluation import validation_loss
from scaling.training.module import TrainingModule


@dataclass
class Progress:
    """What a resumed run has to know beside weights, optimiser and schedule; saved in every checkpoint."""

    batches_hash: str = ""
    val_loss: float = math.nan


class Recorder(pl.Callback):
    """After every optimiser step: chain the batch's hash; when due, validate, write a row, save a checkpoint."""

    def __init__(self, run: RunDirectory, config: RunConfig, data: TokenData, attempt: int, message: str):
        self.run, self.config, self.data = run, config, data
        self.attempt, self.message = attempt, message
        self.progress = Progress()
        self.train_loss = math.nan
        self._clock = StepClock()
        self._metrics: MetricsWriter | None = None
        self._step = self._row_step = 0

    def state_dict(self) -> dict[str, Any]:
        """Goes into the checkpoint."""
        return asdict(self.progress)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes from the checkpoint."""
        self.progress = Progress(**state_dict)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Note where the attempt starts."""
        self._step = self._row_step = trainer.global_step
        if trainer.is_global_zero:
            self._metrics = self.run.open_metrics(self.attempt)
            self._write_status()
        self._clock = StepClock()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Act once a step is complete, after the last of its micro-batches."""
        if trainer.global_step == self._step:
            return
        assert isinstance(module, TrainingModule)
        self._step = trainer.global_step
        self._clock.tick()
        if trainer.is_global_zero:
            self.progress.batches_hash = self.data.extend_hash(self.progress.batches_hash, self._step - 1)
        if self._due(self.config.execution.log_every):
            self._write_row(trainer, module)
        if self._due(self.config.execution.checkpoint_every):
            trainer.save_checkpoint(self.run.last_checkpoint)
            self._clock.restart()

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Close the table."""
        if self._metrics:
            self._metrics.close()

    def _due(self, every: int) -> bool:
        return self._step % every == 0 or self._step == self.config.steps

    def _write_row(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        train_loss = trainer.strategy.reduce(module.take_mean_loss(), reduce_op="mean").item()
        grad_norm = module.grad_norm.item()
        seconds = self._clock.take() * trainer.world_size  # after .item(), which waits for the device
        val_loss = None
        if self._due(self.config.execution.validate_every):
            val_loss = self.progress.val_loss = validation_loss(trainer, module, self.data)
        self.train_loss = train_loss
        row = {
            "step": self._step,
            "tokens": self._step * self.config.train.batch_tokens,
            "train_loss": train_loss,
            "val_loss": val_loss,
            "learning_rate": module.learning_rate,
            "grad_norm": grad_norm,
            "expert_imbalance": module.balance.imbalance if module.balance else None,
            "seconds": seconds,
        }
        if self._metrics:
            self._metrics.append(**row)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in row.items() if v is not None}, self._step)
        measured = {"training loss": train_loss, "gradient norm": grad_norm, "validation loss": val_loss}
        bad = [f"{what} {value}" for what, value in measured.items() if value is not None and not math.isfinite(value)]
        if bad:
            raise Diverged(
                f"{self.run.name} diverged at step {self._step} ({', '.join(bad)}): lower train.lr or raise "
                "train.warmup_fraction"
            )
        if trainer.is_global_zero:
            self._write_status(row)
        self._row_step = self._step
        self._clock.restart()

    def _write_status(self, row: dict[str, Any] | None = None) -> None:
        batch_tokens = self.config.train.batch_tokens
        measured = {}
        if row:
            rate = (self._step - self._row_step) * batch_tokens / row["seconds"]  # of one device
            measured = {"loss": row["train_loss"], "tokens_per_second": rate * self.config.execution.devices}
            if peak := self.config.execution.peak_tflops:
                measured["utilisation"] = rate * flops_per_token(self.config.shape, "model") / (peak * 1e12)
        self.run.write_status(
            "running",
            attempt=self.attempt,
            step=self._step,
            steps=self.config.steps,
            tokens=self._step * batch_tokens,
            message=self.message,
            **measured,
        )
