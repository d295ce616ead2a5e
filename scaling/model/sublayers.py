"""The two sublayers of a dense Transformer layer. Each owns its PreNorm, which is applied with the read before it.

Letters: B batch, T time, D width, H heads, K key and value heads, C head width, F width of the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scaling.config import ModelConfig
from scaling.model.linear import Linear


def rotary_tables(head_dim: int, seq_len: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, C) of RoPE; the two halves of a head turn together, so each angle stands twice."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn (B, H, T, C) by its position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with RoPE and H heads of C, sharing K key and value heads."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads or config.n_heads
        self.head_dim = config.head_dim
        d_model, width = config.d_model, config.head_dim
        self.norm = nn.RMSNorm(d_model, eps=config.norm_eps)
        self.query = Linear(d_model, self.n_heads * width)
        self.key = Linear(d_model, self.n_kv_heads * width)
        self.value = Linear(d_model, self.n_kv_heads * width)
        self.out = Linear(self.n_heads * width, d_model)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Normed (B, T, D) to (B, T, D)."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(
            rotate(query, *rotary).to(value.dtype),
            rotate(key, *rotary).to(value.dtype),
            value,
            is_causal=True,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )
        return self.out(attended.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU of width F."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.gate = Linear(config.d_model, config.d_ff)
        self.up = Linear(config.d_model, config.d_ff)
        self.down = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Normed (B, T, D) to (B, T, D); positions do not matter here."""
        return self.down(F.silu(self.gate(x)) * self.up(x))
