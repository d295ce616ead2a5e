"""Does a table support a claimed multiplier? Consistent, not consistent, or cannot tell.

- consistent: M is shown to be within the margin of the claim. Two one-sided t tests at 5 % each, which is to say that
  the 90 % interval lies within claim / (1 + margin) to claim x (1 + margin). (D. J. Schuirmann, J. Pharmacokinet.
  Biopharm. 15, 1987.) A difference within the margin is declared not to matter, so this is asked first.
- not consistent: else, and a two-sided t test at 5 % rejects the claim: it lies outside the 95 % interval.
- cannot tell: the rest. The interval holds the claim and values too far from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from analysis.errors import AnalysisError
from analysis.multiplier import Multiplier

MARGIN = 0.05
"""How far from a claim, as a share of compute, M may be for the difference not to matter, unless another is asked."""


class ClaimError(AnalysisError):
    """A claimed multiplier, or its margin, that no M can have."""


@dataclass(frozen=True)
class Verdict:
    """What a table says of a claim about one arm in one ledger."""

    claim: float
    margin: float
    verdict: str
    """"consistent", "not consistent" or "cannot tell"."""
    interval_90: tuple[float, float] | None = None
    p_equal: float | None = None
    """Of the two-sided test that M is the claim."""
    p_equivalent: float | None = None
    """Of the two one-sided tests, the larger: that M is not within the margin."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The margin's ends, in M."""
        return self.claim / (1 + self.margin), self.claim * (1 + self.margin)


def check_claim(claim: float, margin: float) -> None:
    """Refuse what no multiplier can be.

    Raises:
        ClaimError: the claim is not a finite number above 0, or the margin not one above 0 and at most 1.
    """
    if not 0 < claim < math.inf:
        raise ClaimError(f"a claimed multiplier of {claim:g} is none: give a number above 0, such as 1.25")
    if not 0 < margin <= 1:
        raise ClaimError(f"a margin of {margin:g} is none: give a share of compute above 0 and at most 1, such as 0.05")


def judge(m: Multiplier, claim: float, margin: float = MARGIN) -> Verdict:
    """Hold one estimate against a claim.

    Raises:
        ClaimError: see `check_claim`.
    """
    check_claim(claim, margin)
    if m.ln_multiplier is None or m.df is None or not m.variance:
        return Verdict(claim, margin, "cannot tell")
    se = math.sqrt(m.variance)
    away, allowed = m.ln_multiplier - math.log(claim), math.log1p(margin)
    p_equal = 2 * float(stdtr(m.df, -abs(away) / se))
    p_equivalent = float(stdtr(m.df, (abs(away) - allowed) / se))
    half = float(stdtrit(m.df, 0.95)) * se
    verdict = "consistent" if p_equivalent <= 0.05 else "not consistent" if p_equal < 0.05 else "cannot tell"
    interval = math.exp(m.ln_multiplier - half), math.exp(m.ln_multiplier + half)
    return Verdict(claim, margin, verdict, interval, p_equal, p_equivalent)
