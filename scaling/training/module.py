"""The Lightning module: loss, optimiser, schedule, clipping."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from scaling.config import RunConfig
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import build_optimizer, learning_rate_factor
from scaling.training.sharding import shard, whole

if TYPE_CHECKING:
    from scaling.training.expert_balance import ExpertBalance


class TrainingModule(pl.LightningModule):
    """Trains `model` on batches of (inputs, targets), each (micro-batch, T)."""

    def __init__(self, config: RunConfig):
        super().__init__()
        self.run_config = config
        self.model = LanguageModel(
            config.model, config.residual, config.data.vocab_size, config.train.seq_len, config.seed
        )
        self.model.checkpoint_activations = config.execution.checkpoint_activations
        self.balance = self._expert_balance()
        self.grad_norm = torch.tensor(float("nan"))
        self.learning_rate = float("nan")
        self.loss_sum = torch.zeros((), dtype=torch.float64)
        """Of the losses of the sequences that this process saw, until somebody sets it back."""

    def configure_model(self) -> None:
        """Give this device its share of the model, where the strategy is to share it."""
        execution = self.run_config.execution
        if execution.devices > 1 and execution.strategy == "fsdp":
            assert self.device_mesh is not None
            shard(self.model, self.device_mesh["data_parallel"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count what was done in micro-batches of this attempt, by whose number Lightning knows when a step is whole.

        As Lightning's own counts they say that the end of the last micro-batch is still to come.
        """
        done = checkpoint["global_step"] * self.trainer.accumulate_grad_batches
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["current"], progress["total"]):
            counts |= {"ready": done, "started": done, "processed": done, "completed": done - 1}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean loss of one micro-batch in nats per token; Lightning averages over the micro-batches of a step."""
        loss = self.model(*batch)
        self.loss_sum = self.loss_sum.to(loss.device) + loss.detach().double() * len(batch[0])
        if self.model.routing is not None:
            assert self.run_config.model.kimi is not None
            loss = loss + self.run_config.model.kimi.balance_loss * self.model.routing.balance_loss
        return loss

    def on_after_backward(self) -> None:
        """Count what the experts got, if there are any."""
        if self.balance:
            self.balance.count()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Even out the use of experts, if there are any."""
        if self.balance:
            self.balance.step(self.trainer)

    def _expert_balance(self) -> ExpertBalance | None:
        kimi = self.run_config.model.kimi
        if kimi is None:
            return None
        from scaling.training.expert_balance import ExpertBalance  # needs transformers, which takes seconds to import

        return ExpertBalance(self.model, kimi.balance_rate)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser of `optimizer.py`, its rate set at every step."""
        train = self.run_config.train
        optimizer = build_optimizer(self.model, train)
        factor = partial(learning_rate_factor, train, self.run_config.steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip by the norm of the whole gradient; keep the norm it had and the rate of the step to come."""
        limit = self.run_config.train.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        self.grad_norm = whole(norm)
        self.learning_rate = optimizer.param_groups[-1]["lr"]
