"""A highway (arXiv 1505.00387) with one scalar gate a sublayer: h_{l+1} = (1 - g_l) h_l + g_l f_l(h_l).

What the final norm and every sublayer see is a convex mix of the embedding and the outputs before it (arXiv 2603.15031,
section 6.2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.model.residual.numerics import full_precision, inverse_rms
from scaling.model.residual.scheme import ResidualScheme

INITIAL_BIAS = -2.0  # negative, so that a gate starts by carrying (its section 2.2); the value is our choice


class Highway(ResidualScheme, name="highway"):
    """The gate of a sublayer is sigmoid(w . h / rms(h) + b) of what the sublayer reads; the norm in it is our choice.

    Weights start at 0, biases at -2. It does not start as the baseline: outputs start with unequal weights.
    """

    def __init__(self, n_sublayers: int, d_model: int, eps: float) -> None:
        super().__init__(n_sublayers, d_model, eps)
        self.weights = nn.Parameter(torch.empty(n_sublayers, d_model))
        self.biases = nn.Parameter(torch.empty(n_sublayers))
        self.init_weights()

    def init_weights(self) -> None:
        """Weights 0, biases -2."""
        nn.init.zeros_(self.weights)
        nn.init.constant_(self.biases, INITIAL_BIAS)

    def start(self, embedding: Tensor) -> Tensor:
        """The embedding (B, T, D)."""
        return embedding

    def read(self, state: Tensor, sublayer: int) -> Tensor:
        """The mix so far (B, T, D)."""
        return state

    def gate(self, read: Tensor, sublayer: int) -> Tensor:
        """Share (B, T, 1) of a sublayer's output in what comes after it, from what it reads (B, T, D)."""
        with full_precision(read.device):
            logit = (read * self.weights[sublayer]).sum(-1) * inverse_rms(read, self.eps)
            return torch.sigmoid(logit + self.biases[sublayer]).unsqueeze(-1)

    def write(self, state: Tensor, sublayer: int, output: Tensor) -> Tensor:
        """The mix with the output (B, T, D) in it."""
        return torch.lerp(state, output.to(state.dtype), self.gate(state, sublayer))

    def finish(self, state: Tensor) -> Tensor:
        """The whole mix (B, T, D)."""
        return state

    @property
    def flops_per_token(self) -> int:
        """Of each sublayer 2 D for its mean square, 2 D for its logit, 4 D for a weighted sum of two."""
        return 8 * self.d_model * self.n_sublayers
