"""Minimise Huber's objective of L(N, D) from many starts at once: damped Newton steps on a threshold that shrinks.

With its final threshold the objective is almost a sum of absolute values, whose kinks stop any descent that starts far
away. So every start first descends the objective with a large threshold, which is least squares, then with smaller
ones; each stage begins where the one before ended. Steps are Newton's with the absolute values of the Hessian's
eigenvalues plus a damping, which falls after a step that lowers the objective and rises after one that does not (that
step is taken back), so the objective never rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.chinchilla import HUBER, Evaluation, Rows, evaluate

STAGES = ((1.0, 30), (0.1, 12), (0.01, 12), (HUBER, 100), (HUBER, 400), (HUBER, 3500))
"""Threshold of each stage and the most steps in it; the last are one stage, between whose parts those that have not
arrived are gathered, since a few go on from kink to kink for thousands of steps."""
GRADIENT = 1e-8
"""Largest derivative at which a descent has arrived; the objective's is of order 1 where a fit is bad."""
_CELLS = 60_000
"""Sets times rows that are worked on at a time: what fits the processor's cache."""
_STALLED = 1e10
"""Damping at which no step, however short, lowers the objective."""


@dataclass(frozen=True)
class Descent:
    """Where S descents ended (centred parameters)."""

    sets: np.ndarray
    """(S, 5)"""
    value: np.ndarray
    """(S,) objective at the final threshold."""
    gradient: np.ndarray
    """(S,) largest derivative."""

    @property
    def arrived(self) -> np.ndarray:
        """(S,) whether the gradient vanishes there."""
        return self.gradient <= GRADIENT


def descend(
    rows: Rows, starts: np.ndarray, weights: np.ndarray | None = None, stages: tuple[tuple[float, int], ...] = STAGES
) -> Descent:
    """Descend from (S, 5) centred starts; `weights` (S, n) are those of each start's objective."""
    sets = np.array(starts, dtype=float)
    moving, last = np.arange(len(sets)), 0.0
    for huber, steps in stages:
        if huber != last:
            moving, last = np.arange(len(sets)), huber
        still = []
        for chunk in _chunks(moving, rows):
            sets[chunk], arrived = _newton(rows, sets[chunk], _of(weights, chunk), huber, steps)
            still.append(chunk[~arrived])
        moving = np.concatenate(still)
    ends = [evaluate(rows, sets[chunk], _of(weights, chunk)) for chunk in _chunks(np.arange(len(sets)), rows)]
    return Descent(
        sets,
        np.concatenate([end.value for end in ends]),
        np.concatenate([np.abs(end.gradient).max(axis=1) for end in ends]),
    )


def _chunks(places: np.ndarray, rows: Rows) -> list[np.ndarray]:
    return np.array_split(places, max(1, math.ceil(len(places) * len(rows) / _CELLS)))


def _of(weights: np.ndarray | None, chunk: np.ndarray) -> np.ndarray | None:
    return None if weights is None else weights[chunk]


def _newton(
    rows: Rows, starts: np.ndarray, weights: np.ndarray | None, huber: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """One stage: where (S, 5) starts get to, and which of them need no more steps (arrived, or no step helps)."""
    sets = starts.copy()
    active = np.arange(len(sets))
    at, damping = evaluate(rows, sets, weights, huber), np.full(len(sets), 1e-3)
    for _ in range(steps):
        moving = (np.abs(at.gradient).max(axis=1) > GRADIENT / 10) & (damping < _STALLED)
        if not moving.all():
            active, damping = active[moving], damping[moving]
            at = Evaluation(at.value[moving], at.gradient[moving], at.hessian[moving])
        if not len(active):
            break
        trial = sets[active] + _steps(at, damping)
        there = evaluate(rows, trial, None if weights is None else weights[active], huber)
        better = _better(at, there)
        sets[active[better]] = trial[better]
        for now, new in ((at.value, there.value), (at.gradient, there.gradient), (at.hessian, there.hessian)):
            now[better] = new[better]
        damping = np.where(better, np.maximum(damping / 5, 1e-12), damping * 4)
    done = np.ones(len(sets), dtype=bool)
    done[active] = False
    return sets, done


def _better(at: Evaluation, there: Evaluation) -> np.ndarray:
    """Whether the objective falls; where rounding hides that, whether the gradient does."""
    steepness, new = (np.abs(evaluation.gradient).max(axis=1) for evaluation in (at, there))
    return (there.value < at.value) | ((there.value <= at.value * (1 + 1e-13)) & (new < steepness))


def _steps(at: Evaluation, damping: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(at.hessian)
    along = np.einsum("sij,si->sj", vectors, at.gradient)
    return -np.einsum("sij,sj->si", vectors, along / (np.abs(values) + damping[:, None]))
