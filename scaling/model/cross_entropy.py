"""The head and its loss, in chunks where the logits of all tokens at once would be the largest tensor of the step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scaling.model.linear import linear

LOGITS_AT_ONCE = 2**26  # 256 MiB in float32


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of targets (B, T) given hidden states (B, T, D) and a head (V, D), in float32.

    More than `LOGITS_AT_ONCE` logits are computed in chunks of tokens, and each chunk again in the backward pass, so
    that no more than one chunk's logits exist at any time.
    """
    rows, labels = hidden.flatten(0, -2), targets.flatten()
    n_chunks = -(-len(rows) * len(weight) // LOGITS_AT_ONCE)
    if n_chunks == 1:
        return _summed(rows, weight, labels) / len(rows)
    parts = zip(rows.tensor_split(n_chunks), labels.tensor_split(n_chunks), strict=True)
    losses = [checkpoint(_summed, part, weight, label, use_reentrant=False) for part, label in parts]
    return torch.stack(losses).sum() / len(rows)


def _summed(rows: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = linear(rows, weight)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, labels, reduction="sum")
