"""Softmax attention over depth with a learned query: one read of N sources (PAPER section 1, Full AttnRes).

    alpha_i = softmax_i( w . v_i / rms(v_i) ),   out = sum_i alpha_i v_i,   with w = query * gain of the key norm

The values are not normalised and there is no 1/sqrt(D). One autograd function serves the list of sources, so that
no (N, B, T, D) stack exists; it keeps the sources themselves, one inverse RMS a source and one log-sum-exp a read,
and recomputes the weights in the backward pass. Logits and softmax are float32 (float64 for float64 sources).

Letters: B batch, T time, D width, N sources.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """A value (B, T, D) and the inverse of its root mean square (B, T), which every read of it shares."""

    value: Tensor
    inverse_rms: Tensor


def as_source(value: Tensor, eps: float) -> Source:
    """Attach the inverse RMS to a value (B, T, D). Its gradient is part of `depth_attention`'s backward."""
    with torch.no_grad():
        wide = value.to(_accumulation_dtype(value))
        return Source(value, torch.rsqrt(wide.square().mean(-1) + eps))


def depth_attention(weight: Tensor, sources: list[Source]) -> Tensor:
    """Weighted sum (B, T, D) of N >= 1 sources by the softmax of weight (D) . key.

    Gradients flow to `weight` and to every source's value.
    """
    values = [source.value for source in sources]
    scales = [source.inverse_rms for source in sources]
    return _DepthAttention.apply(weight, *values, *scales)


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where there is such a thing."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def _logit(value: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    return (value.to(weight.dtype) @ weight) * scale


class _DepthAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, *values_and_scales: Tensor) -> Tensor:
        n = len(values_and_scales) // 2
        values, scales = values_and_scales[:n], values_and_scales[n:]
        wide = weight.to(_accumulation_dtype(values[0]))
        with _full_precision(weight.device):
            logits = [_logit(v, s, wide) for v, s in zip(values, scales, strict=True)]
            log_sum_exp = torch.logsumexp(torch.stack(logits), dim=0)
            out = torch.exp(logits[0] - log_sum_exp).unsqueeze(-1) * values[0]
            for value, logit in zip(values[1:], logits[1:], strict=True):
                out = torch.addcmul(out, torch.exp(logit - log_sum_exp).unsqueeze(-1), value)
        ctx.save_for_backward(weight, log_sum_exp, *values_and_scales)
        return out.to(values[0].dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, log_sum_exp, *values_and_scales = ctx.saved_tensors
        n = len(values_and_scales) // 2
        values, scales = values_and_scales[:n], values_and_scales[n:]
        wide = weight.to(_accumulation_dtype(values[0]))
        d_model = wide.numel()
        with _full_precision(weight.device):
            grad = grad.to(wide.dtype)
            logits = [_logit(v, s, wide) for v, s in zip(values, scales, strict=True)]
            alphas = [torch.exp(logit - log_sum_exp) for logit in logits]
            d_alphas = [(grad * v).sum(-1) for v in values]
            mean = alphas[0] * d_alphas[0]
            for alpha, d_alpha in zip(alphas[1:], d_alphas[1:], strict=True):
                mean = mean + alpha * d_alpha
            d_weight = torch.zeros_like(wide)
            d_values = []
            for i in range(n):
                d_logit = alphas[i] * (d_alphas[i] - mean)
                through_dot = d_logit * scales[i]
                # d inverse_rms / d value = -inverse_rms^3 value / D, and logit = (weight . value) inverse_rms
                through_norm = -through_dot * logits[i] * scales[i] / d_model
                value = values[i].to(wide.dtype)
                d_value = alphas[i].unsqueeze(-1) * grad
                d_value = torch.addcmul(d_value, through_dot.unsqueeze(-1), wide)
                d_value = torch.addcmul(d_value, through_norm.unsqueeze(-1), value)
                d_values.append(d_value.to(values[i].dtype))
                d_weight = d_weight + value.flatten(0, -2).t() @ through_dot.flatten()
        return d_weight.to(weight.dtype), *d_values, *([None] * n)
