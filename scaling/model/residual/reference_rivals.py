"""The schemes that Attention Residuals are compared with, written as their papers define them: slow and obvious.

Each class has the four methods of a residual scheme over the scheme's own parameters. Every contraction over D but a
mean square is an einsum, so that PyTorch's FLOP counter sees it.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) over the last dimension."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


class HighwayReference:
    """arXiv 2603.15031, section 6.2; the state is h."""

    def __init__(self, weights: Tensor, biases: Tensor, eps: float):
        self.weights, self.biases, self.eps = weights, biases, eps

    def start(self, embedding: Tensor) -> Tensor:
        """The embedding."""
        return embedding

    def read(self, state: Tensor, sublayer: int) -> Tensor:
        """The mix."""
        return state

    def write(self, state: Tensor, sublayer: int, output: Tensor) -> Tensor:
        """(1 - g) h + g f(h)."""
        logit = torch.einsum("btd,d->bt", rms_norm(state, self.eps), self.weights[sublayer]) + self.biases[sublayer]
        g = torch.sigmoid(logit)
        return torch.einsum("nbt,nbtd->btd", torch.stack([1 - g, g]), torch.stack([state, output]))

    def finish(self, state: Tensor) -> Tensor:
        """The mix."""
        return state


class DenseFormerReference:
    """arXiv 2402.02622, section 3; the state is Y and every X so far."""

    def __init__(self, averages: list[Tensor], period: int):
        self.averages, self.period = averages, period

    def start(self, embedding: Tensor) -> list[Tensor]:
        """Y_0 = X_0."""
        return [embedding, embedding]

    def read(self, state: list[Tensor], sublayer: int) -> Tensor:
        """Y and what was added to it since."""
        return state[0]

    def write(self, state: list[Tensor], sublayer: int, output: Tensor) -> list[Tensor]:
        """X = Y + outputs, then Y = sum of a_j X_j."""
        new, *earlier = state[0] + output, *state[1:]
        if (sublayer + 1) % self.period != 0:
            return [new, *earlier]
        weights = self.averages[(sublayer + 1) // self.period - 1]
        return [torch.einsum("n,nbtd->btd", weights, torch.stack([*earlier, new])), *earlier, new]

    def finish(self, state: list[Tensor]) -> Tensor:
        """Y."""
        return state[0]


class StreamsReference:
    """arXiv 2409.19606, equations 2 to 5; the state is H (B, T, m, D)."""

    n_streams: int

    def maps(self, streams: Tensor, sublayer: int, which: str) -> Tensor:
        """`read` (B, T, m), `write` (B, T, m) or `mix` (B, T, m, m), entry (i, j) the weight of old i in new j."""
        raise NotImplementedError

    def start(self, embedding: Tensor) -> Tensor:
        """Copies of the embedding."""
        return torch.stack([embedding] * self.n_streams, dim=2)

    def read(self, state: Tensor, sublayer: int) -> Tensor:
        """The weighted sum of the streams."""
        return torch.einsum("btm,btmd->btd", self.maps(state, sublayer, "read"), state)

    def write(self, state: Tensor, sublayer: int, output: Tensor) -> Tensor:
        """Every new stream from all old ones and the output."""
        weights = torch.cat([self.maps(state, sublayer, "mix"), self.maps(state, sublayer, "write")[:, :, None]], dim=2)
        return torch.einsum("btij,btid->btjd", weights, torch.cat([state, output[:, :, None]], dim=2))

    def finish(self, state: Tensor) -> Tensor:
        """The sum of the streams."""
        return state.sum(2)


class HyperConnectionsReference(StreamsReference):
    """arXiv 2409.19606, equations 10 to 13."""

    def __init__(self, reads: Tensor, mixes: Tensor, writes: Tensor, projections: Tensor, scales: Tensor, eps: float):
        self.static = {"read": reads, "mix": mixes, "write": writes}
        self.projections, self.scales, self.eps = projections, scales, eps
        self.n_streams = reads.shape[1]

    def maps(self, streams: Tensor, sublayer: int, which: str) -> Tensor:
        """scale * tanh(norm(H) W) + static."""
        m = self.n_streams
        columns = {"read": slice(0, 1), "mix": slice(1, m + 1), "write": slice(m + 1, m + 2)}[which]
        projected = torch.einsum("btmd,dn->btmn", rms_norm(streams, self.eps), self.projections[sublayer][:, columns])
        scale = self.scales[sublayer, 0 if which == "write" else 1]
        dynamic = scale * torch.tanh(projected)
        return self.static[which][sublayer] + (dynamic if which == "mix" else dynamic[..., 0])


class MhcReference(StreamsReference):
    """arXiv 2512.24880, equations 7 to 9."""

    def __init__(self, projections: Tensor, scales: Tensor, biases: Tensor, n_streams: int, eps: float):
        self.projections, self.scales, self.biases = projections, scales, biases
        self.n_streams, self.eps = n_streams, eps

    def maps(self, streams: Tensor, sublayer: int, which: str) -> Tensor:
        """Constrained scale * (norm(vec H) W) + bias."""
        m = self.n_streams
        columns = {"read": slice(0, m), "write": slice(m, 2 * m), "mix": slice(2 * m, None)}[which]
        flat = rms_norm(streams.flatten(2), self.eps)
        projected = torch.einsum("btd,dn->btn", flat, self.projections[sublayer][:, columns])
        scale = self.scales[sublayer][["read", "write", "mix"].index(which)]
        logits = scale * projected + self.biases[sublayer][columns]
        if which == "mix":
            return self.matrix(logits).transpose(2, 3)
        return torch.sigmoid(logits) * (2 if which == "write" else 1)

    def matrix(self, logits: Tensor) -> Tensor:
        """Sinkhorn and Knopp's iteration, entry (i, j) the weight of old j in new i."""
        matrix = torch.exp(logits.unflatten(-1, (self.n_streams, self.n_streams)))
        for _ in range(20):
            matrix = matrix / matrix.sum(-2, keepdim=True)
            matrix = matrix / matrix.sum(-1, keepdim=True)
        return matrix


class MhcLiteReference(MhcReference):
    """arXiv 2601.05732, equations 4 and 5."""

    def matrix(self, logits: Tensor) -> Tensor:
        """The mean of all permutations."""
        weights = logits.softmax(-1)
        matrix = torch.zeros(
            *logits.shape[:2], self.n_streams, self.n_streams, dtype=logits.dtype, device=logits.device
        )
        for k, order in enumerate(permutations(range(self.n_streams))):
            permutation = torch.zeros_like(matrix)
            for i, j in enumerate(order):
                permutation[:, :, i, j] = 1.0
            matrix = matrix + weights[:, :, k, None, None] * permutation
        return matrix
