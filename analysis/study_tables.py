"""What the verb `multiplier` prints beside the estimates: how far the answer leans on each choice, and the answer."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from analysis.study import Study
from analysis.study_wording import (
    CURVE,
    EXPONENTS,
    INTERVALS,
    OTHERS,
    SEEDS,
    answers,
    curve_row,
    exponent_row,
    floor_rows,
    interval_row,
    other_row,
    seed_row,
)
from analysis.tables import print_table
from analysis.wording import arm_name


def print_studies(console: Console, studies: Sequence[Study]) -> None:
    """The other intervals, the other choices, M over compute, pinned floors and the noise of seeds, in one ledger."""
    answered = [s for s in studies if s.multiplier.numbers is not None]
    if not answered:
        return
    ledger = answered[0].multiplier.ledger
    print_table(console, f"Intervals by other ways, ledger {ledger}", INTERVALS, map(interval_row, answered))
    print_table(console, f"Other choices, ledger {ledger}", OTHERS, map(other_row, answered))
    separate = [s for s in answered if s.separate]
    print_table(console, f"Exponents, ledger {ledger}", EXPONENTS, map(exponent_row, separate))
    print_table(console, f"M by an exponent for each arm, ledger {ledger}", CURVE, map(curve_row, separate))
    header = ("E", *(arm_name(s.multiplier.arm) for s in answered))
    print_table(console, f"M with a floor E pinned under the loss, ledger {ledger}", header, floor_rows(answered))
    print_table(console, f"Noise of seeds, ledger {ledger}", SEEDS, [seed_row(s) for s in answered if s.seeds])


def print_answers(console: Console, studies: Sequence[Study]) -> None:
    """The answer in words, last."""
    for line in answers(studies):
        console.print(Text(line), soft_wrap=True)
