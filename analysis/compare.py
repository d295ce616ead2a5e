"""Two tables side by side: the ratio of their multipliers, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.errors import TableError
from analysis.ledgers import COLUMN, leading
from analysis.multiplier import Multiplier, estimates
from analysis.powerlaw import t_quantile
from analysis.runs import Runs


@dataclass(frozen=True)
class Comparison:
    """One arm in two tables; `ratio` is the first multiplier over the second, and `reason` says why it is None."""

    arm: str
    first: Multiplier | None
    second: Multiplier | None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = ""


def common_ledger(first: Runs, second: Runs, asked: str | None = None) -> str:
    """The ledger that leads among those both tables have.

    Raises:
        TableError: they have none in common, or not the one asked for.
    """
    common = [ledger for ledger in COLUMN if ledger in first.ledgers and ledger in second.ledgers]
    if not common:
        raise TableError(
            f"{first.path} has compute in {', '.join(first.ledgers)} and {second.path} in {', '.join(second.ledgers)}: "
            "multipliers are compared in one ledger only, so add its column to both"
        )
    return leading(common, asked)


def compare(first: Runs, second: Runs, ledger: str) -> list[Comparison]:
    """Every arm of either table, in one ledger. The tables are taken to be independent experiments."""
    a = {m.arm: m for m in estimates(first, ledger)}
    b = {m.arm: m for m in estimates(second, ledger)}
    return [_ratio(arm, a.get(arm), b.get(arm)) for arm in dict.fromkeys([*a, *b])]


def _ratio(arm: str, first: Multiplier | None, second: Multiplier | None) -> Comparison:
    if first is None or second is None:
        return Comparison(arm, first, second, reason=f"only the {'second' if first is None else 'first'} has this arm")
    if first.ln_multiplier is None or second.ln_multiplier is None:
        return Comparison(arm, first, second, reason=first.reason or second.reason)
    ln_ratio = first.ln_multiplier - second.ln_multiplier
    if first.ln_interval is None or second.ln_interval is None:
        return Comparison(arm, first, second, math.exp(ln_ratio), reason=first.reason or second.reason)
    variances = [m.variance for m in (first, second)]
    dfs = [m.df for m in (first, second)]
    v1, v2, df1, df2 = (float(x or 0) for x in (*variances, *dfs))
    df = (v1 + v2) ** 2 / (v1**2 / df1 + v2**2 / df2)
    half = t_quantile(df) * math.sqrt(v1 + v2)
    return Comparison(arm, first, second, math.exp(ln_ratio), (math.exp(ln_ratio - half), math.exp(ln_ratio + half)))
