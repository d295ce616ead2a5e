"""Parameters and FLOPs by component, and the ledgers made of them. Pure Python: training and analysis share it.

Conventions (each ledger below says what it holds):
- A multiply-add is 2 FLOPs; the backward pass is twice the forward, so training costs 3 x forward.
- Contractions are counted (matrix products, attention, depth mixing over D); norms, activations, rotary
  tables, softmax and the embedding lookup are not.
- Attention is causal: token t attends to t keys, so T tokens cost (T + 1) / 2 keys each on average.
- A tied head is one parameter tensor and is counted as FLOPs like an untied one.
- Of routed experts a token's own are activated: they count for FLOPs and for N, all of them for memory.

Letters: D width, T sequence length, V vocabulary, F width of the MLP or of one expert, H heads, C head width,
E routed experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRAINING_OVER_FORWARD = 3
PFLOPS_DAY = 8.64e19  # FLOPs in one PFLOP/s-day

LEDGERS = {
    "model": "everything forward and backward contract: projections, causal attention, MLP, head, depth mixing",
    "6nd": "6 x activated non-embedding parameters (depth mixing's included, head's not) x tokens",
    "paper": "6 x activated non-embedding parameters plus causal attention, no head, no depth mixing FLOPs",
    "seconds": "device seconds spent in training steps, over all devices",
}


@dataclass(frozen=True)
class ModelShape(ABC):
    """What parameters and FLOPs follow from; stored with every run, so that compute can be recounted later.

    `residual_parameters` and `residual_flops` (forward, per token) are what the residual scheme states of itself.
    """

    n_layers: int
    d_model: int
    n_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    tied_head: bool
    seq_len: int
    residual_parameters: int
    residual_flops: int

    @property
    def causal_keys(self) -> float:
        """Keys a token attends to, on average."""
        return (self.seq_len + 1) / 2

    @abstractmethod
    def sublayer_parameters(self) -> dict[str, int]:
        """Number of parameters by group, without the PreNorms."""

    @abstractmethod
    def activated_share(self, group: str) -> float:
        """Share of a group's parameters that one token uses."""

    @abstractmethod
    def sublayer_flops(self) -> dict[str, float]:
        """Forward FLOPs per token by component."""

    @abstractmethod
    def paper_attention_flops(self) -> float:
        """Forward FLOPs per token that the ledger `paper` adds to those of the parameters."""


@dataclass(frozen=True)
class DenseShape(ModelShape):
    """Causal attention and a SwiGLU MLP in every layer."""

    n_kv_heads: int
    backbone: str = "dense"

    def sublayer_parameters(self) -> dict[str, int]:
        """Attention and MLP."""
        attention = self.d_model * self.head_dim * (2 * self.n_heads + 2 * self.n_kv_heads)
        return {"attention": self.n_layers * attention, "mlp": self.n_layers * 3 * self.d_model * self.d_ff}

    def activated_share(self, group: str) -> float:
        """All of them."""
        return 1.0

    def sublayer_flops(self) -> dict[str, float]:
        """Projections, scores with weighted sums, MLP."""
        groups = self.sublayer_parameters()
        return {
            "attention_projections": 2.0 * groups["attention"],
            "attention_scores": self.n_layers * 2 * 2.0 * self.n_heads * self.head_dim * self.causal_keys,
            "mlp": 2.0 * groups["mlp"],
        }

    def paper_attention_flops(self) -> float:
        """Scores and weighted sums."""
        return self.sublayer_flops()["attention_scores"]


@dataclass(frozen=True)
class KimiShape(ModelShape):
    """Kimi Linear (arXiv 2510.26692): KDA or MLA, each followed by a mixture of experts."""

    n_mla_layers: int
    kv_rank: int
    shared_key_dim: int
    conv_size: int
    n_experts: int
    experts_per_token: int
    n_shared_experts: int
    backbone: str = "kimi"

    @property
    def qk_dim(self) -> int:
        """Width of a query and a key of MLA: a head's own part and the part that all heads share."""
        return self.head_dim + self.shared_key_dim

    @property
    def n_kda_layers(self) -> int:
        """Layers whose attention is KDA."""
        return self.n_layers - self.n_mla_layers

    def _kda_matrices(self) -> int:
        d, c, inner = self.d_model, self.head_dim, self.n_heads * self.head_dim
        return 4 * d * inner + 2 * c * (d + inner) + d * self.n_heads

    def _mla_matrices(self) -> int:
        d, h, rank = self.d_model, self.n_heads, self.kv_rank
        compressed = d * (rank + self.shared_key_dim) + rank * h * 2 * self.head_dim
        return d * h * self.qk_dim + compressed + h * self.head_dim * d

    def sublayer_parameters(self) -> dict[str, int]:
        """KDA and MLA with what they hold beside matrices, and the parts of the mixtures."""
        inner, expert = self.n_heads * self.head_dim, 3 * self.d_model * self.d_ff
        beside = 3 * inner * self.conv_size + inner + self.n_heads + self.head_dim  # convolution, decay, norm
        return {
            "kda": self.n_kda_layers * (self._kda_matrices() + beside),
            "mla": self.n_mla_layers * (self._mla_matrices() + self.kv_rank),
            "router": self.n_layers * self.n_experts * self.d_model,
            "experts": self.n_layers * self.n_experts * expert,
            "shared_experts": self.n_layers * self.n_shared_experts * expert,
        }

    def activated_share(self, group: str) -> float:
        """A token's experts of all routed ones; everything else whole."""
        return self.experts_per_token / self.n_experts if group == "experts" else 1.0

    def sublayer_flops(self) -> dict[str, float]:
        """Projections, KDA's chunked recurrence, MLA's causal scores and sums, router, experts."""
        groups, keys = self.sublayer_parameters(), self.causal_keys
        return {
            "kda_projections": 2.0 * self.n_kda_layers * self._kda_matrices(),
            "kda_convolutions": 2.0 * self.n_kda_layers * 3 * self.n_heads * self.head_dim * self.conv_size,
            "kda_recurrence": self._kda_recurrence(),
            "mla_projections": 2.0 * self.n_mla_layers * self._mla_matrices(),
            "mla_scores": self.n_mla_layers * 2.0 * self.n_heads * (self.qk_dim + self.head_dim) * keys,
            "router": 2.0 * groups["router"],
            "experts": 2.0 * groups["experts"] * self.activated_share("experts"),
            "shared_experts": 2.0 * groups["shared_experts"],
        }

    def _kda_recurrence(self) -> float:
        """6 C^2 + 3 C K + K^2 a head in chunks of K tokens (Kimi Linear, section on efficiency)."""
        c, chunk = self.head_dim, KDA_CHUNK
        return self.n_kda_layers * self.n_heads * float(6 * c**2 + 3 * c * chunk + chunk**2)

    def paper_attention_flops(self) -> float:
        """KDA's recurrence, and 2 T a channel of MLA's queries: its narrower values counted as wide as the keys.

        So counted, Table 2's sizes come within 2 % of the compute they are plotted at (arXiv 2603.15031, section 5.1).
        """
        return self._kda_recurrence() + self.n_mla_layers * self.n_heads * 4.0 * self.qk_dim * self.causal_keys


KDA_CHUNK = 64
SHAPES: dict[str, type[ModelShape]] = {"dense": DenseShape, "kimi": KimiShape}


def shape_of_record(record: Mapping[str, Any]) -> ModelShape:
    """The shape that a run wrote down.

    Raises:
        TypeError, KeyError: the record lacks a value or has one too many.
    """
    return SHAPES[record["backbone"]](**record)


def parameters(shape: ModelShape) -> dict[str, int]:
    """Number of parameters by group."""
    return {
        "embedding": shape.vocab_size * shape.d_model,
        **shape.sublayer_parameters(),
        "norm": (2 * shape.n_layers + 1) * shape.d_model,
        "residual": shape.residual_parameters,
        "head": 0 if shape.tied_head else shape.vocab_size * shape.d_model,
    }


def non_embedding_parameters(shape: ModelShape) -> int:
    """Activated parameters outside the embedding and the head: the N of 6ND."""
    groups = parameters(shape)
    return round(sum(n * shape.activated_share(g) for g, n in groups.items() if g not in ("embedding", "head")))


def forward_flops(shape: ModelShape) -> dict[str, float]:
    """Forward FLOPs per token by component."""
    return {
        **shape.sublayer_flops(),
        "depth_mixing": float(shape.residual_flops),
        "head": 2.0 * shape.vocab_size * shape.d_model,
    }


def flops_per_token(shape: ModelShape, ledger: str) -> float:
    """Training FLOPs per token in one of the ledgers `model`, `6nd` and `paper`.

    Raises:
        ValueError: for `seconds`, which is measured, and for a ledger that does not exist.
    """
    if ledger == "model":
        return TRAINING_OVER_FORWARD * sum(forward_flops(shape).values())
    if ledger == "6nd":
        return 6.0 * non_embedding_parameters(shape)
    if ledger == "paper":
        return 6.0 * non_embedding_parameters(shape) + TRAINING_OVER_FORWARD * shape.paper_attention_flops()
    raise ValueError(f"ledger {ledger!r} has no FLOPs per token; the ledgers with one are model, 6nd, paper")


FLOP_LEDGERS = ("model", "6nd", "paper")


def ledgers(shape: ModelShape) -> dict[str, float]:
    """Training FLOPs per token in every ledger that is counted rather than measured."""
    return {ledger: flops_per_token(shape, ledger) for ledger in FLOP_LEDGERS}
