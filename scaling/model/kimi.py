"""The sublayers of Kimi Linear (arXiv 2510.26692): KDA, MLA without positions, and a mixture of experts.

The layers themselves are those of `transformers.models.kimi_linear`: on a GPU with the kernels of
flash-linear-attention, elsewhere in plain PyTorch. Each stands here behind its PreNorm, as a dense sublayer does.

Letters: B batch, T time, D width, E routed experts, K experts of a token.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import (
    KimiLinearAttention,
    KimiLinearDeltaAttention,
    KimiLinearMoE,
)
from transformers.utils import logging

from scaling.config import ModelConfig
from scaling.errors import TrainingError

ATTENTION = "scaling_causal"

logging.set_verbosity_error()  # that a CPU has no kernels is no news


class Routed(NamedTuple):
    """What a mixture of experts gives back."""

    output: Tensor
    """(B, T, D)."""
    balance_loss: Tensor
    """Scalar; 1 where every sequence uses all experts alike, up to E / K."""
    load: Tensor
    """(E,): token slots that each expert got."""


def kimi_sublayers(config: ModelConfig) -> list[nn.Module]:
    """KDA or MLA, then experts, for every Transformer layer."""
    ours = _library_config(config)
    mixers = (MLA if config.is_mla(layer) else KDA for layer in range(config.n_layers))
    return list(chain.from_iterable((mixer(config, ours, i), Experts(config, ours)) for i, mixer in enumerate(mixers)))


def _library_config(config: ModelConfig) -> KimiLinearConfig:
    kimi = config.kimi
    assert kimi is not None
    library = KimiLinearConfig(
        hidden_size=config.d_model,
        moe_intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_heads,
        n_shared_experts=kimi.n_shared_experts,
        routed_scaling_factor=kimi.routed_scale,
        kv_lora_rank=kimi.kv_rank,
        qk_rope_head_dim=config.shared_key_dim,
        qk_nope_head_dim=config.head_dim,
        v_head_dim=config.head_dim,
        num_experts_per_tok=kimi.experts_per_token,
        num_local_experts=kimi.n_experts,
        linear_head_dim=config.head_dim,
        linear_num_heads=config.n_heads,
        linear_conv_kernel_dim=kimi.conv_size,
        layer_types=[("full" if config.is_mla(i) else "linear") + "_attention" for i in range(config.n_layers)],
        mlp_layer_types=["sparse"] * config.n_layers,
    )
    library._attn_implementation = ATTENTION
    library._experts_implementation = "grouped_mm"
    return library


class KDA(nn.Module):
    """Kimi Delta Attention: linear attention with a decay of its own for every channel."""

    def __init__(self, config: ModelConfig, library: KimiLinearConfig, layer: int):
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mixer = KimiLinearDeltaAttention(library, layer)

    def forward(self, x: Tensor, rotary: Any) -> Tensor:
        """Normed (B, T, D) to (B, T, D); positions are the recurrence's own."""
        return self.mixer(x)


class MLA(nn.Module):
    """Multi-head latent attention without positions: keys and values from one compressed vector a token."""

    def __init__(self, config: ModelConfig, library: KimiLinearConfig, layer: int):
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mixer = KimiLinearAttention(library, layer)

    def forward(self, x: Tensor, rotary: Any) -> Tensor:
        """Normed (B, T, D) to (B, T, D); KDA has told positions apart."""
        return self.mixer(x, attention_mask=None)[0]


class Experts(nn.Module):
    """A mixture of experts: K of E by their scores plus a bias that evens out their use, and shared ones for all."""

    def __init__(self, config: ModelConfig, library: KimiLinearConfig):
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mixer = KimiLinearMoE(library)

    def forward(self, x: Tensor, rotary: Any) -> Routed:
        """Normed (B, T, D) to an output (B, T, D) and how the router spread its tokens."""
        device = x.device.type
        autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if autocast else nullcontext():
            logits, weights, chosen = self.mixer.gate(x.float())
        dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        experts = {name: p.to(dtype) for name, p in self.mixer.experts.named_parameters()}  # autocast leaves them wide
        routed = functional_call(self.mixer.experts, experts, (x.flatten(0, 1).to(dtype), chosen, weights.to(dtype)))
        taken = torch.zeros_like(logits).scatter(1, chosen, 1.0)
        scores, taken = (t.unflatten(0, x.shape[:2]) for t in (logits.sigmoid(), taken))
        balance = sequence_balance(scores, taken)
        return Routed(routed.view_as(x) + self.mixer.shared_experts(x), balance, taken.sum((0, 1)))

    @property
    def choice_bias(self) -> Tensor:
        """(E,), added to the scores when experts are chosen, and to nothing else."""
        return self.mixer.gate.e_score_correction_bias


def sequence_balance(scores: Tensor, taken: Tensor) -> Tensor:
    """Balance loss (DeepSeek-V3, arXiv 2412.19437): over experts, share of the slots times share of the score.

    A mean over sequences, so a global batch has the same loss however it is cut into micro-batches.

    Args:
        scores: (B, T, E), positive.
        taken: (B, T, E), 1 where a token goes through an expert.
    """
    slots = taken.sum(1)
    use = slots * slots.shape[-1] / slots.sum(-1, keepdim=True)
    share = (scores / scores.sum(-1, keepdim=True)).mean(1)
    return (use * share).sum(-1).mean()


def check_kernels(on_gpu: bool) -> None:
    """Refuse a GPU without the kernels (in plain PyTorch KDA keeps 32 kB a token and head), and a CPU with them.

    Asked is what transformers asks, which says nothing when the kernels are there and cannot be imported.

    Raises:
        TrainingError: flash-linear-attention is not there or broken, or would be taken for a CPU's tensors too.
    """
    try:
        _ = import_module("fla.ops.kda").chunk_kda
    except Exception as error:
        if on_gpu:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise TrainingError(
                f"Kimi Linear on a GPU needs its kernels ({reason}): pip install 'attnres-scaling[kimi]'"
            ) from error
        return
    if not on_gpu:
        raise TrainingError(
            "Kimi Linear on a CPU needs an environment without flash-linear-attention, whose kernels are for GPUs: "
            "make one without the extra kimi, or train on a GPU"
        )


def _causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Queries and keys (B, H, T, Q) and values (B, H, T, C) to (B, T, H, C).

    A CPU's fused attention wants values as wide as keys; without it the scores of all pairs would be kept.
    """
    width = value.shape[-1]
    if value.device.type != "cuda":
        value = F.pad(value, (0, key.shape[-1] - width))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return attended[..., :width].transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _causal_attention)
