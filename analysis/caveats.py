"""What would change the answer: each sentence follows from the table, none is printed that does not apply."""

from __future__ import annotations

import math

from analysis.multiplier import Multiplier
from analysis.runs import Runs
from analysis.seeds import seed_noise
from analysis.separate import separate_slopes
from analysis.wording import arm_name, range_text, times

SIGNIFICANT = 0.05
"""p below which one multiplier counts as not fitting every size."""

FEW_TOKENS = 20
"""Tokens a parameter below which a run counts as short (compute-optimal training has about this many)."""


def tokens_per_parameter(runs: Runs) -> tuple[float, float] | None:
    """Least and most tokens per parameter outside embedding and head among finished runs, or None if not recorded."""
    finished = runs.table[runs.table["status"] == "finished"]
    ratio = (finished["tokens"] / finished["params"]).dropna()
    return (float(ratio.min()), float(ratio.max())) if len(ratio) else None


def caveats(runs: Runs, by_ledger: dict[str, list[Multiplier]], headline: str) -> list[str]:
    """The sentences, in order of weight.

    Args:
        runs: the table.
        by_ledger: every arm's multiplier in every ledger that the table has.
        headline: the ledger of the answer.
    """
    answered = [m for m in by_ledger[headline] if m.multiplier is not None]
    sentences = [
        _tokens(runs),
        *(f"{arm_name(m.arm)} has no interval: {m.reason}." for m in answered if m.interval is None),
        *_seeds(runs, answered),
        _rounding(answered),
        *map(_trend, answered),
        _sizes(answered),
        _extrapolation(answered),
        _span(answered),
        *(_ledgers(m, by_ledger, headline) for m in answered),
        _tuning(runs),
        _left_out(runs),
    ]
    return [sentence for sentence in sentences if sentence]


def _tokens(runs: Runs) -> str:
    ratio = tokens_per_parameter(runs)
    if ratio is None:
        return "Tokens or parameters are not recorded, so it is not known how long the runs were for their size."
    seen = f"The runs saw {range_text(ratio)} tokens a parameter"
    if ratio[0] >= FEW_TOKENS:
        return f"{seen}; other lengths of training may give another multiplier."
    return (
        f"{seen}, fewer than the {FEW_TOKENS} of compute-optimal training. Short runs exaggerate the effect: "
        "expect a smaller multiplier from longer training."
    )


def _seeds(runs: Runs, answered: list[Multiplier]) -> list[str]:
    if not any(len(pair.seeds) > 1 for m in answered for pair in m.pairs):
        return ["There is one seed a size: the noise of a run is seen only through the scatter between sizes."]
    found = [(m, seed_noise(runs.pairs, m)) for m in answered]
    return [
        f"One multiplier does not fit every size of {arm_name(m.arm)} (p {noise.p_value:.2g} by the scatter of seeds): "
        "the answer is a mean over these sizes, and other sizes may give another."
        for m, noise in found
        if noise and noise.p_value is not None and noise.p_value < SIGNIFICANT
    ]


def _rounding(answered: list[Multiplier]) -> str:
    worst = max((m.rounding_sd or 0.0 for m in answered), default=0.0)
    if worst == 0:
        return ""
    return (
        f"Losses were rounded to steps of {answered[0].loss_step:g}, which alone scatters a size's multiplier by "
        f"{worst:.1%} (one standard deviation); the interval holds that."
    )


def _trend(m: Multiplier) -> str:
    slopes = separate_slopes(m.pairs)
    if slopes is None or slopes.exponent_difference.p_value >= SIGNIFICANT:
        return ""
    ends = [times(slopes.at(ln_compute).multiplier) for ln_compute in slopes.arm.ln_compute_range]
    return (
        f"{arm_name(m.arm)}'s multiplier changes with compute: with an exponent for each arm it goes from {ends[0]} at "
        f"the smallest size to {ends[1]} at the largest (p {slopes.exponent_difference.p_value:.2g} that the exponents "
        "are equal). The one number is a mean over these sizes, and its interval is wide because of it."
    )


def _sizes(answered: list[Multiplier]) -> str:
    rests = [
        f"{len(m.pairs)} sizes ({arm_name(m.arm)}, {m.df:.1f} degrees of freedom)" for m in answered if m.df is not None
    ]
    if not rests:
        return ""
    return f"The interval takes a multiplier to be the same at every size, and rests on {', '.join(rests)}."


def _extrapolation(answered: list[Multiplier]) -> str:
    beyond = [
        f"{len(m.sizes) - m.sizes_in_range} of {len(m.sizes)} sizes ({arm_name(m.arm)})"
        for m in answered
        if m.sizes_in_range < len(m.sizes)
    ]
    if not beyond:
        return ""
    return (
        f"No baseline run reached the arm's loss at {', '.join(beyond)}: there the multiplier leans on the fitted "
        "exponent beyond the runs."
    )


def _span(answered: list[Multiplier]) -> str:
    compute = [pair.ln_compute_baseline for m in answered for pair in m.pairs]
    if not compute:
        return ""
    factor = math.exp(max(compute) - min(compute))
    return f"The sizes span a factor of {factor:.3g} in compute; the answer says nothing about larger models."


def _ledgers(m: Multiplier, by_ledger: dict[str, list[Multiplier]], headline: str) -> str:
    others = [
        f"{times(other.multiplier)} in {ledger}"
        for ledger, multipliers in by_ledger.items()
        for other in multipliers
        if ledger != headline and other.arm == m.arm and other.multiplier is not None
    ]
    if not others:
        return ""
    return f"{arm_name(m.arm)}'s multiplier depends on what is counted: {times(m.multiplier)} in {headline}, " + (
        ", ".join(others) + "."
    )


def _tuning(runs: Runs) -> str:
    unequal = runs.hygiene.of("unequal tuning")
    if unequal:
        return f"{len(unequal)} pairs were tuned differently in their arms; part of the difference may be the tuning."
    if (runs.table["tuning"] != "").any():
        return "All arms have the same hyperparameters; each tuned for itself, the arms may stand differently."
    return ""


def _left_out(runs: Runs) -> str:
    lost = [finding for finding in runs.hygiene.losses if finding.kind != "unfinished"]
    return f"{len(lost)} pairs were left out (see the table of what was left out)." if lost else ""
