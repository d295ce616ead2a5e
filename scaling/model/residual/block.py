"""Block Attention Residuals: depth attention over the embedding, finished block sums and the open block's sum.

PAPER section 1. A block is a run of sublayers (not of Transformer layers) whose outputs are summed. Source 0 is the
embedding and belongs to no block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from scaling.errors import ConfigError
from scaling.model.residual.depth_attention import Source, as_source, depth_attention
from scaling.model.residual.scheme import ResidualScheme

DEFAULT_BLOCKS = 8  # PAPER section 1 recommends about 8


class BlockState(NamedTuple):
    """The embedding and the finished blocks, and the open block's sum so far (B, T, D), None when none is open."""

    sources: tuple[Source, ...]
    partial: Tensor | None


def block_ends(n_sublayers: int, n_blocks: int | None = None, block_size: int | None = None) -> tuple[int, ...]:
    """Where each block ends: block n holds the sublayers from the end before it up to, not including, its own end.

    `n_blocks` balances: sizes differ by at most one. `block_size` is in sublayers; the last block may be shorter.
    """
    if block_size is not None:
        return (*range(block_size, n_sublayers, block_size), n_sublayers)
    assert n_blocks is not None
    return tuple((i + 1) * n_sublayers // n_blocks for i in range(n_blocks))


class Block(ResidualScheme, name="block"):
    """One learned query and one key-norm gain for each read but the first, whose only source is the embedding.

    Queries start at exactly 0, so every read starts as the plain mean of its sources.

    Options: `n_blocks`, or `block_size` in sublayers; 8 blocks if neither is given.
    """

    def __init__(
        self,
        n_sublayers: int,
        d_model: int,
        eps: float,
        *,
        n_blocks: int | None = None,
        block_size: int | None = None,
    ) -> None:
        super().__init__(n_sublayers, d_model, eps)
        if n_blocks is not None and block_size is not None:
            raise ConfigError("residual.options.n_blocks and residual.options.block_size: give one of the two")
        if n_blocks is None and block_size is None:
            n_blocks = DEFAULT_BLOCKS
        for key, value in (("n_blocks", n_blocks), ("block_size", block_size)):
            if value is not None and (type(value) is not int or not 1 <= value <= n_sublayers):
                raise ConfigError(
                    f"residual.options.{key} is {value!r}: must be a whole number from 1 to {n_sublayers}, "
                    "the model's sublayers"
                )
        self.ends = block_ends(n_sublayers, n_blocks, block_size)
        # Row l - 1 serves the read of sublayer l; the last row serves the final read.
        self.queries = nn.Parameter(torch.empty(n_sublayers, d_model))
        self.gains = nn.Parameter(torch.empty(n_sublayers, d_model))
        self.init_weights()

    def init_weights(self) -> None:
        """Queries 0, gains 1."""
        nn.init.zeros_(self.queries)
        nn.init.ones_(self.gains)

    def start(self, embedding: Tensor) -> BlockState:
        """Source 0 is the embedding (B, T, D)."""
        return BlockState((as_source(embedding, self.eps),), None)

    def read(self, state: BlockState, sublayer: int) -> Tensor:
        """Depth attention (B, T, D) over the sources, the open block's sum last; the embedding itself at first."""
        if sublayer == 0:
            return state.sources[0].value
        sources = list(state.sources)
        if state.partial is not None:
            sources.append(as_source(state.partial, self.eps))
        return depth_attention(self.queries[sublayer - 1] * self.gains[sublayer - 1], sources)

    def write(self, state: BlockState, sublayer: int, output: Tensor) -> BlockState:
        """Add the output (B, T, D) to the open block, and close the block after its last sublayer."""
        output = output.to(state.sources[0].value.dtype)  # under autocast the stream stays as wide as the embedding
        partial = output if state.partial is None else state.partial + output
        if sublayer + 1 in self.ends:
            return BlockState((*state.sources, as_source(partial, self.eps)), None)
        return BlockState(state.sources, partial)

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
            counts.append(1 + finished + is_open)
        return tuple(counts)

    @property
    def flops_per_token(self) -> int:
        """2 D per source for its mean square; 2 D for the logit and 2 D for the weighted sum, per source and read."""
        mean_squares = 1 + self.n_sublayers
        return 2 * self.d_model * mean_squares + 4 * self.d_model * sum(self.sources_per_read[1:])
