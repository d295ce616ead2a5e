"""The decoder: embedding, sublayers joined by a residual scheme, final norm, head.

Letters: B batch, T time, D width, V vocabulary, L sublayers.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from scaling.config import ModelConfig, ResidualConfig
from scaling.model.cross_entropy import linear_cross_entropy
from scaling.model.linear import Linear, linear
from scaling.model.residual import build_scheme
from scaling.model.sublayers import MLP, Attention, rotary_tables


def _seed_of(seed: int, name: str) -> int:
    """A seed of its own for every tensor, so that one arm's extra tensors do not move another's."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1


WRITERS = ("out.weight", "down.weight", "o_proj.weight", "down_proj.weight", "down_proj")


def _decay_start(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """KDA's decay as flash-linear-attention starts it: rates from 1 to 16 for steps from 0.001 to 0.1, both in logs."""
    uniform = torch.rand(shape, generator=generator, device="cpu")
    if name.endswith("A_log"):
        return (1 + 15 * uniform).log()
    step = torch.exp(uniform * math.log(100) + math.log(1e-3))
    return step + torch.log(-torch.expm1(-step))  # softplus of this is the step


def _sublayers(config: ModelConfig) -> list[nn.Module]:
    if config.kimi is not None:
        from scaling.model.kimi import kimi_sublayers  # needs transformers, which takes seconds to import

        return kimi_sublayers(config)
    return [Attention(config) if i % 2 == 0 else MLP(config) for i in range(config.n_sublayers)]


class Routing(NamedTuple):
    """What the routers of a mixture of experts did in one forward pass."""

    balance_loss: Tensor
    """Sum over the layers."""
    load: Tensor
    """Token slots that each expert of each layer got, (layers, E)."""


class LanguageModel(nn.Module):
    """A decoder-only Transformer in which only `residual` differs between arms."""

    cos: Tensor
    sin: Tensor
    checkpoint_activations = False
    """Whether what a sublayer computes is computed again in the backward pass instead of kept; set by who trains."""
    routing: Routing | None = None
    """Of the last forward pass, where there are experts."""

    def __init__(self, config: ModelConfig, residual: ResidualConfig, vocab_size: int, seq_len: int, seed: int = 0):
        super().__init__()
        self.config, self.seq_len = config, seq_len
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.sublayers = nn.ModuleList(_sublayers(config))
        self.residual = build_scheme(residual, config.n_sublayers, config.d_model, config.norm_eps)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = None if config.tied_head else Linear(config.d_model, vocab_size)
        self.register_buffer("cos", torch.empty(seq_len, config.head_dim), persistent=False)
        self.register_buffer("sin", torch.empty(seq_len, config.head_dim), persistent=False)
        self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Set every tensor; the same (seed, name, shape) gives the same bits in every arm and on every device.

        | tensor | start |
        |---|---|
        | embedding (V, D) | normal, deviation 1 / sqrt(D) |
        | head (V, D), if untied | normal, deviation 1 / sqrt(D) |
        | other matrices (out, in), of experts (E, out, in), convolutions (channels, 1, in) | normal, 1 / sqrt(in) |
        | those of them that write to the stream: out, down | normal, deviation 1 / sqrt(in L) |
        | gains of norms (D) | 1 |
        | KDA's decay | its own; the choice bias of experts 0 |
        | residual scheme | its own `init_weights`; for AttnRes queries 0, gains 1 |
        | rotary tables (T, C) | computed |

        A model built on the meta device is set when this is called after `to_empty`.
        """
        for name, tensor in self.named_parameters():
            if tensor.is_meta or name.startswith("residual."):
                continue
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            if name.endswith(("A_log", "dt_bias")):
                tensor.copy_(_decay_start(name, tensor.shape, generator))
            elif tensor.ndim == 1:
                tensor.fill_(1.0)
            else:
                deviation = tensor.shape[-1] ** -0.5
                if name.endswith(WRITERS):
                    deviation *= self.config.n_sublayers**-0.5
                tensor.copy_(torch.randn(tensor.shape, generator=generator, device="cpu") * deviation)
        for name, buffer in self.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.zero_()
        if not self.cos.is_meta:
            with torch.random.fork_rng(devices=[]):  # a scheme may draw too, from the seed and without moving others
                torch.manual_seed(_seed_of(seed, "residual"))
                self.residual.init_weights()
            cos, sin = rotary_tables(self.config.head_dim, self.seq_len, self.config.rope_theta)
            self.cos.copy_(cos)
            self.sin.copy_(sin)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) to the normed hidden states (B, T, D) that the head sees."""
        rotary = (self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]])
        state, routed = self.residual.start(self.embedding(tokens)), []
        recompute = self.checkpoint_activations and torch.is_grad_enabled()
        for i in range(len(self.sublayers)):
            output = (self._recomputed_output if recompute else self._output)(state, i, rotary)
            if not isinstance(output, Tensor):
                routed.append(output)
                output = output.output
            state = self.residual.write(state, i, output)
        if routed:
            balance_losses, loads = zip(*((r.balance_loss, r.load) for r in routed), strict=True)
            self.routing = Routing(torch.stack(balance_losses).sum(), torch.stack(loads).detach())
        return self.norm(self.residual.finish(state))

    def _output(self, state: Any, i: int, rotary: tuple[Tensor, Tensor]) -> Any:
        """What sublayer i makes (B, T, D) of its normed read; of experts with their `Routed`."""
        sublayer = self.sublayers[i]
        return sublayer(self.residual.normed_read(state, i, cast(nn.RMSNorm, sublayer.norm)), rotary)

    def _recomputed_output(self, state: Any, i: int, rotary: tuple[Tensor, Tensor]) -> Any:
        """The same, of which only the residual state is kept for the backward pass."""
        parts, tree = tree_flatten(state)  # as arguments, so that what is kept of them is seen and counted

        def output(*parts: Any) -> Any:
            return self._output(tree_unflatten(parts, tree), i, rotary)

        return checkpoint(output, *parts, use_reentrant=False, preserve_rng_state=False)

    @property
    def head_weight(self) -> Tensor:
        """(V, D): the head's own, or the embedding's."""
        return self.embedding.weight if self.head is None else self.head.weight

    def logits(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) to logits (B, T, V)."""
        return linear(self.hidden(tokens), self.head_weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token of targets (B, T) given tokens (B, T), in float32."""
        return linear_cross_entropy(self.hidden(tokens), self.head_weight, targets)
