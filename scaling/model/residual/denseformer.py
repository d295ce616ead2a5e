"""DenseFormer (arXiv 2402.02622, section 3): depth-weighted averages with learned scalars.

After a Transformer layer the stream becomes Y = sum_j a_j X_j over the embedding X_0 and the streams X_j as each layer
before and this one left them; the next layer adds its outputs to Y.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from scaling.model.residual.numerics import full_precision
from scaling.model.residual.scheme import ResidualScheme, check_whole


class DenseFormerState(NamedTuple):
    """The stream, and what it was before each average."""

    stream: Tensor
    """(B, T, D)."""
    earlier: tuple[Tensor, ...]
    """The embedding, then the stream at the end of each period, (B, T, D) each."""


class DenseFormer(ResidualScheme, name="denseformer"):
    """Starts as the baseline: a stream's own weight is 1, all others are 0.

    Options: `period`, sublayers from one average to the next; 2, a Transformer layer, as its paper has it. arXiv
    2603.15031 does not state its own (table 5 lists every h as a source, which is 1). Every average sees all that came
    before (dilation 1).
    """

    def __init__(self, n_sublayers: int, d_model: int, eps: float, *, period: int = 2) -> None:
        super().__init__(n_sublayers, d_model, eps)
        check_whole("period", period, 1, n_sublayers, "the model's sublayers")
        self.period = period
        self.sizes = [k + 2 for k in range(n_sublayers // period)]
        self.weights = nn.Parameter(torch.empty(sum(self.sizes)))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """1 for the last stream of every average, 0 for the others."""
        self.weights.zero_()
        for of_average in self.weights.split(self.sizes):
            of_average[-1] = 1.0

    def start(self, embedding: Tensor) -> DenseFormerState:
        """The embedding (B, T, D)."""
        return DenseFormerState(embedding, (embedding,))

    def read(self, state: DenseFormerState, sublayer: int) -> Tensor:
        """The stream (B, T, D)."""
        return state.stream

    def write(self, state: DenseFormerState, sublayer: int, output: Tensor) -> DenseFormerState:
        """The stream with the output (B, T, D) in it, averaged at the end of a period."""
        stream = state.stream + output
        if (sublayer + 1) % self.period:
            return state._replace(stream=stream)
        earlier = (*state.earlier, stream)
        weights = self.weights.split(self.sizes)[sublayer // self.period].unbind()
        with full_precision(stream.device):
            average = weights[0] * earlier[0]
            for weight, value in zip(weights[1:], earlier[1:], strict=True):
                average = torch.addcmul(average, weight, value)
        return DenseFormerState(average, earlier)

    def finish(self, state: DenseFormerState) -> Tensor:
        """The stream (B, T, D)."""
        return state.stream

    @property
    def flops_per_token(self) -> int:
        """2 D for each stream of each average."""
        return 2 * self.d_model * sum(self.sizes)
