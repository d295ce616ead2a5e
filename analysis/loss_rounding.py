"""Losses that were rounded before they were written down: how to tell, and what it does to a loss."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

SIGNIFICANT_DIGITS = 6
"""Digits that a stored loss should have: rounding is then far below the noise of a run."""
_MOST_DECIMALS = 4


def rounding_step(losses: Iterable[float]) -> float:
    """The step to which all losses were rounded (nats per token), or 0 if they were not.

    Losses are taken to be rounded if none needs more than four decimals and all have fewer than six significant
    digits: what a table in a paper has, and what two full-precision losses hardly ever have by chance.
    """
    numbers = [Decimal(repr(float(loss))).normalize() for loss in losses]
    if not numbers or any(len(number.as_tuple().digits) >= SIGNIFICANT_DIGITS for number in numbers):
        return 0.0
    decimals = max(0, *(-int(number.as_tuple().exponent) for number in numbers))
    return float(Decimal(1).scaleb(-decimals)) if decimals <= _MOST_DECIMALS else 0.0


def rounding_text(step: float) -> str:
    """What a step of rounding means, for the table of what was found."""
    return (
        f"losses are given in steps of {step:g}, each is off by up to {step / 2:g}: no scatter is taken to be smaller; "
        f"store {SIGNIFICANT_DIGITS} significant digits"
    )
