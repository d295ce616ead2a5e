"""Manifold-constrained hyper-connections (arXiv 2512.24880, sections 4.1 and 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.model.residual.numerics import inverse_rms
from scaling.model.residual.streams import Mapping, Streams

INITIAL_SCALE = 0.01  # its appendix A.1, as are the iterations
SINKHORN_ITERATIONS = 20
UNLIKELY = -8.0  # a mixing logit of what does not take part at the start


def sinkhorn(logits: Tensor, iterations: int = SINKHORN_ITERATIONS) -> Tensor:
    """A nearly doubly stochastic matrix (..., m, m): exp(logits), columns and rows divided by their sums in turn.

    In logarithms, because with a row or a column far below the others gradients of the quotients overflow float32.
    Rows sum to 1 exactly.
    """
    matrix = logits
    for _ in range(iterations):
        matrix = torch.log_softmax(torch.log_softmax(matrix, -2), -1)
    return matrix.exp()


class Mhc(Streams, name="mhc"):
    """Logits are a projection of all streams together, RMS-normed, times a learned scale, plus a bias.

    Reads are sigmoids, writes twice sigmoids, and the mixing matrix is made doubly stochastic by Sinkhorn's iteration.
    Its paper gives the start of the scales only. Ours: projections 0; biases of the read 1 for stream l mod m and -1
    for the others, of the mixing matrix near the identity (both as mHC-lite has them), of the write 0, a weight of 1.
    All streams are then equal, so it starts as the baseline. Their sum at the end is ours too, from arXiv 2409.19606.

    Options: `n_streams`, m.
    """

    most_streams = 16

    def __init__(self, n_sublayers: int, d_model: int, eps: float, *, n_streams: int = 4) -> None:
        super().__init__(n_sublayers, d_model, eps, n_streams, self.most_streams)
        n_logits = 2 * n_streams + self.n_mixing_logits
        # Of read, write and mixing matrix, in this order everywhere.
        self.projections = nn.Parameter(torch.empty(n_sublayers, n_streams * d_model, n_logits))
        self.scales = nn.Parameter(torch.empty(n_sublayers, 3))
        self.biases = nn.Parameter(torch.empty(n_sublayers, n_logits))
        self.init_weights()

    @property
    def n_mixing_logits(self) -> int:
        """m^2, one an entry of the mixing matrix."""
        return self.n_streams**2

    def _split(self, logits: Tensor) -> tuple[Tensor, ...]:
        return logits.split([self.n_streams, self.n_streams, self.n_mixing_logits], dim=-1)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Scales 0.01, projections 0, biases as the class says."""
        nn.init.zeros_(self.projections)
        nn.init.constant_(self.scales, INITIAL_SCALE)
        reads, writes, mixes = self._split(self.biases)
        stream = torch.arange(self.n_sublayers, device=reads.device) % self.n_streams
        reads.fill_(-1.0).scatter_(1, stream.unsqueeze(1), 1.0)
        self.init_writes(writes, reads)
        self.init_mixes(mixes)

    def init_writes(self, biases: Tensor, reads: Tensor) -> None:
        """Set the biases (L, m) of the writes, given those of the reads."""
        biases.zero_()

    def init_mixes(self, biases: Tensor) -> None:
        """Set the biases (L, m^2) of the mixing matrices."""
        biases.unflatten(-1, (self.n_streams, self.n_streams)).copy_(UNLIKELY * (1 - torch.eye(self.n_streams)))

    def doubly_stochastic(self, logits: Tensor) -> Tensor:
        """The mixing matrix (B, T, m, m) from its logits (B, T, m^2)."""
        return sinkhorn(logits.unflatten(-1, (self.n_streams, self.n_streams)))

    def mapping(self, streams: Tensor, sublayer: int) -> Mapping:
        """The three constrained maps of all streams together."""
        flat = streams.flatten(-2)
        scale = inverse_rms(flat, self.eps).unsqueeze(-1)  # after the product, so that no normed copy is kept
        dynamic, biases = self._split(flat @ self.projections[sublayer] * scale), self._split(self.biases[sublayer])
        read, write, mix = (
            torch.addcmul(bias, scale, part)
            for bias, scale, part in zip(biases, self.scales[sublayer].unbind(), dynamic, strict=True)
        )
        return Mapping(torch.sigmoid(read), self.doubly_stochastic(mix), 2 * torch.sigmoid(write))

    @property
    def mapping_flops(self) -> int:
        """2 m D for the mean square, and for each logit."""
        return 2 * self.n_streams * self.d_model * (1 + 2 * self.n_streams + self.n_mixing_logits)
