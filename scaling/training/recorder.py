"""What a run writes down while it trains: rows of metrics.csv, status.json, checkpoints."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from scaling.compute import flops_per_token
from scaling.config import RunConfig
from scaling.errors import Diverged, Stopped
from scaling.records import MetricsWriter, Report, RunDirectory
from scaling.training.clock import StepClock
from scaling.training.datamodule import TokenData
from scaling.training.evaluation import validation_loss
from scaling.training.module import TrainingModule
from scaling.training.stopping import StopRequest


@dataclass
class Progress:
    """What a resumed run has to know beside weights, optimiser and schedule; saved in every checkpoint."""

    batches_hash: str = ""
    val_loss: float = math.nan
    row_step: int = 0
    """Step of the last row; the rest is what the next one has to know of the steps since."""
    loss_sum: float = 0.0
    """Of the losses of all sequences."""
    grad_norm: float = math.nan
    learning_rate: float = math.nan
    expert_imbalance: float = math.nan
    seconds: float = 0.0


class Recorder(pl.Callback):
    """After every optimiser step: chain the batch's hash; when due, validate, write a row, save a checkpoint.

    A run that is asked to stop saves one after the step it is in.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        data: TokenData,
        attempt: int,
        message: str,
        report: Report,
        stop: StopRequest,
    ):
        self.run, self.config, self.data = run, config, data
        self.attempt, self.message, self.report, self.stop = attempt, message, report, stop
        self.progress = Progress()
        self.train_loss = math.nan
        self.clock = StepClock()
        self._metrics: MetricsWriter | None = None
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """Goes into the checkpoint."""
        return asdict(self.progress)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes from the checkpoint."""
        self.progress = Progress(**state_dict)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Note where the attempt starts; write the row that the attempt before was stopped at."""
        assert isinstance(module, TrainingModule)
        self._step = trainer.global_step
        module.learning_rate, module.grad_norm = self.progress.learning_rate, torch.tensor(self.progress.grad_norm)
        if module.balance:
            module.balance.imbalance = self.progress.expert_imbalance
        if trainer.is_global_zero:
            module.loss_sum.fill_(self.progress.loss_sum)
            self._metrics = self.run.open_metrics(self.attempt)
            self._say()
        self.clock = StepClock()
        if self._step > self.progress.row_step and self._due(self.config.execution.log_every):
            self._write_row(trainer, module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Act once a step is complete, after the last of its micro-batches.

        Raises:
            Diverged: a loss or the gradient is not finite.
            Stopped: this process or another of the run was asked to stop.
        """
        if trainer.global_step == self._step:
            return
        assert isinstance(module, TrainingModule)
        self._step = trainer.global_step
        self.clock.tick()
        self.stop.step_is_worth_finishing = True
        if trainer.is_global_zero:
            self.progress.batches_hash = self.data.extend_hash(self.progress.batches_hash, self._step - 1)
        if self._due(self.config.execution.log_every):
            self._write_row(trainer, module)
        stopping = self.stop.agreed(trainer) and self._step < self.config.steps
        if stopping or self._due(self.config.execution.checkpoint_every):
            self._save(trainer, module)
        if stopping:
            if trainer.is_global_zero:
                self._say()
            raise Stopped(f"{self.run.name} was stopped after step {self._step}: the same command goes on from there")

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Close the table."""
        if self._metrics:
            self._metrics.close()

    def _due(self, every: int) -> bool:
        return self._step % every == 0 or self._step == self.config.steps

    def _write_row(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Unless the run is asked to stop during the validation: then the row is the next attempt's to write."""
        grad_norm = module.grad_norm.item()
        seconds = self._seconds(trainer)  # after .item(), which waits for the device
        val_loss = None
        if self._due(self.config.execution.validate_every):
            last = self._step == self.config.steps  # which no later attempt could validate
            val_loss = validation_loss(trainer, module, self.data, None if last else self.stop)
            self.clock.restart()
            if val_loss is None:
                self.progress.seconds = seconds
                return
            self.progress.val_loss = val_loss
        steps = self._step - self.progress.row_step
        self.train_loss = self._loss_sum(trainer, module) / (steps * self.config.batch_sequences)
        row = {
            "step": self._step,
            "tokens": self._step * self.config.train.batch_tokens,
            "train_loss": self.train_loss,
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
        measured = {"training loss": self.train_loss, "gradient norm": grad_norm, "validation loss": val_loss}
        bad = [f"{what} {value}" for what, value in measured.items() if value is not None and not math.isfinite(value)]
        if bad:
            raise Diverged(
                f"{self.run.name} diverged at step {self._step} ({', '.join(bad)}): lower train.lr or raise "
                "train.warmup_fraction"
            )
        if trainer.is_global_zero:
            self._say(self.train_loss, steps * self.config.train.batch_tokens / seconds)
        self.progress.row_step, self.progress.loss_sum, self.progress.seconds = self._step, 0.0, 0.0
        module.loss_sum.zero_()
        self.clock.restart()

    def _loss_sum(self, trainer: pl.Trainer, module: TrainingModule) -> float:
        """Over the processes; exact, as sums of float32 losses in float64 are, so in whatever order."""
        loss_sum = module.loss_sum.to(trainer.strategy.root_device, copy=True)
        return trainer.strategy.reduce(loss_sum, reduce_op="sum").item()

    def _seconds(self, trainer: pl.Trainer) -> float:
        """Device seconds of the steps since the last row, also of earlier attempts."""
        return self.progress.seconds + self.clock.take() * trainer.world_size

    def _save(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if self._step > self.progress.row_step:
            self.progress.loss_sum = self._loss_sum(trainer, module)
            self.progress.seconds = self._seconds(trainer)
        self.progress.grad_norm, self.progress.learning_rate = module.grad_norm.item(), module.learning_rate
        if module.balance:
            self.progress.expert_imbalance = module.balance.imbalance
        trainer.save_checkpoint(self.run.last_checkpoint)
        self.clock.restart()

    def _say(self, loss: float | None = None, rate: float = 0.0) -> None:
        """Report where the run is; `rate` in tokens per second of one device."""
        measured = {}
        if loss is not None:
            measured = {"loss": loss, "tokens_per_second": rate * self.config.execution.devices}
            if peak := self.config.execution.peak_tflops:
                measured["utilisation"] = rate * flops_per_token(self.config.shape, "model") / (peak * 1e12)
        self.report.say(
            attempt=self.attempt,
            step=self._step,
            steps=self.config.steps,
            tokens=self._step * self.config.train.batch_tokens,
            message=self.message,
            **measured,
        )
