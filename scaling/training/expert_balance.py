"""Even use of experts without a loss: the bias with which a router chooses follows what the last batch used.

The rule is the one of DeepSeek-V3 (arXiv 2412.19437, section on load balancing): after every step an expert that got
less than its share of the global batch is chosen more readily by `balance_rate`, one that got more less readily.
"""

from __future__ import annotations

import math
from typing import cast

import lightning.pytorch as pl
import torch

from scaling.model.kimi import Experts
from scaling.model.language_model import LanguageModel


class ExpertBalance:
    """Counts what the experts of a model get and moves their biases, the same for every micro-batch and device."""

    def __init__(self, model: LanguageModel, rate: float):
        self.model, self.rate = model, rate
        self.layers = [cast(Experts, m) for m in model.sublayers if isinstance(m, Experts)]
        self.imbalance = math.nan
        """Load of the busiest expert over the mean load, averaged over the layers, in the last step; 1 is even."""
        self._load = torch.zeros(())

    def count(self) -> None:
        """Add the load of the micro-batch that the model has just seen."""
        assert self.model.routing is not None
        self._load = self._load.to(self.model.routing.load.device) + self.model.routing.load

    @torch.no_grad()
    def step(self, trainer: pl.Trainer) -> None:
        """Move the biases by the load of the global batch, and begin the next."""
        load = trainer.strategy.reduce(self._load, reduce_op="sum")
        mean = load.mean(1, keepdim=True)
        self.imbalance = (load.amax(1) / mean.squeeze(1)).mean().item()
        for layer, move in zip(self.layers, self.rate * torch.sign(mean - load), strict=True):
            layer.choice_bias.add_(move)
        self._load = torch.zeros(())
