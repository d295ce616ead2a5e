"""Every law of a table beyond L = A C^-alpha: floors under L(C), and L(N, D) with its optimal allocation."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from analysis.allocation import Interval, Optimum, exponents, growth, optima
from analysis.errors import FitError, FitRefused, NotIdentifiable
from analysis.floor import SHARES, FloorLaw, FreeFloor, free, sweep
from analysis.losses import Losses
from analysis.powerlaw import PowerLaw
from analysis.powerlaw import fit as fit_line
from analysis.size_tokens import REPLICATES, Bootstrap, SizeTokensLaw, bootstrap, fit

MIXED = 0.3
"""Standard deviation of ln N at equal compute above which rows over compute are no one curve."""


@dataclass(frozen=True)
class Floors:
    """L = E + A C^-alpha of one arm in one ledger; what could not be fitted is its reason, in words."""

    pinned: list[FloorLaw] | str
    free: FreeFloor | str


@dataclass(frozen=True)
class SizeTokens:
    """L(N, D) of one arm with its bootstrap; `law` is the reason, in words, where there is none."""

    law: SizeTokensLaw | str
    refusal: str = ""
    """"not identifiable" or "refused" where there is no law."""
    sample: Bootstrap | None = None

    @property
    def optima(self) -> list[Optimum]:
        """The optimal allocation at four amounts of compute."""
        return [] if isinstance(self.law, str) else optima(self.law, self.sample)

    @property
    def exponents(self) -> dict[str, tuple[float, Interval]]:
        """a and b (N_opt goes as C^a, D_opt as C^b), each with its interval."""
        if isinstance(self.law, str):
            return {}
        estimates = (float(values[0]) for values in exponents(self.law.parameters[None]))
        sampled = exponents(self.sample.sets) if self.sample else (None, None)
        return {
            name: (value, self.sample.interval(values) if self.sample and values is not None else None)
            for name, value, values in zip("ab", estimates, sampled, strict=True)
        }


@dataclass(frozen=True)
class Growth:
    """How the sizes of an arm's rows grow with compute: N as C^exponent, with its 95 % interval."""

    exponent: float
    interval: tuple[float, float]
    weighted: bool
    """By the standard deviations of ln N that the table gives."""


def over_compute(losses: Losses) -> dict[str, dict[str, PowerLaw | str]]:
    """L = A C^-alpha of every ledger and arm; a text where there is no law says why."""
    return {
        ledger: {arm: _power_law(*points) for arm, points in arms.items()}
        for ledger, arms in losses.over_compute.items()
    }


def growths(losses: Losses) -> dict[str, Growth]:
    """How N grows with compute, for every arm whose sizes follow from compute: of optima this is their exponent."""
    found = {}
    for arm, (size, tokens, _) in losses.over_size.items():
        with contextlib.suppress(FitError):
            if not is_mixed(losses, arm):
                estimate, interval = growth(6 * size * tokens, size, losses.size_sd)
                found[arm] = Growth(estimate, interval, losses.size_sd is not None)
    return found


def floors(losses: Losses) -> dict[str, dict[str, Floors]]:
    """L(C) with floors for every ledger and arm; all share the floors that are pinned."""
    pins = [share * losses.lowest for share in SHARES]
    return {
        ledger: {arm: _floors(*points, pins) for arm, points in arms.items()}
        for ledger, arms in losses.over_compute.items()
    }


def size_tokens(losses: Losses, replicates: int = REPLICATES) -> dict[str, SizeTokens]:
    """L(N, D) of every arm; without a bootstrap where `replicates` is 0."""
    return {arm: _size_tokens(rows, replicates) for arm, rows in losses.over_size.items()}


def is_mixed(losses: Losses, arm: str) -> bool:
    """Whether sizes differ at equal compute, so that L(C) of all rows is not the law of the best use of compute."""
    if arm not in losses.over_size:
        return False
    size, tokens, _ = (np.log(values) for values in losses.over_size[arm])
    compute = size + tokens
    if len(size) < 3 or np.ptp(compute) == 0:
        return bool(np.ptp(size) > 0)
    line = np.polyfit(compute - compute.mean(), size, 1)
    return bool(np.std(size - np.polyval(line, compute - compute.mean())) > MIXED)


def _power_law(ln_compute: np.ndarray, ln_loss: np.ndarray) -> PowerLaw | str:
    try:
        return fit_line(ln_compute, ln_loss)
    except FitError as error:
        return str(error)


def _floors(ln_compute: np.ndarray, ln_loss: np.ndarray, pins: list[float]) -> Floors:
    pinned: list[FloorLaw] | str
    best: FreeFloor | str
    try:
        pinned = sweep(ln_compute, ln_loss, pins)
    except FitError as error:
        pinned = str(error)
    try:
        best = free(ln_compute, ln_loss)
    except FitError as error:
        best = str(error)
    return Floors(pinned, best)


def _size_tokens(rows: tuple[np.ndarray, np.ndarray, np.ndarray], replicates: int) -> SizeTokens:
    try:
        law = fit(*rows)
    except NotIdentifiable as error:
        return SizeTokens(str(error), "not identifiable")
    except FitRefused as error:
        return SizeTokens(str(error), "refused")
    return SizeTokens(law, sample=bootstrap(law, replicates) if replicates else None)
