"""Other ways to weigh the sources of a read: the ablations of arXiv 2603.15031, table 4, by plain and slower means.

Every source is weighed by itself, so no stack of sources exists and nothing is kept for the backward pass but the
sources, scalars a token, and where queries depend on the input, two vectors a read.

Letters: B batch, T time, D width, N sources, R reads, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scaling.errors import ConfigError
from scaling.model.residual.numerics import full_precision, inverse_rms
from scaling.model.residual.scheme import check_whole

CHOICES = {
    "query": ("static", "input"),
    "mixing": ("attention", "scalars"),
    "activation": ("softmax", "sigmoid"),
    "key_norm": (True, False),
}


@dataclass(frozen=True)
class ReadOptions:
    """How a read weighs its sources; the defaults are the paper's method. What it leaves open is said."""

    query: str = "static"
    """`static`: a learned vector. `input`: a learned D x D projection of the current hidden state, for which we take
    the sum of all sources, which is the plain residual stream, RMS-normed without a gain; it starts at 0."""
    mixing: str = "attention"
    """`attention`: logits are query . key. `scalars`: logits are learned numbers, softmaxed as others are; start 0."""
    activation: str = "softmax"
    """`softmax` over the sources. `sigmoid` of each logit by itself, not divided by their sum."""
    key_norm: bool = True
    """Whether keys are RMS-normed, with a gain, over the whole width; values never are."""
    n_heads: int = 1
    """Groups of channels, each with weights of its own; query and key are split among them."""
    window: int | None = None
    """Sources seen beside the embedding, the last so many; all of them if not given."""

    def check(self, n_sublayers: int, d_model: int) -> None:
        """Raise ConfigError where a value is not one of the choices, or two exclude each other."""
        problems = [
            f"residual.options.{option} is {value!r}: must be {' or '.join(str(c).lower() for c in choices)}"
            for option, choices in CHOICES.items()
            if type(value := getattr(self, option)) is not type(choices[0]) or value not in choices
        ]
        if self.mixing == "scalars":
            problems += [
                f"residual.options.{option} must be left out where residual.options.mixing is scalars: it has no {what}"
                for option, what in (("query", "queries"), ("key_norm", "keys"))
                if getattr(self, option) != getattr(ReadOptions, option)
            ]
        if problems:
            raise ConfigError(problems)
        check_whole("n_heads", self.n_heads, 1, d_model, "the model's width")
        if d_model % self.n_heads:
            raise ConfigError(f"residual.options.n_heads is {self.n_heads}: must divide the model's width, {d_model}")
        if self.window is not None:
            check_whole("window", self.window, 1, n_sublayers, "the model's sublayers")

    def seen(self, sources: int) -> int:
        """Of so many sources beside the embedding, those within the window."""
        return sources if self.window is None else min(sources, self.window)


class VariantRead(nn.Module):
    """Reads 1 .. R, of which each has its own parameters; read 0 sees only the embedding and needs none."""

    def __init__(self, options: ReadOptions, sources_per_read: Sequence[int], d_model: int, eps: float) -> None:
        super().__init__()
        self.options, self.sources_per_read, self.d_model, self.eps = options, tuple(sources_per_read), d_model, eps
        n_reads, d = len(self.sources_per_read), d_model
        self.sizes = [n * options.n_heads for n in self.sources_per_read]
        if options.mixing == "scalars":
            self.scalars = nn.Parameter(torch.empty(sum(self.sizes)))
            return
        self.queries = nn.Parameter(torch.empty(n_reads, *([d] if options.query == "static" else [d, d])))
        if options.key_norm:
            self.gains = nn.Parameter(torch.empty(n_reads, d))

    def init_weights(self) -> None:
        """Gains 1, everything else 0: all sources of a read weigh the same."""
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, float(name == "gains"))

    def forward(self, sources: list[Tensor], read: int) -> Tensor:
        """Weighted sum (B, T, D) of the sources (B, T, D), the embedding first, that the read sees of them."""
        with full_precision(sources[0].device):
            weights = self.weights(sources, read)
            values = [source.unflatten(-1, (self.options.n_heads, -1)) for source in self._seen(sources)]
            total = weights[0].unsqueeze(-1) * values[0]
            for weight, value in zip(weights[1:], values[1:], strict=True):
                total = torch.addcmul(total, weight.unsqueeze(-1), value)
            return total.flatten(-2)

    def weights(self, sources: list[Tensor], read: int) -> Tensor:
        """(N, B, T, H) over those of the sources that the read sees, or (N, H) where the input has no say."""
        logits = self._logits(self._seen(sources), self._query(sources, read), read)
        return logits.softmax(0) if self.options.activation == "softmax" else logits.sigmoid()

    def mean_weights(self, sources: list[Tensor], read: int) -> Tensor:
        """(N, B, T) over all sources, the mean of the heads; 0 for those outside the window."""
        with full_precision(sources[0].device):
            weights = self.weights(sources, read).mean(-1)
        weights = weights.view(-1, *weights.shape[1:] or (1, 1)).expand(-1, *sources[0].shape[:2])
        unseen = weights.new_zeros(len(sources) - len(weights), *weights.shape[1:])
        return torch.cat((weights[:1], unseen, weights[1:]))

    def _seen(self, sources: list[Tensor]) -> list[Tensor]:
        return [sources[0], *sources[len(sources) - self.options.seen(len(sources) - 1) :]]

    def _query(self, sources: list[Tensor], read: int) -> Tensor | None:
        """(D) or (B, T, D), with the gain of the keys in it."""
        if self.options.mixing == "scalars":
            return None
        query = self.queries[read - 1]
        if self.options.query == "input":
            stream = sum(sources[1:], start=sources[0])
            query = F.linear(stream, query) * inverse_rms(stream, self.eps).unsqueeze(-1)
        return query * self.gains[read - 1] if self.options.key_norm else query

    def _logits(self, sources: list[Tensor], query: Tensor | None, read: int) -> Tensor:
        """(N, B, T, H), or (N, H) where the input has no say."""
        if query is None:
            return self.scalars.split(self.sizes)[read - 1].view(-1, self.options.n_heads)
        logits = []
        for source in sources:
            logit = (source * query).unflatten(-1, (self.options.n_heads, -1)).sum(-1)
            logits.append(logit * inverse_rms(source, self.eps).unsqueeze(-1) if self.options.key_norm else logit)
        return torch.stack(logits)

    @property
    def flops_per_token(self) -> int:
        """2 D for each weighted source, 2 D for its logit; 2 D for each key's mean square; 2 D (D + 1) for a query.

        A static query and scalars cost nothing.
        """
        reads, weighted = len(self.sources_per_read), sum(self.sources_per_read)
        total = 2 * weighted
        if self.options.mixing == "attention":
            total += 2 * weighted + 2 * (reads + 1) * self.options.key_norm
        if self.options.query == "input":
            total += 2 * reads * (self.d_model + 1)
        return total * self.d_model
