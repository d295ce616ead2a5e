"""Dynamic hyper-connections (arXiv 2409.19606, sections 2.2 and 2.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.model.residual.numerics import inverse_rms
from scaling.model.residual.streams import Mapping, Streams

INITIAL_SCALE = 0.01  # its appendix J


class HyperConnections(Streams, name="hyper_connections"):
    """Weights are learned matrices plus scale * tanh of a projection of each RMS-normed stream, without a gain.

    Starts as the baseline (section 2.3): sublayer l reads stream l mod m, writes to all with weight 1, streams do not
    mix, projections are 0. The factor sqrt(m) of its section 4 on the initial weights that write is left out, because
    shared weights are equal in all arms. Nothing here is decayed; its paper decays the projections.

    Options: `n_streams`, m.
    """

    def __init__(self, n_sublayers: int, d_model: int, eps: float, *, n_streams: int = 4) -> None:
        super().__init__(n_sublayers, d_model, eps, n_streams)
        self.reads = nn.Parameter(torch.empty(n_sublayers, n_streams))
        # Entry (i, j): weight of old stream i in new stream j.
        self.mixes = nn.Parameter(torch.empty(n_sublayers, n_streams, n_streams))
        self.writes = nn.Parameter(torch.empty(n_sublayers, n_streams))
        # Columns: read, the m new streams, write. Scales: of the write, of all others.
        self.projections = nn.Parameter(torch.empty(n_sublayers, d_model, n_streams + 2))
        self.scales = nn.Parameter(torch.empty(n_sublayers, 2))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Where every stream carries the plain residual stream."""
        stream = torch.arange(self.n_sublayers, device=self.reads.device) % self.n_streams
        self.reads.zero_().scatter_(1, stream.unsqueeze(1), 1.0)
        self.mixes.copy_(torch.eye(self.n_streams))
        nn.init.ones_(self.writes)
        nn.init.zeros_(self.projections)
        nn.init.constant_(self.scales, INITIAL_SCALE)

    def mapping(self, streams: Tensor, sublayer: int) -> Mapping:
        """What is learned, and what follows from each stream."""
        scale = inverse_rms(streams, self.eps).unsqueeze(-1)  # after the product, so that no normed copy is kept
        dynamic = torch.tanh(streams @ self.projections[sublayer] * scale)
        of_write, of_others = self.scales[sublayer].unbind()
        return Mapping(
            read=self.reads[sublayer] + of_others * dynamic[..., 0],
            mix=(self.mixes[sublayer] + of_others * dynamic[..., 1:-1]).transpose(-1, -2),
            write=self.writes[sublayer] + of_write * dynamic[..., -1],
        )

    @property
    def mapping_flops(self) -> int:
        """Of each stream 2 D for its mean square and 2 D for each of m + 2 weights."""
        return 2 * self.n_streams * (self.n_streams + 3) * self.d_model
