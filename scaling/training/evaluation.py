"""The validation loss."""

from __future__ import annotations

import lightning.pytorch as pl
import torch

from scaling.training.datamodule import TokenData
from scaling.training.module import TrainingModule
from scaling.training.stopping import StopRequest


@torch.no_grad()
def validation_loss(
    trainer: pl.Trainer, module: TrainingModule, data: TokenData, stop: StopRequest | None
) -> float | None:
    """Sum of token losses over the fixed validation tokens / their number, in nats per token.

    The same for every micro-batch and number of devices, up to rounding. None if the run is asked
    by `stop` to stop meanwhile.
    """
    total = torch.zeros(2, dtype=torch.float64, device="cpu")
    for batch in data.validation_batches():
        if stop is not None and stop.agreed(trainer):
            return None
        inputs, targets = trainer.strategy.batch_to_device(batch)
        with trainer.precision_plugin.val_step_context():
            loss = module.model(inputs, targets)
        total += torch.tensor([loss.item() * targets.numel(), targets.numel()], dtype=torch.float64)
    loss_sum, tokens = trainer.strategy.reduce(total.to(trainer.strategy.root_device), reduce_op="sum").tolist()
    return loss_sum / tokens
