"""The law L(N, D) = E + A / N^alpha + B / D^beta: its terms, Huber's objective, the gradient and the Hessian.

Hoffmann et al. (arXiv 2203.15556, section 3.3, equation 3) minimise Huber's loss of the residuals of ln L with

    ln L(N, D) = logsumexp(a - alpha ln N, b - beta ln D, e),    A = exp(a), B = exp(b), E = exp(e).

Everything here is for many sets of parameters at once: S sets of the five parameters on n rows. ln N and ln D are
taken about their means, so that a and alpha (and b and beta) can be told apart by an optimiser.

The objective is the mean over rows of Huber's loss divided by its threshold, that is |r| - threshold / 2 far from 0 and
r^2 / (2 threshold) near it. Its gradient is then of order 1 wherever the fit is bad, whatever the threshold: with the
usual scaling it is of order 1e-3 and an optimiser of default tolerances takes its own start for a minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

PARAMETERS = ("a", "b", "e", "alpha", "beta")
"""The columns of a set of parameters, here and wherever sets are handed on."""
HUBER = 1e-3
"""Threshold in ln L beyond which a residual counts by its size and not by its square (Hoffmann et al., D.2)."""


@dataclass(frozen=True)
class Rows:
    """The rows of a fit, centred; `weights` (mean 1) says how often each counts, one row of them for each set."""

    x: np.ndarray
    """(n,) ln N about its mean."""
    y: np.ndarray
    """(n,) ln D about its mean."""
    ln_loss: np.ndarray
    centre: tuple[float, float]
    """Means of ln N and ln D."""

    @staticmethod
    def of(size: ArrayLike, tokens: ArrayLike, loss: ArrayLike) -> Rows:
        """From parameters N, tokens D and losses (nats per token), (n,) each."""
        ln_n, ln_d, ln_loss = (np.log(np.asarray(values, dtype=float)) for values in (size, tokens, loss))
        centre = float(ln_n.mean()), float(ln_d.mean())
        return Rows(ln_n - centre[0], ln_d - centre[1], ln_loss, centre)

    def __len__(self) -> int:
        return len(self.x)

    def centred(self, sets: np.ndarray) -> np.ndarray:
        """(S, 5) parameters as the law is written -> about the centre."""
        return self._shift(sets, -1.0)

    def plain(self, sets: np.ndarray) -> np.ndarray:
        """(S, 5) parameters about the centre -> as the law is written."""
        return self._shift(sets, 1.0)

    def _shift(self, sets: np.ndarray, sign: float) -> np.ndarray:
        moved = np.array(sets, dtype=float)
        moved[:, 0] += sign * moved[:, 3] * self.centre[0]
        moved[:, 1] += sign * moved[:, 4] * self.centre[1]
        return moved


@dataclass(frozen=True)
class Evaluation:
    """The objective of S sets with its derivatives by the centred parameters."""

    value: np.ndarray
    """(S,)"""
    gradient: np.ndarray
    """(S, 5)"""
    hessian: np.ndarray
    """(S, 5, 5); at a residual of just the threshold, where it jumps, from the inside."""


def shares(rows: Rows, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln L of (S, 5) centred sets on every row, (S, n), and the shares of the three terms in L, (3, S, n)."""
    terms = np.empty((3, len(sets), len(rows)))
    np.multiply(-sets[:, 3:4], rows.x, out=terms[0])
    terms[0] += sets[:, 0:1]
    np.multiply(-sets[:, 4:5], rows.y, out=terms[1])
    terms[1] += sets[:, 1:2]
    terms[2] = sets[:, 2:3]
    top = terms.max(axis=0)
    terms -= top
    np.exp(terms, out=terms)
    total = terms.sum(axis=0)
    terms /= total
    np.log(total, out=total)
    total += top
    return total, terms


def residuals(rows: Rows, sets: np.ndarray) -> np.ndarray:
    """(S, n) ln L of the law less ln L of the rows."""
    return shares(rows, sets)[0] - rows.ln_loss


def jacobian(rows: Rows, parameters: np.ndarray) -> np.ndarray:
    """(n, 5) derivatives of ln L by one set of centred parameters."""
    p1, p2, p3 = shares(rows, parameters[None])[1][:, 0]
    return np.stack([p1, p2, p3, -rows.x * p1, -rows.y * p2], axis=1)


def evaluate(rows: Rows, sets: np.ndarray, weights: np.ndarray | None = None, huber: float = HUBER) -> Evaluation:
    """The objective of (S, 5) centred sets, with `weights` (S, n) on the rows (all 1 if not given)."""
    ln_l, (p1, p2, p3) = shares(rows, sets)
    r = ln_l - rows.ln_loss
    scale = (1.0 if weights is None else weights) / len(rows)
    slope = np.clip(r / huber, -1.0, 1.0)
    value = ((r - 0.5 * huber * slope) * slope * scale).sum(axis=1)
    inside = np.abs(r) <= huber
    slope *= scale
    curve = inside * (scale / huber) - slope

    x, y = rows.x, rows.y
    one = np.ones_like(x)
    of_x, of_y, of_xy = (
        np.stack(columns, axis=1) for columns in ((one, x, x * x), (one, y, y * y), (one, x, y, x * y))
    )
    s1, s2, s3 = (slope * p1) @ of_x, (slope * p2) @ of_y, (slope * p3).sum(axis=1)
    gradient = np.stack([s1[:, 0], s2[:, 0], s3, -s1[:, 1], -s2[:, 1]], axis=1)

    c1, c2, c3 = curve * p1, curve * p2, curve * p3
    c11, c22, c33 = (c1 * p1) @ of_x + s1, (c2 * p2) @ of_y + s2, (c3 * p3).sum(axis=1) + s3
    c12, c13, c23 = (c1 * p2) @ of_xy, (c1 * p3) @ of_x[:, :2], (c2 * p3) @ of_y[:, :2]
    hessian = np.empty((len(sets), 5, 5))
    for i, j, entry in (
        *((0, 0, c11[:, 0]), (0, 3, -c11[:, 1]), (3, 3, c11[:, 2])),
        *((1, 1, c22[:, 0]), (1, 4, -c22[:, 1]), (4, 4, c22[:, 2])),
        *((0, 1, c12[:, 0]), (1, 3, -c12[:, 1]), (0, 4, -c12[:, 2]), (3, 4, c12[:, 3])),
        *((2, 2, c33), (0, 2, c13[:, 0]), (2, 3, -c13[:, 1]), (1, 2, c23[:, 0]), (2, 4, -c23[:, 1])),
    ):
        hessian[:, i, j] = hessian[:, j, i] = entry
    return Evaluation(value, gradient, hessian)
