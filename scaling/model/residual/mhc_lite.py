"""mHC-lite (arXiv 2601.05732, section 3): an exactly doubly stochastic matrix, as a mean of permutations."""

from __future__ import annotations

from itertools import permutations
from math import factorial

import torch
from torch import Tensor

from scaling.model.residual.mhc import UNLIKELY, Mhc


class MhcLite(Mhc, name="mhc_lite"):
    """As `mhc`, but the mixing matrix is the mean of all m! permutations weighted by a softmax of their logits.

    It starts as its paper says, which is not the baseline: the logit of the identity is 0 and of others -8, and biases
    of the write are those of the read, so that each sublayer's output goes mostly to stream l mod m.

    Options: `n_streams`, m, at most 5.
    """

    table: Tensor
    most_streams = 5

    @property
    def n_mixing_logits(self) -> int:
        """m!, one a permutation, the identity first."""
        return factorial(self.n_streams)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As `mhc`'s, and the table of permutations (m!, m^2)."""
        super().init_weights()
        orders = torch.tensor(list(permutations(range(self.n_streams))), device=self.biases.device)
        table = torch.eye(self.n_streams, device=orders.device, dtype=self.biases.dtype)[orders]
        self.register_buffer("table", table.flatten(-2), persistent=False)

    def init_writes(self, biases: Tensor, reads: Tensor) -> None:
        """As the reads'."""
        biases.copy_(reads)

    def init_mixes(self, biases: Tensor) -> None:
        """The identity."""
        biases.fill_(UNLIKELY)
        biases[:, 0] = 0.0

    def doubly_stochastic(self, logits: Tensor) -> Tensor:
        """The mixing matrix (B, T, m, m) from the permutations' logits (B, T, m!)."""
        return (logits.softmax(-1) @ self.table).unflatten(-1, (self.n_streams, self.n_streams))
