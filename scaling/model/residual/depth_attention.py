"""Softmax attention over depth with learned queries, in two phases (arXiv 2603.15031).

    alpha_i = softmax_i( w . v_i / rms(v_i) ),   out = sum_i alpha_i v_i,   with w = query * gain of the key norm

The values are not normalised and there is no 1/sqrt(D). `key_logits` gives a source's logits for all reads to come by
one product. `mix` serves a batch of reads over the sources that are finished when it begins, in one pass over them.
`merge` adds to one such read the sources that came since, by online softmax, and applies the next sublayer's PreNorm.

Nothing is kept for the backward pass but the sources themselves and scalars per token: `merge` computes the read again.
No (N, B, T, D) stack exists. Logits and softmax are float32 (float64 for float64 sources).

Letters: B batch, T time, D width, N sources, S reads of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scaling.model.linear import linear
from scaling.model.residual.numerics import accumulation_dtype, full_precision, inverse_rms


class Mixed(NamedTuple):
    """What a batch of S reads sees of N finished sources."""

    outs: tuple[Tensor, ...]
    """S weighted sums (B, T, D)."""
    log_sum_exp: Tensor
    """Of the logits (S, B, T)."""
    values: tuple[Tensor, ...]
    """The N sources (B, T, D), from which, with their logits, the sums can be computed again."""
    logits: tuple[Tensor, ...]
    """Theirs (S, B, T)."""


def key_logits(value: Tensor, weights: Tensor, eps: float) -> Tensor:
    """Logits (K, B, T) of a source (B, T, D) for K reads with weights (K, D)."""
    return _KeyLogits.apply(value, weights, eps)


def mix(values: list[Tensor], logits: list[Tensor]) -> Mixed:
    """S weighted sums over N >= 1 sources (B, T, D) by the softmax of their logits (S, B, T)."""
    if len(values) == 1:
        log_sum_exp, outs = logits[0], (values[0],) * len(logits[0])
    else:
        log_sum_exp, *outs = _Mix.apply(len(values), *values, *logits)
    return Mixed(tuple(outs), log_sum_exp, tuple(v.detach() for v in values), tuple(t.detach() for t in logits))


def merge(
    mixed: Mixed,
    read: int,
    since: list[tuple[Tensor, Tensor]],
    open_block: tuple[Tensor, Tensor] | None,
    gain: Tensor | None,
    eps: float,
) -> Tensor:
    """Read number `read` of a batch with the sources that came after the batch began: (B, T, D).

    `since` has sources (B, T, D) and their logits (B, T), `open_block` the sum so far (B, T, D) and the read's weight
    (D). With a gain (D), the read's RMSNorm.
    """
    if not since and open_block is None and gain is None:
        return mixed.outs[read]
    values, logits = [value for value, _ in since], [logit for _, logit in since]
    partial, weight = open_block if open_block is not None else (None, None)
    return _Merge.apply(
        eps, read, len(since), gain, mixed.outs[read], mixed.log_sum_exp, partial, weight,
        *values, *logits, *mixed.values, *mixed.logits,
    )  # fmt: skip


def _weighted_sum(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Sum (B, T, D) of values, each with one weight a token (B, T)."""
    total = weights[0].unsqueeze(-1) * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total.addcmul_(weight.unsqueeze(-1), value)
    return total


def _dot(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
    """Products over D (B, T) of two (B, T, D), whose elementwise product goes into the buffer."""
    return torch.mul(a, b, out=buffer).sum(-1)


def _key_gradient(
    d_value: Tensor | None, d_logits: Tensor, value: Tensor, weights: Tensor, scale: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of a value (B, T, D), added to d_value, and of weights (K, D) through logits (K, B, T)."""
    with full_precision(value.device):
        through_dots = d_logits * scale
        # d scale / d value = -scale^3 value / D, and logit = dot scale
        through_scale = -(d_logits * logits).sum(0) * scale.square() / value.shape[-1]
        if d_value is None:
            d_value = (through_dots.flatten(1).t() @ weights).view(value.shape)
        else:
            d_value.addcmul_(through_dots[0].unsqueeze(-1), weights[0])
        d_value.addcmul_(through_scale.unsqueeze(-1), value)
        return d_value, through_dots.flatten(1) @ value.flatten(0, -2)


class _KeyLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Tensor, eps: float) -> Tensor:
        with full_precision(value.device):
            wide, weights = value.to(accumulation_dtype(value)), weights.to(accumulation_dtype(value))
            scale = inverse_rms(wide, eps)
            logits = (linear(wide, weights).movedim(-1, 0) * scale).contiguous()
        ctx.save_for_backward(value, weights, scale, logits)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, weights, scale, logits = ctx.saved_tensors
        d_value, d_weights = _key_gradient(None, grad, value.to(weights.dtype), weights, scale, logits)
        return d_value.to(value.dtype), d_weights, None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, n: int, *values_and_logits: Tensor) -> tuple[Tensor, ...]:
        values, logits = values_and_logits[:n], values_and_logits[n:]
        stacked = torch.stack(logits)
        log_sum_exp = torch.logsumexp(stacked, dim=0)
        alphas = torch.exp(stacked - log_sum_exp)
        outs = [_weighted_sum(of_read.unbind(0), values).to(values[0].dtype) for of_read in alphas.unbind(1)]
        ctx.n = n
        ctx.save_for_backward(log_sum_exp, *values_and_logits)
        return log_sum_exp, *outs

    @staticmethod
    def backward(ctx: Any, d_log_sum_exp: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        log_sum_exp, *values_and_logits = ctx.saved_tensors
        values, logits = values_and_logits[: ctx.n], torch.stack(values_and_logits[ctx.n :])
        alphas = torch.exp(logits - log_sum_exp)
        buffer = torch.empty_like(grads[0])
        dots = torch.stack([torch.stack([_dot(v, grad, buffer) for grad in grads]) for v in values])
        dots = dots.to(alphas.dtype)
        d_logits = alphas * (dots - (alphas * dots).sum(0) + d_log_sum_exp)
        d_values = [_weighted_sum(alpha.unbind(0), grads).to(v.dtype) for alpha, v in zip(alphas, values, strict=True)]
        return None, *d_values, *d_logits.unbind(0)


class _Merge(torch.autograd.Function):
    # torch.compile without gradients drops ctx where there are as many arguments as names here: hence so few names.
    @staticmethod
    def forward(ctx: Any, eps: float, number: int, n: int, *tensors: Any) -> Tensor:
        gain, out, log_sum_exp, partial, weight, *rest = tensors
        values, logits, key_scale, dtype = [out, *rest[:n]], [log_sum_exp[number], *rest[n : 2 * n]], None, out.dtype
        if partial is not None and weight is not None:
            wide, weight = partial.to(log_sum_exp.dtype), weight.to(log_sum_exp.dtype)
            key_scale = inverse_rms(wide, eps)
            values.append(wide)
            logits.append(_dot(wide, weight, torch.empty_like(wide)) * key_scale)
        stacked = torch.stack(logits)
        betas = torch.softmax(stacked, dim=0)
        read = _weighted_sum(betas.unbind(0), values)
        scale = None
        if gain is not None:
            scale = inverse_rms(read, eps).unsqueeze(-1)
            read.mul_(scale).mul_(gain)
        ctx.n, ctx.number, ctx.eps = n, number, eps
        ctx.save_for_backward(
            gain, scale, partial, weight, key_scale, logits[-1], log_sum_exp, betas, *rest[:n], *rest[2 * n :]
        )
        return read.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gain, scale, partial, weight, key_scale, key_logit, log_sum_exp, betas, *rest = ctx.saved_tensors
        since, sources = rest[: ctx.n], rest[ctx.n :]
        values, logits = sources[: len(sources) // 2], sources[len(sources) // 2 :]
        alphas = torch.exp(torch.stack([logit[ctx.number] for logit in logits]) - log_sum_exp[ctx.number])
        dtype, grad = grad.dtype, grad.to(betas.dtype)
        merged = [_weighted_sum(alphas.unbind(0), values), *since]
        if partial is not None:
            merged.append(partial.to(betas.dtype))
        d_gain = d_weight = None
        if gain is not None:
            normed = _weighted_sum(betas.unbind(0), merged).mul_(scale)
            buffer = grad * normed
            d_gain = buffer.flatten(0, -2).sum(0)
            along = buffer.mul_(gain).sum(-1, keepdim=True)
            grad = normed.mul_(along / -gain.numel()).addcmul_(grad, gain).mul_(scale)
            mean = (along * scale.square() * ctx.eps).squeeze(-1)  # grad . read, but for eps orthogonal to the read
        else:
            buffer = torch.empty_like(grad)
            mean = _dot(grad, _weighted_sum(betas.unbind(0), merged), buffer)
        d_logits = [beta * (_dot(grad, v, buffer) - mean) for beta, v in zip(betas[1:], merged[1:], strict=True)]
        d_out, *d_values = [beta.unsqueeze(-1) * grad for beta in betas.unbind(0)]
        d_partial = None
        if partial is not None:
            key = (weight.unsqueeze(0), key_scale, key_logit.unsqueeze(0))
            d_partial, d_weight = _key_gradient(d_values.pop(), d_logits[-1].unsqueeze(0), merged[-1], *key)
            d_partial, d_weight = d_partial.to(dtype), d_weight[0]
        d_log_sum_exp = torch.zeros_like(log_sum_exp)
        if d_logits:
            d_log_sum_exp[ctx.number] = -torch.stack(d_logits).sum(0)
        d_since = [d_value.to(dtype) for d_value in d_values]
        nothing = [None] * len(sources)
        return (
            None, None, None, d_gain, d_out.to(dtype), d_log_sum_exp, d_partial, d_weight,
            *d_since, *d_logits[: ctx.n], *nothing,
        )  # fmt: skip
