"""Several residual streams (arXiv 2409.19606, section 2): what hyper-connections and their constrained forms share.

    x = r . H,   H <- A H + w f(x)^T,   with H (m, D), and r (m), A (m, m), w (m) of each token and sublayer

Letters: B batch, T time, D width, m streams.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from scaling.model.residual.numerics import full_precision
from scaling.model.residual.scheme import ResidualScheme, check_whole


class Mapping(NamedTuple):
    """How one sublayer reads the streams and changes them."""

    read: Tensor
    """Weights of the streams in what it sees (B, T, m)."""
    mix: Tensor
    """Weights of the old streams in each new one (B, T, m, m), a row a new one."""
    write: Tensor
    """Weights of its output in each new stream (B, T, m)."""


class StreamsState(NamedTuple):
    """The streams, and how the sublayer to come treats them."""

    streams: Tensor
    """(B, T, m, D)."""
    mapping: Mapping | None
    """None after the last sublayer."""


class Streams(ResidualScheme):
    """m copies of the embedding at the start, their sum at the end; a subclass says how sublayers treat them."""

    def __init__(self, n_sublayers: int, d_model: int, eps: float, n_streams: int, most: int = 16) -> None:
        super().__init__(n_sublayers, d_model, eps)
        check_whole("n_streams", n_streams, 1, most)
        self.n_streams = n_streams

    @abstractmethod
    def mapping(self, streams: Tensor, sublayer: int) -> Mapping:
        """How a sublayer treats streams (B, T, m, D); called with autocast off."""

    @property
    @abstractmethod
    def mapping_flops(self) -> int:
        """Forward FLOPs per token and sublayer of contractions over D in `mapping`."""

    def _state(self, streams: Tensor, sublayer: int) -> StreamsState:
        return StreamsState(streams, self.mapping(streams, sublayer) if sublayer < self.n_sublayers else None)

    def start(self, embedding: Tensor) -> StreamsState:
        """Every stream is the embedding (B, T, D)."""
        with full_precision(embedding.device):
            return self._state(embedding.unsqueeze(-2).expand(-1, -1, self.n_streams, -1), 0)

    def read(self, state: StreamsState, sublayer: int) -> Tensor:
        """The sublayer's weighted sum of the streams (B, T, D)."""
        assert state.mapping is not None
        with full_precision(state.streams.device):
            return (state.mapping.read.unsqueeze(-2) @ state.streams).squeeze(-2)

    def write(self, state: StreamsState, sublayer: int, output: Tensor) -> StreamsState:
        """The streams mixed, with the output (B, T, D) in each of them."""
        assert state.mapping is not None
        output = output.to(state.streams.dtype)  # under autocast the streams stay as wide as the embedding
        with full_precision(output.device):
            mixed = state.mapping.mix @ state.streams
            streams = torch.addcmul(mixed, state.mapping.write.unsqueeze(-1), output.unsqueeze(-2))
            return self._state(streams, sublayer + 1)

    def finish(self, state: StreamsState) -> Tensor:
        """The sum of the streams (B, T, D)."""
        return state.streams.sum(-2)

    @property
    def flops_per_token(self) -> int:
        """2 m D for a read, 2 m (m + 1) D for a write, and the mapping's own; the sum at the end is not counted."""
        m = self.n_streams
        return self.n_sublayers * (2 * m * (m + 2) * self.d_model + self.mapping_flops)
