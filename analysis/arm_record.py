"""One arm's entry in multiplier.json: the estimate and everything said beside it, in full precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analysis.claim import Verdict
from analysis.multiplier import Multiplier
from analysis.seeds import SeedNoise
from analysis.separate import CurvePoint, SeparateSlopes
from analysis.simultaneous import Simultaneous
from analysis.study import Study


def arm_record(study: Study) -> dict[str, Any]:
    """The entry of one arm in one ledger."""
    return {
        **_estimate(study.multiplier),
        "sizes": _sizes(study),
        "profile_interval": _ends(study.profile),
        "fieller": study.fieller and {"bounded": study.fieller.bounded, "ends": _ends(study.fieller.ends)},
        "simultaneous": study.simultaneous and _simultaneous(study.simultaneous),
        "separate_slopes": study.separate and _separate(study.separate),
        "floors": [{"floor": f.floor, **_short(f.estimate)} for f in study.floors],
        "leave_one_out": [{"size": x.size, **_short(x.estimate)} for x in study.left_out],
        "seed_noise": study.seeds and _seed_noise(study.seeds),
        "claim": study.verdict and _verdict(study.verdict),
    }


def _estimate(m: Multiplier) -> dict[str, Any]:
    return {
        "multiplier": m.multiplier,
        "interval": _ends(m.interval),
        "reason": m.reason or None,
        "ln_multiplier": m.ln_multiplier,
        "variance_spread": m.spread_variance,
        "variance_exponent": m.exponent_variance,
        "df": m.df,
        "alpha": m.law and m.law.exponent,
        "alpha_se": m.law and m.law.exponent_se,
        "alpha_interval": m.law and list(m.law.exponent_interval),
        "sizes_in_range": m.sizes_in_range,
        "rounding_sd": m.rounding_sd,
    }


def _sizes(study: Study) -> list[dict[str, Any]]:
    law_free = {x.size: x.multiplier for x in study.law_free}
    return [
        {
            "size": s.pair.size,
            "seeds": list(s.pair.seeds),
            "loss_baseline": s.pair.loss_baseline,
            "loss_arm": s.pair.loss_arm,
            "compute_baseline": math.exp(s.pair.ln_compute_baseline),
            "compute_arm": math.exp(s.pair.ln_compute_arm),
            "multiplier": s.multiplier,
            "in_range": s.in_range,
            "law_free": law_free.get(s.pair.size),
        }
        for s in study.multiplier.sizes
    ]


def _short(m: Multiplier) -> dict[str, Any]:
    """An estimate under another choice."""
    return {
        "multiplier": m.multiplier,
        "interval": _ends(m.interval),
        "alpha": m.law and m.law.exponent,
        "reason": m.reason or None,
    }


def _simultaneous(s: Simultaneous) -> dict[str, Any]:
    return {"arms": s.arms, "df": s.df, "quantile": s.quantile, "interval": list(s.interval)}


def _separate(s: SeparateSlopes) -> dict[str, Any]:
    middle = s.at(s.arm.centre_ln_compute, paired=False)
    difference = s.exponent_difference
    return {
        "alpha_baseline": s.baseline.exponent,
        "alpha_arm": s.arm.exponent,
        "exponent_difference": difference.difference,
        "exponent_difference_interval": list(difference.interval),
        "exponent_difference_p": difference.p_value,
        "exponent_difference_detectable": difference.detectable,
        "unpaired": _point(middle),
        "curve": [_point(point) for point in s.curve()],
    }


def _point(point: CurvePoint) -> dict[str, Any]:
    return {
        "compute": math.exp(point.ln_compute),
        "multiplier": point.multiplier,
        "interval": _ends(point.interval),
        "in_range": point.in_range,
    }


def _seed_noise(s: SeedNoise) -> dict[str, Any]:
    return {
        "run_sd": s.run_sd,
        "df": s.df,
        "lack_of_fit": s.lack_of_fit,
        "df_between": s.df_between,
        "p_value": s.p_value,
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "claim": v.claim,
        "margin": v.margin,
        "bounds": list(v.bounds),
        "verdict": v.verdict,
        "interval_90": _ends(v.interval_90),
        "p_equal": v.p_equal,
        "p_equivalent": v.p_equivalent,
    }


def _ends(ends: Sequence[float] | None) -> list[float] | None:
    return None if ends is None else list(ends)
