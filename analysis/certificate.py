"""What has to hold before a fit of L(N, D) is believed: asked of the rows before it, and of the result after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.chinchilla import Rows, jacobian, shares
from analysis.descent import GRADIENT, Descent
from analysis.errors import NotIdentifiable

MIN_ROWS = 6
"""Five parameters, and one row to contradict them."""
MIN_VALUES = 3
"""Different sizes, and different numbers of tokens: a floor, a factor and an exponent bend through three at least."""
UNEXPLAINED = 0.02
"""Least share of the variance of ln D that must not follow from ln N."""
AGREE = 1e-6
"""Objectives that differ by less than this share of the best (or by 1e-10 in ln L) are the same."""
SAME = 0.01
"""Starts of the same objective must end within this of one another in alpha, beta and ln E."""
STILL = 1e-9
"""A descent that ends nearer than this to its start, in centred parameters, has not moved."""
RANK = 1e-6
"""Singular values of the scaled Jacobian below this share of the largest count as 0."""
VANISHED = 1e-4
"""A term whose share of the loss is below this in every row has run into its bound, 0."""
_TERMS = (("A", "A / N^alpha runs to 0"), ("B", "B / D^beta runs to 0"), ("E", "the floor E runs to 0"))


@dataclass(frozen=True)
class Certificate:
    """The evidence for one fit; it holds where `failures` is empty."""

    gradient: float
    """Largest derivative of the objective (mean |residual of ln L|) by a centred parameter."""
    starts: int
    agreeing: int
    """Starts that end at the best objective."""
    disagreement: float
    """Largest distance among these in alpha, beta or ln E."""
    distance: float
    """How far from its start the farthest of these went (norm in centred parameters)."""
    bounds: tuple[str, ...]
    """Parameters that ran into a bound."""
    condition: float | None
    """Of the Jacobian of ln L by the centred parameters, columns scaled to 1; None where it is not finite."""
    rank: int
    """Of the same; 5 is full."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the fit is refused, each in words."""
        found = []
        if not self.gradient <= GRADIENT:
            found.append(f"the gradient is {self.gradient:.1e} where the descent ended, not below {GRADIENT:.0e}")
        if self.distance <= STILL:
            found.append("the fit equals its start: nothing was fitted, so start elsewhere")
        if self.agreeing < min(2, self.starts):
            found.append(f"only {self.agreeing} of {self.starts} starts ended at the best objective")
        if self.disagreement > SAME:
            found.append(f"starts of one objective end {self.disagreement:.2g} apart in alpha, beta or ln E")
        found += self.bounds
        if self.rank < 5:
            found.append(f"the Jacobian has rank {self.rank} of 5: the parameters cannot be told apart")
        return tuple(found)


def check_rows(rows: Rows) -> None:
    """Refuse rows from which E, A, B, alpha and beta cannot be told apart.

    Raises:
        NotIdentifiable: naming what is missing.
    """
    for values, name in ((rows.x, "sizes"), (rows.y, "numbers of tokens")):
        different = len(np.unique(np.round(values, 4)))
        if different < MIN_VALUES:
            raise NotIdentifiable(
                f"not identifiable: L(N, D) needs {MIN_VALUES} different {name} and there are {different}"
            )
    unexplained = 1 - (rows.x @ rows.y) ** 2 / ((rows.x @ rows.x) * (rows.y @ rows.y))
    if unexplained < UNEXPLAINED:
        raise NotIdentifiable(
            f"not identifiable: tokens go with parameters ({100 * (1 - unexplained):.1f} % of the variance of ln D "
            "follows from ln N), so what a size does cannot be told from what tokens do; train sizes for several "
            "numbers of tokens (L(C) is not touched by this)"
        )
    if len(rows) < MIN_ROWS:
        raise NotIdentifiable(
            f"not identifiable: L(N, D) has five parameters and there are {len(rows)} runs with parameters and tokens; "
            f"it needs {MIN_ROWS} at least"
        )


def certify(rows: Rows, starts: np.ndarray, descent: Descent) -> tuple[np.ndarray, Certificate]:
    """The best of the descents from (S, 5) centred starts, as centred parameters, with its certificate."""
    lowest = descent.value.min()
    agreeing = descent.value <= lowest * (1 + AGREE) + 1e-10
    best = int(np.flatnonzero(agreeing)[descent.gradient[agreeing].argmin()])
    chosen = descent.sets[best]
    ends = descent.sets[agreeing]
    scaled = jacobian(rows, chosen)
    scaled = scaled / np.maximum(np.linalg.norm(scaled, axis=0), np.finfo(float).tiny)
    singular = np.linalg.svd(scaled, compute_uv=False)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else np.inf
    return chosen, Certificate(
        gradient=float(descent.gradient[best]),
        starts=len(starts),
        agreeing=int(agreeing.sum()),
        disagreement=float(np.abs(ends[:, 2:] - chosen[2:]).max()),
        distance=float(np.linalg.norm(ends - starts[agreeing], axis=1).max()),
        bounds=tuple(bounds_hit(rows, chosen[None])[0]),
        condition=condition if np.isfinite(condition) else None,
        rank=int((singular > RANK * singular[0]).sum()),
    )


def bounds_hit(rows: Rows, sets: np.ndarray) -> list[list[str]]:
    """For each of (S, 5) centred sets the bounds it ran into, in words: "A / N^alpha runs to 0"."""
    largest = shares(rows, sets)[1].max(axis=2)
    return [
        [text for (_, text), share in zip(_TERMS, largest[:, i], strict=True) if share < VANISHED]
        + [f"{name} is {value:.3g}, not above 0" for name, value in (("alpha", s[3]), ("beta", s[4])) if value <= 0]
        for i, s in enumerate(sets)
    ]
