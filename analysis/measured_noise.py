"""The noise of a finished table, as a plan for the next one needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.errors import TableError
from analysis.multiplier import Multiplier, estimates
from analysis.power import Noise
from analysis.runs import Runs
from analysis.seeds import seed_noise


@dataclass(frozen=True)
class Measured:
    """The noise of a table in one ledger, and where it was read from."""

    noise: Noise
    source: str
    df: int
    """Degrees of freedom of the run's deviation: few mean that it may be far off."""


def measure(runs: Runs, ledger: str) -> Measured:
    """The run's deviation from seeds where there are any, else from the scatter of pairs over sizes.

    The scatter over sizes also holds whatever the multiplier itself varies by. The size's deviation is what is left of
    the scatter of the arms' mean about the line. All are means over the arms, in squares.

    Raises:
        TableError: no arm has an estimate in this ledger.
    """
    answered = [m for m in estimates(runs, ledger) if m.law is not None and m.numbers is not None and len(m.pairs) > 2]
    if not answered:
        raise TableError(f"{runs.path} has no multiplier in ledger {ledger}, so it says nothing of noise: give --sd")
    seeded = [found for m in answered if (found := seed_noise(runs.pairs, m))]
    if seeded:
        df = sum(found.df for found in seeded)
        run_variance = sum(found.run_sd**2 * found.df for found in seeded) / df
        source = "seeds"
    else:
        df = sum(len(m.pairs) - 1 for m in answered)
        run_variance = sum(_pair_variance(m) * (len(m.pairs) - 1) for m in answered) / df / 2
        source = "scatter of pairs over sizes"
    about_line = float(np.mean([m.law.residual_sd**2 for m in answered if m.law]))
    seeds = float(np.mean([len(pair.seeds) for m in answered for pair in m.pairs]))
    size_variance = max(0.0, about_line - run_variance / 2 / seeds)
    first = answered[0].law
    low, high = first.ln_compute_range if first else (0.0, 0.0)
    alpha = float(np.mean([m.law.exponent for m in answered if m.law]))
    noise = Noise(math.sqrt(run_variance), math.sqrt(size_variance), alpha, math.exp(high - low))
    return Measured(noise, source, df)


def _pair_variance(m: Multiplier) -> float:
    """Variance over sizes of the gain in ln L."""
    return 0.0 if m.numbers is None else float((m.numbers.ln_multipliers * m.numbers.alpha).var(ddof=1))
