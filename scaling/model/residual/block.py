"""Block Attention Residuals: depth attention over the embedding, finished block sums and the open block's sum.

arXiv 2603.15031. A block is a run of sublayers (not of Transformer layers) whose outputs are summed. Source 0 is the
embedding and belongs to no block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scaling.errors import ConfigError
from scaling.model.residual.depth_attention import Mixed, key_logits, merge, mix
from scaling.model.residual.read_variants import ReadOptions, VariantRead
from scaling.model.residual.scheme import ResidualScheme, check_whole

DEFAULT_BLOCKS = 8  # the paper recommends about 8
READS_PER_BATCH = 4  # fewer make more passes over the finished sources, more make longer merges


class Source(NamedTuple):
    """The embedding or a finished block's sum."""

    value: Tensor
    """(B, T, D)."""
    logits: dict[int, Tensor]
    """For the reads to come: (S, B, T) of a batch under the number of its first read, (1, B, T) of a read alone."""


class BlockState(NamedTuple):
    """What the reads to come can see."""

    weights: Tensor | None
    """Queries times gains of the key norm (L, D); None where reads are a variant."""
    sources: tuple[Source, ...]
    """The embedding and the finished blocks."""
    mixed: Mixed | None
    """The first of these, mixed for the batch of reads that began last; None where reads are a variant."""
    partial: Tensor | None
    """The open block's sum so far (B, T, D); None when none is open."""


def block_ends(n_sublayers: int, n_blocks: int | None = None, block_size: int | None = None) -> tuple[int, ...]:
    """Where each block ends: block n holds the sublayers from the end before it up to, not including, its own end.

    `n_blocks` balances: sizes differ by at most one. `block_size` is in sublayers; the last block may be shorter.
    """
    if block_size is not None:
        return (*range(block_size, n_sublayers, block_size), n_sublayers)
    assert n_blocks is not None
    return tuple((i + 1) * n_sublayers // n_blocks for i in range(n_blocks))


def read_batches(ends: tuple[int, ...], at_least: int = READS_PER_BATCH) -> tuple[int, ...]:
    """The read with which each batch begins: the first, then at block ends, at least this many reads apart."""
    begins = [1]
    for end in ends:
        if end - begins[-1] >= at_least:
            begins.append(end)
    return tuple(begins)


class AttentionResiduals(ResidualScheme):
    """One learned query and one key-norm gain for each read but the first, whose only source is the embedding.

    Queries start at exactly 0, so every read starts as the plain mean of its sources. `ends` are those of the blocks;
    with options that are not the default, `variant` does the reads, and only the sums of blocks are made here.
    """

    def __init__(self, n_sublayers: int, d_model: int, eps: float, ends: tuple[int, ...], options: ReadOptions) -> None:
        super().__init__(n_sublayers, d_model, eps)
        options.check(n_sublayers, d_model)
        self.ends, self.options, self.n_channel_groups = ends, options, options.n_heads
        self.variant: VariantRead | None = None
        self.batches: tuple[int, ...] = ()
        if options == ReadOptions():
            self.batches = read_batches(ends)
            # Row l - 1 serves the read of sublayer l; the last row serves the final read.
            self.queries = nn.Parameter(torch.empty(n_sublayers, d_model))
            self.gains = nn.Parameter(torch.empty(n_sublayers, d_model))
        else:
            self.variant = VariantRead(options, self.sources_per_read[1:], d_model, eps)
        self.init_weights()

    def init_weights(self) -> None:
        """Queries 0, gains 1."""
        if self.variant is not None:
            return self.variant.init_weights()
        nn.init.zeros_(self.queries)
        nn.init.ones_(self.gains)

    def start(self, embedding: Tensor) -> BlockState:
        """Source 0 is the embedding (B, T, D)."""
        if self.variant is not None:
            return BlockState(None, (Source(embedding, {}),), None, None)
        weights = self.queries * self.gains
        source = self._source(embedding, weights, 1)
        return BlockState(weights, (source,), self._mix((source,), 1), None)

    def _source(self, value: Tensor, weights: Tensor | None, read: int) -> Source:
        """A source that is seen from this read on."""
        if weights is None:
            return Source(value, {})
        begins = [read, *(b for b in self.batches if b > read)]
        if begins[0] not in self.batches:  # the batch has begun: the rest of it sees this source one by one
            begins[:1] = range(read, begins[1] if len(begins) > 1 else self.n_sublayers + 1)
        sizes = [b - a for a, b in pairwise([*begins, self.n_sublayers + 1])]
        logits = key_logits(value, weights[read - 1 :], self.eps).split(sizes)
        return Source(value, dict(zip(begins, logits, strict=True)))

    def _mix(self, sources: tuple[Source, ...], read: int) -> Mixed:
        return mix([s.value for s in sources], [s.logits[read] for s in sources])

    def read(self, state: BlockState, sublayer: int) -> Tensor:
        """Depth attention (B, T, D) over the sources, the open block's sum last; the embedding itself at first."""
        return self._read(state, sublayer, None)

    def normed_read(self, state: BlockState, sublayer: int, norm: nn.RMSNorm) -> Tensor:
        """`read` and the sublayer's PreNorm as one, so that the read itself need not be kept."""
        return self._read(state, sublayer, norm)

    def _read(self, state: BlockState, sublayer: int, norm: nn.RMSNorm | None) -> Tensor:
        if sublayer == 0:
            value = state.sources[0].value
            return value if norm is None else norm(value)
        if self.variant is not None:
            value = self.variant(self._values(state), sublayer)
            return value if norm is None else norm(value)
        assert state.weights is not None
        assert state.mixed is not None
        begin = max(b for b in self.batches if b <= sublayer)
        since = [(s.value, s.logits[sublayer][0]) for s in state.sources[len(state.mixed.values) :]]
        open_block = None if state.partial is None else (state.partial, state.weights[sublayer - 1])
        gain = norm.weight if norm is not None and (since or open_block) else None
        value = merge(state.mixed, sublayer - begin, since, open_block, gain, self.eps)
        return value if norm is None or gain is not None else norm(value)  # where nothing is merged, norm alone

    def read_weights(self, state: BlockState, sublayer: int) -> Tensor:
        """Depth attention's weights (N, B, T): embedding, finished blocks, open block; all 1 at the first read."""
        values = self._values(state)
        if sublayer == 0:
            return values[0].new_ones(1, *values[0].shape[:2])
        if self.variant is not None:
            return self.variant.mean_weights(values, sublayer)
        assert state.weights is not None
        weights = state.weights[sublayer - 1].unsqueeze(0)
        return torch.cat([key_logits(value, weights, self.eps) for value in values]).softmax(0)

    def _values(self, state: BlockState) -> list[Tensor]:
        return [source.value for source in state.sources] + ([] if state.partial is None else [state.partial])

    def write(self, state: BlockState, sublayer: int, output: Tensor) -> BlockState:
        """Add the output (B, T, D) to the open block, and close the block after its last sublayer."""
        output = output.to(state.sources[0].value.dtype)  # under autocast the stream stays as wide as the embedding
        partial = output if state.partial is None else state.partial + output
        if sublayer + 1 not in self.ends:
            return state._replace(partial=partial)
        sources = (*state.sources, self._source(partial, state.weights, sublayer + 1))
        mixed = self._mix(sources, sublayer + 1) if sublayer + 1 in self.batches else state.mixed
        return BlockState(state.weights, sources, mixed, None)

    def finish(self, state: BlockState) -> Tensor:
        """Depth attention (B, T, D) over the embedding and every block."""
        return self.read(state, self.n_sublayers)

    @property
    def sources_per_read(self) -> tuple[int, ...]:
        """N of each read, the final one last: embedding, finished blocks, and the open block if there is one."""
        counts = []
        for sublayer in range(self.n_sublayers + 1):
            finished = sum(end <= sublayer for end in self.ends)
            is_open = 0 < sublayer < self.n_sublayers and sublayer not in self.ends
            counts.append(1 + self.options.seen(finished + is_open))
        return tuple(counts)

    @property
    def flops_per_token(self) -> int:
        """2 D per source for its mean square; 2 D for the logit and 2 D for the weighted sum, per source and read."""
        if self.variant is not None:
            return self.variant.flops_per_token
        mean_squares = 1 + self.n_sublayers
        return 2 * self.d_model * mean_squares + 4 * self.d_model * sum(self.sources_per_read[1:])


class Block(AttentionResiduals, name="block"):
    """Attention Residuals over block sums.

    Options: `n_blocks`, or `block_size` in sublayers; 8 blocks if neither is given. `query`, `mixing`, `activation`,
    `key_norm` and `n_heads` are those of `ReadOptions`.
    """

    def __init__(
        self,
        n_sublayers: int,
        d_model: int,
        eps: float,
        *,
        n_blocks: int | None = None,
        block_size: int | None = None,
        query: str = "static",
        mixing: str = "attention",
        activation: str = "softmax",
        key_norm: bool = True,
        n_heads: int = 1,
    ) -> None:
        if n_blocks is not None and block_size is not None:
            raise ConfigError("residual.options.n_blocks and residual.options.block_size: give one of the two")
        if n_blocks is None and block_size is None:
            n_blocks = DEFAULT_BLOCKS
        for key, value in (("n_blocks", n_blocks), ("block_size", block_size)):
            if value is not None:
                check_whole(key, value, 1, n_sublayers, "the model's sublayers")
        ends = block_ends(n_sublayers, n_blocks, block_size)
        super().__init__(n_sublayers, d_model, eps, ends, ReadOptions(query, mixing, activation, key_norm, n_heads))
