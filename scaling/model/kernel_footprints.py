"""Kimi Linear's kernels as memory sees them: what they keep and allocate, without their arithmetic.

Memory is counted on fake tensors, on which no kernel of a GPU runs. KDA's is that of flash-linear-attention 0.6; plain
PyTorch in its place would keep a hundred times as much.

Shapes: B batch, T time, H heads, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.integrations import moe
from transformers.models.kimi_linear import modeling_kimi_linear

from scaling.compute import KDA_CHUNK


@contextmanager
def kernel_footprints() -> Iterator[None]:
    """A context in which KDA takes and gives the tensors of its kernel, and grouped products run on fake float32."""
    with (
        patch.object(modeling_kimi_linear, "chunk_kimi_delta_attention", _stand_in),
        patch.object(moe, "_can_use_grouped_mm", lambda rows, weight, offsets: weight.dtype == torch.bfloat16),
    ):
        yield


def _stand_in(query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, None]:
    return _Footprint.apply(query, key, value, g, beta), None


class _Footprint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        normed = [torch.empty_like(query), torch.empty_like(key)]
        norms = [beta.new_empty(beta.shape, dtype=torch.float32) for _ in normed]
        within_chunks = [query.new_empty(*beta.shape, KDA_CHUNK) for _ in range(2)]
        ctx.save_for_backward(*normed, *norms, value, torch.empty_like(decay), decay, beta, *within_chunks)
        _recomputed(value)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        query, key, _, _, value, _, decay, beta, *_ = ctx.saved_tensors
        kept = _recomputed(value)
        grads = tuple(torch.empty_like(t) for t in (query, key, value, decay, beta))
        del kept
        return grads


def _recomputed(value: Tensor) -> list[Tensor]:
    """Five of the values' size and a state (C, C) for every chunk, which live while the kernel runs."""
    b, t, h, c = value.shape
    return [*(torch.empty_like(value) for _ in range(5)), value.new_empty(b, -(-t // KDA_CHUNK), h, c, c)]
