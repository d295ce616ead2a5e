"""Parameters and FLOPs by component, and the ledgers made of them. Pure Python: training and analysis share it.

Conventions (each ledger below says what it holds):
- A multiply-add is 2 FLOPs; the backward pass is twice the forward, so training costs 3 x forward.
- Contractions are counted (matrix products, attention, depth mixing over D); norms, activations, rotary
  tables, softmax and the embedding lookup are not.
- Attention is causal: token t attends to t keys, so T tokens cost (T + 1) / 2 keys each on average.
- A tied head is one parameter tensor and is counted as FLOPs like an untied one.

Letters: D width, T sequence length, V vocabulary, F width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAINING_OVER_FORWARD = 3
PFLOPS_DAY = 8.64e19  # FLOPs in one PFLOP/s-day

LEDGERS = {
    "model": "everything forward and backward contract: projections, causal attention, MLP, head, depth mixing",
    "6nd": "6 x non-embedding parameters (depth mixing's included, head's not) x tokens",
    "paper": "6 x activated non-embedding parameters plus causal attention, no head, no depth mixing FLOPs",
    "seconds": "device seconds spent in training steps, over all devices",
}


@dataclass(frozen=True)
class ModelShape:
    """What parameters and FLOPs follow from; stored with every run, so that compute can be recounted later.

    `residual_parameters` and `residual_flops` (forward, per token) are what the residual scheme states of itself.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    tied_head: bool
    seq_len: int
    residual_parameters: int
    residual_flops: int


def parameters(shape: ModelShape) -> dict[str, int]:
    """Number of parameters by group."""
    d, layers = shape.d_model, shape.n_layers
    attention = d * shape.head_dim * (2 * shape.n_heads + 2 * shape.n_kv_heads)
    return {
        "embedding": shape.vocab_size * d,
        "attention": layers * attention,
        "mlp": layers * 3 * d * shape.d_ff,
        "norm": (2 * layers + 1) * d,
        "residual": shape.residual_parameters,
        "head": 0 if shape.tied_head else shape.vocab_size * d,
    }


def non_embedding_parameters(shape: ModelShape) -> int:
    """Parameters outside the embedding and the head: the N of 6ND."""
    groups = parameters(shape)
    return sum(n for group, n in groups.items() if group not in ("embedding", "head"))


def forward_flops(shape: ModelShape) -> dict[str, float]:
    """Forward FLOPs per token by component."""
    d, layers = shape.d_model, shape.n_layers
    groups = parameters(shape)
    causal_keys = (shape.seq_len + 1) / 2
    return {
        "attention_projections": 2.0 * groups["attention"],
        "attention_scores": layers * 2 * 2.0 * shape.n_heads * shape.head_dim * causal_keys,
        "mlp": 2.0 * groups["mlp"],
        "depth_mixing": float(shape.residual_flops),
        "head": 2.0 * shape.vocab_size * d,
    }


def flops_per_token(shape: ModelShape, ledger: str) -> float:
    """Training FLOPs per token in one of the ledgers `model`, `6nd` and `paper`.

    Raises:
        ValueError: for `seconds`, which is measured, and for a ledger that does not exist.
    """
    forward = forward_flops(shape)
    if ledger == "model":
        return TRAINING_OVER_FORWARD * sum(forward.values())
    if ledger == "6nd":
        return 6.0 * non_embedding_parameters(shape)
    if ledger == "paper":
        return 6.0 * non_embedding_parameters(shape) + TRAINING_OVER_FORWARD * forward["attention_scores"]
    raise ValueError(f"ledger {ledger!r} has no FLOPs per token; the ledgers with one are model, 6nd, paper")


FLOP_LEDGERS = ("model", "6nd", "paper")


def ledgers(shape: ModelShape) -> dict[str, float]:
    """Training FLOPs per token in every ledger that is counted rather than measured."""
    return {ledger: flops_per_token(shape, ledger) for ledger in FLOP_LEDGERS}
