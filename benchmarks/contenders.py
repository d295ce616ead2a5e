"""What is compared: our arms, and what a user would pick instead. All are called as model(tokens, targets)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from scaling.compute import forward_flops
from scaling.config import ModelConfig, ResidualConfig
from scaling.model.language_model import LanguageModel
from scaling.model.residual import ResidualScheme
from scaling.model.residual.block import Block
from scaling.model.residual.reference import read_sources

BLOCK = {"n_blocks": 8}


@dataclass(frozen=True)
class Shape:
    """A model, and a batch (B, T) of tokens out of V."""

    model: ModelConfig
    vocab_size: int
    sequences: int
    seq_len: int

    def __str__(self) -> str:
        m = self.model
        return (
            f"{m.name}: {m.n_layers} Transformer layers, width {m.d_model}, heads {m.head_dim} wide, "
            f"{self.sequences} x {self.seq_len} tokens, vocabulary {self.vocab_size}"
        )

    @property
    def flops(self) -> float:
        """Of the baseline's training step: matrix products and causal attention, forward and backward."""
        shape = self.model.shape(ResidualConfig(), self.vocab_size, self.seq_len)
        return 3 * sum(forward_flops(shape).values()) * self.sequences * self.seq_len


def _shape(name: str, layers: int, width: int, heads: int, head: int, mlp: int, *tokens: int) -> Shape:
    model = ModelConfig(name=name, n_layers=layers, d_model=width, n_heads=heads, head_dim=head, d_ff=mlp)
    return Shape(model, *tokens)


SHAPES = {
    shape.model.name: shape
    for shape in (
        _shape("wide", 12, 384, 6, 64, 1024, 8192, 4, 512),
        _shape("narrow", 12, 64, 4, 16, 176, 4096, 32, 256),
        _shape("deep", 48, 256, 4, 64, 704, 8192, 4, 512),
    )
}


class Textbook(Block, name="textbook"):
    """Block AttnRes as the paper's listing has it: stack the sources at every read, leave the gradient to autograd."""

    class State(NamedTuple):
        blocks: list[Tensor]
        partial: Tensor | None

    def start(self, embedding: Tensor) -> Any:
        return self.State([embedding], None)

    def read(self, state: Any, sublayer: int) -> Tensor:
        if sublayer == 0:
            return state.blocks[0]
        sources = state.blocks if state.partial is None else [*state.blocks, state.partial]
        return read_sources(self.queries[sublayer - 1], self.gains[sublayer - 1], sources, self.eps)

    normed_read = ResidualScheme.normed_read

    def write(self, state: Any, sublayer: int, output: Tensor) -> Any:
        partial = output if state.partial is None else state.partial + output
        if sublayer + 1 in self.ends:
            return self.State([*state.blocks, partial], None)
        return self.State(state.blocks, partial)


class Llama(nn.Module):
    """Hugging Face's implementation of the baseline."""

    def __init__(self, shape: Shape):
        super().__init__()
        config = shape.model
        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=shape.vocab_size,
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.n_layers,
                num_attention_heads=config.n_heads,
                num_key_value_heads=config.n_kv_heads or config.n_heads,
                head_dim=config.head_dim,
                max_position_embeddings=shape.seq_len,
                tie_word_embeddings=config.tied_head,
                attn_implementation="sdpa",
                use_cache=False,
            )
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.llama(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


class AttnResPackage(nn.Module):
    """The package `attn-res`, which has its own attention and reads a sum at the end."""

    def __init__(self, shape: Shape):
        super().__init__()
        from attn_res.main import AttnResMode, AttnResTransformer, TransformerConfig

        config = shape.model
        self.model = AttnResTransformer(
            TransformerConfig(
                d_model=config.d_model,
                n_layers=config.n_sublayers,
                n_heads=config.n_heads,
                n_kv_heads=config.n_kv_heads or config.n_heads,
                vocab_size=shape.vocab_size,
                max_seq_len=shape.seq_len,
                ffn_mult=config.d_ff / config.d_model,
                attn_res_mode=AttnResMode.BLOCK,
                n_blocks=BLOCK["n_blocks"],
            )
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(tokens, targets)[1]


def _ours(scheme: str, options: dict[str, int]) -> Callable[[Shape], nn.Module]:
    return lambda shape: LanguageModel(shape.model, ResidualConfig(scheme, options), shape.vocab_size, shape.seq_len)


CONTENDERS: dict[str, Callable[[Shape], nn.Module]] = {
    "baseline": _ours("baseline", {}),
    "block": _ours("block", BLOCK),
    "full": _ours("full", {}),
    "textbook block": _ours("textbook", BLOCK),
    "Hugging Face Llama": Llama,
}
if importlib.util.find_spec("attn_res"):
    CONTENDERS["attn-res package"] = AttnResPackage


def batch(shape: Shape) -> tuple[Tensor, Tensor]:
    """Random tokens and targets (B, T), always the same."""
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(shape.vocab_size, (2, shape.sequences, shape.seq_len), generator=generator)
    return tokens, targets
