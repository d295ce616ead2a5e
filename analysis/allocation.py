"""Compute-optimal allocation: which N and D give the lowest loss for C = 6 N D.

With L = E + A / N^alpha + B / D^beta (Hoffmann et al., arXiv 2203.15556, equation 4)

    N_opt = G (C / 6)^a,  D_opt = (C / 6)^b / G,  G = (alpha A / (beta B))^(1 / (alpha + beta)),
    a = beta / (alpha + beta),  b = alpha / (alpha + beta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.powerlaw import fit as fit_line
from analysis.size_tokens import Bootstrap, SizeTokensLaw, loss_at

Interval = tuple[float, float] | None

FLOPS_PER_PARAMETER_TOKEN = 6
"""C = 6 N D: the ledger in which an allocation is optimal (`6nd`)."""


@dataclass(frozen=True)
class Optimum:
    """The best use of one amount of compute, with bootstrap intervals (None where there are none)."""

    compute: float
    """FLOPs."""
    size: float
    """N_opt, parameters."""
    tokens: float
    """D_opt."""
    loss: float
    """Nats per token."""
    size_interval: Interval
    tokens_interval: Interval
    ratio_interval: Interval
    """Of tokens per parameter."""
    in_range: bool
    """Whether the compute is within the runs'; if not, the law is extrapolated."""

    @property
    def ratio(self) -> float:
        """Tokens per parameter."""
        return self.tokens / self.size


def exponents(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a and b of (S, 5) sets of parameters: N_opt goes as C^a, D_opt as C^b."""
    alpha, beta = sets[:, 3], sets[:, 4]
    return beta / (alpha + beta), alpha / (alpha + beta)


def optimal_size(sets: np.ndarray, compute: ArrayLike) -> np.ndarray:
    """(S,) or (S, m) N_opt of (S, 5) sets of parameters at C FLOPs, a number or (m,)."""
    a, b, _, alpha, beta = (column[:, None] for column in sets.T)
    ln_g = (np.log(alpha) + a - np.log(beta) - b) / (alpha + beta)
    ln_product = np.log(np.atleast_1d(np.asarray(compute, dtype=float)) / FLOPS_PER_PARAMETER_TOKEN)
    size = np.exp(ln_g + beta / (alpha + beta) * ln_product)
    return size[:, 0] if np.ndim(compute) == 0 else size


def optimum(law: SizeTokensLaw, compute: float, sample: Bootstrap | None = None) -> Optimum:
    """The best N and D for C FLOPs."""
    size = float(optimal_size(law.parameters[None], compute)[0])
    tokens = compute / FLOPS_PER_PARAMETER_TOKEN / size
    low, high = compute_range(law)
    sizes = optimal_size(law.parameters[None] if sample is None else sample.sets, compute)
    others = compute / FLOPS_PER_PARAMETER_TOKEN / sizes
    of_size, of_tokens, of_ratio = (
        None if sample is None else sample.interval(values) for values in (sizes, others, others / sizes)
    )
    loss = float(loss_at(law.parameters, size, tokens))
    in_range = low <= compute <= high * (1 + 1e-12)
    return Optimum(compute, size, tokens, loss, of_size, of_tokens, of_ratio, in_range)


def optima(law: SizeTokensLaw, sample: Bootstrap | None = None) -> list[Optimum]:
    """The best N and D at the least, the middle and the most compute of the runs, and at ten times the most."""
    low, high = compute_range(law)
    return [optimum(law, compute, sample) for compute in (low, math.sqrt(low * high), high, 10 * high)]


def compute_range(law: SizeTokensLaw) -> tuple[float, float]:
    """Least and most compute of the runs, 6 N D, FLOPs."""
    ln_product = law.rows.x + law.rows.y + sum(law.rows.centre)
    ends = FLOPS_PER_PARAMETER_TOKEN * np.exp([ln_product.min(), ln_product.max()])
    return float(ends[0]), float(ends[1])


def growth(compute: ArrayLike, optimal: ArrayLike, sd: ArrayLike | None = None) -> tuple[float, tuple[float, float]]:
    """The exponent at which measured optima grow with compute, and its 95 % t interval.

    Args:
        compute: (n,) FLOPs.
        optimal: (n,) optimal size (or tokens) at each.
        sd: (n,) standard deviations of ln optimal, where they are known: not variances, not weights.

    Raises:
        FitError: too few points, or no spread in compute.
    """
    falling = fit_line(np.log(np.asarray(compute, dtype=float)), np.log(np.asarray(optimal, dtype=float)), sd)
    low, high = falling.exponent_interval
    return -falling.exponent, (-high, -low)
