"""The paired compute multiplier M: how much more compute the baseline needs for the arm's loss, with its interval.

Per size i, ln M_i = (ln L_base,i - ln L_arm,i) / alpha + ln(C_base,i / C_arm,i), where alpha is minus the slope of the
two arms' mean ln L on their mean ln C: one exponent shared by the arms. Pairing cancels what a size does to both arms.
The estimate is the mean over sizes. Its variance has two independent parts,

    spread    var(ln M_i) / n, alpha held fixed; on n - 1 degrees of freedom
    exponent  (mean d / alpha^2)^2 se(alpha)^2 with d = ln L_base - ln L_arm; on n - 2

and the interval is a t interval on Satterthwaite's degrees of freedom, exponentiated. Where the arms' compute is equal
the spread is var(d) / n / alpha^2; where it is not, the spread of the ratios of compute belongs to it. Losses rounded
to a known step are part of the scatter already; no scatter is taken to be smaller than the rounding alone makes it.
Ledgers are never mixed: both arms' compute comes from one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.errors import FitError
from analysis.paired import Paired, paired
from analysis.pairing import SizePair, size_pairs
from analysis.powerlaw import PowerLaw, fit, t_quantile
from analysis.runs import Runs


@dataclass(frozen=True)
class SizeMultiplier:
    """What one size alone says."""

    pair: SizePair
    ln_multiplier: float
    in_range: bool
    """Whether the baseline's own runs span the arm's loss; if not, the fitted exponent reaches beyond them."""

    @property
    def multiplier(self) -> float:
        """M at this size."""
        return math.exp(self.ln_multiplier)


@dataclass(frozen=True)
class Multiplier:
    """One arm's estimate in one ledger. What could not be estimated is None, and `reason` says why."""

    arm: str
    ledger: str
    pairs: tuple[SizePair, ...]
    law: PowerLaw | None = None
    """The arms' mean ln L on their mean ln C; its exponent is the shared one."""
    sizes: tuple[SizeMultiplier, ...] = ()
    ln_multiplier: float | None = None
    spread_variance: float | None = None
    exponent_variance: float | None = None
    df: float | None = None
    ln_interval: tuple[float, float] | None = None
    reason: str = ""
    numbers: Paired | None = field(default=None, compare=False)
    """What the estimate was made from, for further tests of it; None where there is no estimate."""
    loss_step: float = 0.0
    """Step to which the losses were rounded (nats per token), 0 if they were not."""

    @property
    def multiplier(self) -> float | None:
        """M, or None."""
        return None if self.ln_multiplier is None else math.exp(self.ln_multiplier)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of M, or None."""
        return None if self.ln_interval is None else (math.exp(self.ln_interval[0]), math.exp(self.ln_interval[1]))

    @property
    def variance(self) -> float | None:
        """Variance of ln M."""
        if self.spread_variance is None or self.exponent_variance is None:
            return None
        return self.spread_variance + self.exponent_variance

    @property
    def rounding_sd(self) -> float | None:
        """Standard deviation of ln M of one size that rounding its two losses gives; None without an estimate."""
        return None if self.numbers is None else math.sqrt(2 * self.numbers.rounding) / float(self.numbers.alpha)

    @property
    def sizes_in_range(self) -> int:
        """Number of sizes at which no curve is extrapolated."""
        return sum(size.in_range for size in self.sizes)


def estimates(runs: Runs, ledger: str) -> list[Multiplier]:
    """The multiplier of every arm of a table in one ledger."""
    return [estimate(arm, ledger, size_pairs(runs.pairs, arm, ledger), runs.loss_step) for arm in runs.arms]


def estimate(arm: str, ledger: str, pairs: tuple[SizePair, ...], loss_step: float = 0.0) -> Multiplier:
    """The paired estimate with a shared exponent.

    Args:
        arm: name of the arm, for the result.
        ledger: name of the ledger that the pairs' compute is in, for the result.
        pairs: one per size.
        loss_step: step to which the losses were rounded (nats per token), 0 if they were not.
    """
    if not pairs:
        return Multiplier(arm, ledger, pairs, reason="no pair of runs has compute in this ledger")
    base_loss, arm_loss, base_compute, arm_compute = columns(pairs)
    try:
        law = fit((base_compute + arm_compute) / 2, (base_loss + arm_loss) / 2)
    except FitError as error:
        return Multiplier(arm, ledger, pairs, reason=str(error))
    if law.exponent <= 0:
        reason = f"loss does not fall with compute (exponent {law.exponent:.3g}), so no compute is worth the difference"
        return Multiplier(arm, ledger, pairs, law, reason=reason)

    p = paired(base_loss, arm_loss, base_compute, arm_compute, _rounding_variance(pairs, loss_step))
    low, high = base_loss.min(), base_loss.max()
    sizes = tuple(
        SizeMultiplier(pair, float(value), bool(low <= pair.ln_loss_arm <= high))
        for pair, value in zip(pairs, p.ln_multipliers, strict=True)
    )
    mean, spread, exponent = float(p.ln_multiplier), float(p.spread), float(p.exponent)
    df, ln_interval, reason = None, None, ""
    if not law.exponent_is_positive:
        reason = (
            f"the exponent's interval, {law.exponent_interval[0]:.3g} to {law.exponent_interval[1]:.3g}, includes 0: "
            "train more sizes, or sizes further apart"
        )
    elif spread + exponent == 0:
        reason = "the pairs do not differ from one another at all, so nothing says how far they could"
    else:
        df = float(p.df)
        half = t_quantile(df) * math.sqrt(spread + exponent)
        ln_interval = (mean - half, mean + half)
    return Multiplier(arm, ledger, pairs, law, sizes, mean, spread, exponent, df, ln_interval, reason, p, loss_step)


def columns(pairs: tuple[SizePair, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(n,) each: ln L of the baseline and of the arm, ln C of the baseline and of the arm."""
    loss_baseline, loss_arm, compute_baseline, compute_arm = np.array(
        [[p.ln_loss_baseline, p.ln_loss_arm, p.ln_compute_baseline, p.ln_compute_arm] for p in pairs]
    ).T
    return loss_baseline, loss_arm, compute_baseline, compute_arm


def _rounding_variance(pairs: tuple[SizePair, ...], step: float) -> float:
    """Variance of ln L that rounding to a step gives a loss averaged over a size's seeds, the mean over all losses."""
    each = [step**2 / 12 / len(pair.seeds) / loss**2 for pair in pairs for loss in (pair.loss_baseline, pair.loss_arm)]
    return sum(each) / len(each)
