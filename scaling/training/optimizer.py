"""Parameter groups, optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim._muon import muon

from scaling.config import TrainConfig
from scaling.model.language_model import LanguageModel

MUON_RATE = "match_rms_adamw"


def parameter_groups(model: LanguageModel) -> dict[str, list[nn.Parameter]]:
    """Every parameter in exactly one group.

    `hidden`: matrices of the sublayers, also stacked ones of experts, decayed (and Muon's, if it is used).
    `head`: an untied head, decayed. `rest`: embedding, gains of norms, KDA's convolutions and decays, and everything
    the residual scheme owns, not decayed.
    """
    groups: dict[str, list[nn.Parameter]] = {"hidden": [], "head": [], "rest": []}
    for name, parameter in model.named_parameters():
        if name.startswith("sublayers.") and parameter.ndim >= 2 and min(parameter.shape[-2:]) > 1:
            groups["hidden"].append(parameter)
        elif name.startswith("head."):
            groups["head"].append(parameter)
        else:
            groups["rest"].append(parameter)
    return groups


def build_optimizer(model: LanguageModel, config: TrainConfig) -> Optimizer:
    """AdamW for everything, or Muon for the hidden matrices and AdamW for the rest."""
    groups = parameter_groups(model)
    hidden = {"params": groups["hidden"], "weight_decay": config.weight_decay}
    others = [
        {"params": groups["head"], "weight_decay": config.weight_decay},
        {"params": groups["rest"], "weight_decay": 0.0},
    ]
    others = [group for group in others if group["params"]]
    if config.optimizer == "adamw":
        return AdamW([hidden, *others], lr=config.lr, betas=config.betas, fused=True)
    matrices, stacks = ([p for p in groups["hidden"] if p.ndim == n] for n in (2, 3))
    parts: dict[str, Optimizer] = {
        "muon": Muon(matrices, config.lr, config.weight_decay, adjust_lr_fn=MUON_RATE),
    }
    if stacks:
        parts["stacked_muon"] = StackedMuon(stacks, config.lr, config.weight_decay)
    return Together(**parts, adamw=AdamW(others, lr=config.lr, betas=config.betas, fused=True))


def learning_rate_factor(config: TrainConfig, steps: int, step: int) -> float:
    """Share of the peak learning rate in the step after `step` finished ones; the last of `steps` has the end's."""
    step = min(step, steps - 1)
    warmup = round(config.warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    end = config.final_lr_fraction
    if config.schedule == "cosine":
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(1, round(config.decay_fraction * steps))
    progress = (step - (steps - 1 - decay)) / decay
    return 1.0 if progress <= 0 else 1 - (1 - end) * progress


class StackedMuon(Optimizer):
    """Muon for stacks (E, out, in) of matrices: each by itself, all of a stack at once."""

    def __init__(self, stacks: list[nn.Parameter], lr: float, weight_decay: float):
        rule = Muon([nn.Parameter(torch.empty(1, 1))], lr, weight_decay, adjust_lr_fn=MUON_RATE).defaults
        super().__init__(stacks, rule)
        self._rule = tuple(rule)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every matrix."""
        for group in self.param_groups:
            rule = {key: group[key] for key in self._rule}

            def one(matrix: Tensor, grad: Tensor, momentum: Tensor, rule: dict[str, Any] = rule) -> Tensor:
                muon([matrix], [grad], [momentum], has_complex=False, **rule)
                return matrix

            for stack in group["params"]:
                if "momentum_buffer" not in self.state[stack]:
                    self.state[stack]["momentum_buffer"] = torch.zeros_like(stack)
                torch.vmap(one)(stack, stack.grad, self.state[stack]["momentum_buffer"])


class Together(Optimizer):
    """Several optimisers as one: they step together, and their groups follow one schedule."""

    def __init__(self, **parts: Optimizer):
        self.parts = parts
        super().__init__([group for part in parts.values() for group in part.param_groups], {})
        self._share_groups()

    def _share_groups(self) -> None:
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Tensor | None:  # type: ignore[override]
        """Evaluate the closure once, then let every part step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts.values():
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Each part's state under its name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its state."""
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])
        self._share_groups()
