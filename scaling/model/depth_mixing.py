"""The depth mixing matrix of any scheme (arXiv 2603.15031, section 6.2): h_l = sum_i M_{i->l} v_i.

v_0 is the embedding, v_i the output of the i-th sublayer, h_l what sublayer l sees and h_L what the final norm sees.
Schemes need not say what M is: it is solved for from what they read. With V = Q R the values of a token (D, L + 1),
and H its reads, M^T = R^-1 Q^T H, which is exact where H is made of V, and is checked where it is not.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from scaling.errors import ConfigError
from scaling.model.language_model import LanguageModel
from scaling.model.residual.scheme import ResidualScheme


class _Recording(ResidualScheme):
    """A scheme in float64 that keeps the values that are written to it and what is read from it."""

    def __init__(self, scheme: ResidualScheme) -> None:
        super().__init__(scheme.n_sublayers, scheme.d_model, scheme.eps)
        self.scheme = copy.deepcopy(scheme).double()
        self.values: list[Tensor] = []
        self.reads: list[Tensor] = []

    def start(self, embedding: Tensor) -> Any:
        self.dtype = embedding.dtype
        self.values.append(embedding.double())
        return self.scheme.start(self.values[0])

    def read(self, state: Any, sublayer: int) -> Tensor:
        self.reads.append(self.scheme.read(state, sublayer))
        return self.reads[-1]

    def normed_read(self, state: Any, sublayer: int, norm: nn.RMSNorm) -> Tensor:
        return norm(self.read(state, sublayer).to(norm.weight.dtype))

    def write(self, state: Any, sublayer: int, output: Tensor) -> Any:
        self.values.append(output.double())
        return self.scheme.write(state, sublayer, self.values[-1])

    def finish(self, state: Any) -> Tensor:
        self.reads.append(self.scheme.finish(state))
        return self.reads[-1].to(self.dtype)

    @property
    def flops_per_token(self) -> int:
        return self.scheme.flops_per_token


@torch.no_grad()
def mixing_matrix(model: LanguageModel, tokens: Tensor, tolerance: float = 1e-6) -> Tensor:
    """M of token ids (B, T): float64 (B, T, G, L + 1, L + 1), a row a read and a column a value, lower triangular.

    G is the number of channel groups that the scheme weighs apart, 1 but for reads of several heads. The sublayers run
    as they are, the scheme in float64; averages over tokens are the caller's.

    Raises:
        ConfigError: a group has too few channels to tell the values apart, or the reads are not sums of the values with
            one weight a token and group, to a relative `tolerance`.
    """
    scheme, n_values = model.residual, model.config.n_sublayers + 1
    groups = (scheme.n_channel_groups, -1)
    if model.config.d_model < n_values * groups[0]:
        each = f" for each of {groups[0]} heads" if groups[0] > 1 else ""
        raise ConfigError(
            f"model.d_model is {model.config.d_model}: must be at least {n_values * groups[0]}, the embedding and the "
            f"sublayers{each}, for a depth mixing matrix"
        )
    recording = model.residual = _Recording(scheme)
    try:
        model.hidden(tokens)
    finally:
        model.residual = scheme
    values, reads = (torch.stack(x, -1).unflatten(-2, groups) for x in (recording.values, recording.reads))
    sizes = torch.linalg.vector_norm(values, dim=-2).clamp_min(torch.finfo(torch.float64).tiny)
    q, r = torch.linalg.qr(values / sizes.unsqueeze(-2))
    solved = torch.linalg.solve_triangular(r, q.mT @ reads, upper=True)
    matrix = (solved / sizes.unsqueeze(-1)).mT.tril()
    error = torch.linalg.vector_norm(values @ matrix.mT - reads, dim=-2)
    if not bool((error <= tolerance * torch.linalg.vector_norm(reads, dim=-2)).all()):
        raise ConfigError(
            f"residual scheme {scheme.name} has no depth mixing matrix here: what it reads is not a sum of the "
            "embedding and the outputs with one weight a token, or these depend on each other"
        )
    return matrix


def semiseparable_rank(matrix: Tensor, tolerance: float = 1e-8) -> Tensor:
    """Largest rank of a block on or below the diagonal of (..., K, K): (...).

    A block is rows k .. K - 1 and columns 0 .. k; singular values under `tolerance` times the largest count as 0.
    """
    ranks = [torch.linalg.matrix_rank(matrix[..., k:, : k + 1], rtol=tolerance) for k in range(matrix.shape[-1])]
    return torch.stack(ranks).amax(0)
