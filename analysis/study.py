"""Everything that is said of one arm in one ledger beside its estimate, in one place for files, tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.claim import MARGIN, Verdict, judge
from analysis.fieller import Fieller, fieller
from analysis.multiplier import Multiplier, estimates
from analysis.profile import profile_interval
from analysis.runs import Runs
from analysis.seeds import SeedNoise, seed_noise
from analysis.sensitivity import Floored, LawFree, LeftOut, floors, law_free, leave_one_out
from analysis.separate import SeparateSlopes, separate_slopes
from analysis.simultaneous import Simultaneous, simultaneous


@dataclass(frozen=True)
class Study:
    """One arm in one ledger. What could not be worked out is None or empty."""

    multiplier: Multiplier
    fieller: Fieller | None
    profile: tuple[float, float] | None
    """95 % interval of M by the profile likelihood; None where it is unbounded."""
    simultaneous: Simultaneous | None
    separate: SeparateSlopes | None
    floors: tuple[Floored, ...]
    left_out: tuple[LeftOut, ...]
    law_free: tuple[LawFree, ...]
    seeds: SeedNoise | None
    verdict: Verdict | None
    """None where nothing was claimed."""


def studies(runs: Runs, ledger: str, claim: float | None = None, margin: float = MARGIN) -> list[Study]:
    """Every arm of a table in one ledger, held against a claimed multiplier if there is one.

    Raises:
        ClaimError: the claim or its margin cannot be.
    """
    multipliers = estimates(runs, ledger)
    together = simultaneous(multipliers)
    return [
        Study(
            multiplier=m,
            fieller=None if m.numbers is None else fieller(m.numbers),
            profile=None if m.numbers is None else profile_interval(m.numbers),
            simultaneous=together.get(m.arm),
            separate=separate_slopes(m.pairs),
            floors=floors(m),
            left_out=leave_one_out(m),
            law_free=law_free(m.pairs),
            seeds=seed_noise(runs.pairs, m),
            verdict=None if claim is None else judge(m, claim, margin),
        )
        for m in multipliers
    ]
