"""Fit L(N, D) = E + A / N^alpha + B / D^beta from many starts, certify it, and bootstrap it by cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from analysis.certificate import MIN_VALUES, VANISHED, Certificate, certify, check_rows
from analysis.chinchilla import Rows, residuals, shares
from analysis.descent import descend
from analysis.errors import FitRefused
from analysis.powerlaw import CONFIDENCE

REPLICATES = 4000
SEED = 0
MOST_FAILED = 0.05
"""Share of failed replicates above which there is no interval: what fails is not what would fall in the middle."""


@dataclass(frozen=True)
class SizeTokensLaw:
    """A fitted law in full precision, with the rows it came from and its certificate."""

    rows: Rows
    parameters: np.ndarray
    """(5,) a, b, e, alpha, beta as the law is written."""
    certificate: Certificate

    @property
    def named(self) -> dict[str, float]:
        """E (nats per token), A, B, alpha, beta."""
        return named(self.parameters)

    @property
    def centred(self) -> np.ndarray:
        """(1, 5) the parameters about the centre of the rows."""
        return self.rows.centred(self.parameters[None])

    @property
    def residuals(self) -> np.ndarray:
        """(n,) ln L of the law less ln L of the rows."""
        return residuals(self.rows, self.centred)[0]

    def loss(self, size: ArrayLike, tokens: ArrayLike) -> np.ndarray:
        """Loss (nats per token) at N parameters and D tokens."""
        return loss_at(self.parameters, size, tokens)


@dataclass(frozen=True)
class Bootstrap:
    """Refits of the rows drawn with replacement; what could not be refitted is counted and left out."""

    replicates: int
    failed: int
    """Replicates whose descent did not arrive, or whose rows or exponents leave the law undefined."""
    at_floor_zero: int
    """Replicates whose floor E runs to 0; they are kept."""
    seed: int
    sets: np.ndarray
    """(replicates - failed, 5) parameters as the law is written."""

    @property
    def reason(self) -> str:
        """Why there is no interval, or nothing."""
        if self.failed <= MOST_FAILED * self.replicates and len(self.sets) >= 40:
            return ""
        return f"{self.failed} of {self.replicates} bootstrap replicates failed"

    def interval(self, values: np.ndarray) -> tuple[float, float] | None:
        """95 % percentile interval of a quantity that was computed for each of `sets`, or None (see `reason`)."""
        if self.reason:
            return None
        low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return (float(low), float(high)) if math.isfinite(low) and math.isfinite(high) else None

    @property
    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """The interval of E, A, B, alpha and beta."""
        with np.errstate(over="ignore"):
            columns = named(self.sets.T)
        return {name: self.interval(np.asarray(column)) for name, column in columns.items()}


def named(parameters: np.ndarray) -> dict[str, float]:
    """E, A, B, alpha, beta of (5,) parameters; of (5, S) the same, each (S,)."""
    a, b, e, alpha, beta = parameters
    values = {"E": np.exp(e), "A": np.exp(a), "B": np.exp(b), "alpha": alpha, "beta": beta}
    return {name: float(v) if np.ndim(v) == 0 else v for name, v in values.items()}


def loss_at(parameters: np.ndarray, size: ArrayLike, tokens: ArrayLike) -> np.ndarray:
    """Loss (nats per token) of (5,) parameters at N parameters and D tokens."""
    a, b, e, alpha, beta = parameters
    ln_n, ln_d = np.log(np.asarray(size, dtype=float)), np.log(np.asarray(tokens, dtype=float))
    return np.exp(e) + np.exp(a - alpha * ln_n) + np.exp(b - beta * ln_d)


def starts_of_the_replication() -> np.ndarray:
    """(4500, 5) the grid of Besiroglu et al. (arXiv 2404.10102), which is that of Hoffmann et al."""
    far = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
    exponents = (0.0, 0.5, 1.0, 1.5, 2.0)
    return np.array(list(product(far, far, (-1.0, -0.5, 0.0, 0.5, 1.0), exponents, exponents)))


def fit(size: ArrayLike, tokens: ArrayLike, loss: ArrayLike, starts: ArrayLike | None = None) -> SizeTokensLaw:
    """Fit the law by Huber's loss of the residuals of ln L; several rows a size are welcome.

    Args:
        size: (n,) parameters N.
        tokens: (n,) training tokens D.
        loss: (n,) losses, nats per token.
        starts: (S, 5) a, b, e, alpha, beta to start from; the 4,500 of the replication if not given.

    Raises:
        NotIdentifiable: the rows cannot tell the parameters apart, for example where D is proportional to N.
        FitRefused: a fit was made and its certificate fails; the message says in what.
    """
    rows = Rows.of(size, tokens, loss)
    check_rows(rows)
    plain = starts_of_the_replication() if starts is None else np.atleast_2d(np.asarray(starts, dtype=float))
    centred = rows.centred(plain)
    best, certificate = certify(rows, centred, descend(rows, centred))
    if certificate.failures:
        raise FitRefused(f"fit refused: {'; '.join(certificate.failures)}")
    return SizeTokensLaw(rows, rows.plain(best[None])[0], certificate)


def bootstrap(law: SizeTokensLaw, replicates: int = REPLICATES, seed: int = SEED) -> Bootstrap:
    """Draw the rows with replacement and refit, every replicate from the law of all rows."""
    rows, n = law.rows, len(law.rows)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(n, np.full(n, 1 / n), replicates).astype(float)
    descent = descend(rows, np.repeat(law.centred, replicates, axis=0), counts)
    largest = np.concatenate([shares(rows, part)[1].max(axis=2) for part in np.array_split(descent.sets, 20)], axis=1)
    usable = descent.arrived & _enough(rows.x, counts) & _enough(rows.y, counts)
    usable &= (largest[:2] >= VANISHED).all(axis=0) & (descent.sets[:, 3:] > 0).all(axis=1)
    return Bootstrap(
        replicates=replicates,
        failed=int((~usable).sum()),
        at_floor_zero=int((largest[2, usable] < VANISHED).sum()),
        seed=seed,
        sets=rows.plain(descent.sets[usable]),
    )


def _enough(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(R,) whether each draw holds enough different values to tell the parameters apart."""
    _, which = np.unique(np.round(values, 4), return_inverse=True)
    drawn = np.zeros((len(counts), which.max() + 1))
    np.add.at(drawn.T, which, counts.T)
    return (drawn > 0).sum(axis=1) >= MIN_VALUES
