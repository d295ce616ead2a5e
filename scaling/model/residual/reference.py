"""Attention Residuals written as arXiv 2603.15031 defines them: slow and obvious, the judge of the fast versions.

It keeps every sublayer's output, sums blocks anew at every read, stacks the sources and leaves the gradient to
autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling.model.residual.read_variants import ReadOptions


def rms_norm(key: Tensor, gain: Tensor, eps: float) -> Tensor:
    """key / rms(key) * gain over the last dimension."""
    return key * torch.rsqrt((key * key).mean(-1, keepdim=True) + eps) * gain


def read_sources(query: Tensor, gain: Tensor, sources: list[Tensor], eps: float) -> Tensor:
    """Softmax over N sources (B, T, D) of query (D) . RMSNorm(source), then their weighted sum (B, T, D)."""
    values = torch.stack(sources)
    logits = torch.einsum("d,nbtd->nbt", query, rms_norm(values, gain, eps))
    return torch.einsum("nbt,nbtd->btd", logits.softmax(0), values)


def sources_of_read(embedding: Tensor, outputs: list[Tensor], ends: tuple[int, ...]) -> list[Tensor]:
    """What the read after len(outputs) sublayers attends to: embedding, finished block sums, the open block's sum."""
    sources, begin, done = [embedding], 0, len(outputs)
    for end in ends:
        members = outputs[begin : min(end, done)]
        if members:
            sources.append(torch.stack(members).sum(0))
        begin = end
    return sources


class Reference:
    """The four methods of a residual scheme over a Block's or Full's own parameters; the state is what was written."""

    def __init__(self, queries: Tensor, gains: Tensor, ends: tuple[int, ...], eps: float):
        self.queries, self.gains, self.ends, self.eps = queries, gains, ends, eps

    def start(self, embedding: Tensor) -> list[Tensor]:
        """The embedding (B, T, D)."""
        return [embedding]

    def read(self, state: list[Tensor], sublayer: int) -> Tensor:
        """What sublayer 0 .. L-1 sees, or with L the final read: (B, T, D)."""
        embedding, *outputs = state
        if sublayer == 0:
            return embedding
        sources = sources_of_read(embedding, outputs, self.ends)
        return read_sources(self.queries[sublayer - 1], self.gains[sublayer - 1], sources, self.eps)

    def write(self, state: list[Tensor], sublayer: int, output: Tensor) -> list[Tensor]:
        """Keep the output."""
        return [*state, output]

    def finish(self, state: list[Tensor]) -> Tensor:
        """The final read (B, T, D)."""
        return self.read(state, len(state) - 1)


class VariantReference(Reference):
    """The same with other reads; queries may be projections (L, D, D), and scalars are (N, H) for each read."""

    def __init__(
        self,
        options: ReadOptions,
        ends: tuple[int, ...],
        eps: float,
        queries: Tensor | None = None,
        gains: Tensor | None = None,
        scalars: list[Tensor] | None = None,
    ):
        self.options, self.ends, self.eps = options, ends, eps
        self.own_queries, self.own_gains, self.scalars = queries, gains, scalars

    def read(self, state: list[Tensor], sublayer: int) -> Tensor:
        """What sublayer 0 .. L-1 sees, or with L the final read: (B, T, D)."""
        embedding, *outputs = state
        if sublayer == 0:
            return embedding
        everything = sources_of_read(embedding, outputs, self.ends)
        values = torch.stack([everything[0], *everything[1:][-(self.options.window or len(everything)) :]])
        logits = self.logits(values, torch.stack(everything).sum(0), sublayer - 1)
        weights = logits.softmax(0) if self.options.activation == "softmax" else logits.sigmoid()
        return torch.einsum("nbth,nbthc->bthc", weights, self.heads(values)).flatten(-2)

    def heads(self, x: Tensor) -> Tensor:
        """(..., D) as (..., H, D / H)."""
        return x.unflatten(-1, (self.options.n_heads, -1))

    def logits(self, values: Tensor, stream: Tensor, row: int) -> Tensor:
        """(N, B, T, H) of values (N, B, T, D)."""
        if self.scalars is not None:
            return self.scalars[row][:, None, None, :].expand(*values.shape[:3], -1)
        assert self.own_queries is not None
        query, keys = self.own_queries[row], values
        if self.options.query == "input":
            query = torch.einsum("btd,ed->bte", rms_norm(stream, torch.ones_like(stream[0, 0]), self.eps), query)
        if self.own_gains is not None:
            keys = rms_norm(values, self.own_gains[row], self.eps)
        return torch.einsum("bthc,nbthc->nbth", self.heads(query.expand_as(stream)), self.heads(keys))
