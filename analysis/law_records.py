"""The laws of `loss_laws` as parts of fit.json, in full precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from analysis.allocation import Interval
from analysis.chinchilla import HUBER
from analysis.descent import GRADIENT
from analysis.floor import SHARES, FloorLaw, FreeFloor
from analysis.ledgers import Unit, law_unit
from analysis.loss_laws import Floors, Growth, SizeTokens
from analysis.losses import Losses
from analysis.powerlaw import CONFIDENCE

CHOICES = {
    "floors": {
        "law": "L = E + A C^-alpha",
        "method": "least squares of ln L",
        "pinned": f"E = {', '.join(f'{share:g}' for share in SHARES)} of the lowest loss of the table",
        "free": "exploratory; interval of E: residual squares at most 1 + t^2 / (n - 3) times the least, E >= 0",
        "confidence": CONFIDENCE,
    },
    "size_and_tokens": {
        "law": "L = E + A / N^alpha + B / D^beta",
        "method": "Huber's loss of the residuals of ln L by Newton steps from the 4,500 starts of arXiv 2404.10102",
        "huber_threshold": HUBER,
        "gradient_tolerance": GRADIENT,
        "rows": "finished runs with parameters and tokens",
        "interval": "percentiles of a bootstrap by cases, every replicate from the fit of all rows",
        "optimal": "lowest loss at C = 6 N D",
        "confidence": CONFIDENCE,
    },
}


def floors_part(floors: Mapping[str, Mapping[str, Floors]]) -> dict[str, Any]:
    """Ledger -> arm -> the pinned laws and the free one."""
    return {
        ledger: {
            arm: {"pinned": _pinned(each.pinned, law_unit(ledger)), "free": _free(each.free, law_unit(ledger))}
            for arm, each in arms.items()
        }
        for ledger, arms in floors.items()
    }


def size_tokens_part(fits: Mapping[str, SizeTokens]) -> dict[str, Any]:
    """Arm -> the law of parameters and tokens, or why there is none."""
    return {arm: _size_tokens(each) for arm, each in fits.items()}


def growths_part(growths: Mapping[str, Growth]) -> dict[str, Any]:
    """Arm -> how its sizes grow with compute."""
    return {
        arm: {"exponent": each.exponent, "interval": list(each.interval), "weighted": each.weighted}
        for arm, each in growths.items()
    }


def rows_part(losses: Losses) -> dict[str, Any]:
    """What became of the rows of a bare table."""
    return {
        "rows_read": losses.rows_read,
        "rows_used": losses.rows_read - len(losses.findings),
        "findings": [asdict(finding) for finding in losses.findings],
    }


def _pinned(laws: list[FloorLaw] | str, unit: Unit) -> Any:
    return {"reason": laws} if isinstance(laws, str) else [_floor_law(law, unit) for law in laws]


def _floor_law(law: FloorLaw, unit: Unit) -> dict[str, Any]:
    return {
        "E": law.floor,
        "A": law.coefficient(unit.scale),
        "compute_unit": unit.label,
        "alpha": law.exponent,
        "alpha_se": law.exponent_se,
        "alpha_interval": list(law.exponent_interval),
        "points": law.points,
        "residual_sd_ln_loss": law.residual_sd,
    }


def _free(best: FreeFloor | str, unit: Unit) -> dict[str, Any]:
    if isinstance(best, str):
        return {"reason": best}
    law = _floor_law(best.law, unit)
    for key in ("alpha_se", "alpha_interval", "residual_sd_ln_loss"):
        del law[key]
    df = best.law.points - 3
    return {
        "exploratory": True,
        **law,
        "E_interval": list(best.interval),
        "alpha_at_E_interval": list(best.exponents),
        "residual_sd_ln_loss": math.sqrt(best.law.squares / df),
    }


def _size_tokens(each: SizeTokens) -> dict[str, Any]:
    law, sample = each.law, each.sample
    if isinstance(law, str):
        return {"reason": law, "refusal": each.refusal}
    intervals = sample.intervals if sample else {}
    certificate = asdict(law.certificate)
    return {
        **law.named,
        **{f"{name}_interval": _ends(intervals.get(name)) for name in law.named},
        "points": len(law.rows),
        "residual_sd_ln_loss": float(law.residuals.std()),
        "certificate": {**certificate, "bounds": list(certificate["bounds"])},
        "bootstrap": sample
        and {
            "replicates": sample.replicates,
            "failed": sample.failed,
            "at_floor_zero": sample.at_floor_zero,
            "seed": sample.seed,
            "reason": sample.reason or None,
        },
        "optimal_exponents": {
            name: {"value": value, "interval": _ends(interval)} for name, (value, interval) in each.exponents.items()
        },
        "optimal": [
            {
                "compute": o.compute,
                "params": o.size,
                "params_interval": _ends(o.size_interval),
                "tokens": o.tokens,
                "tokens_interval": _ends(o.tokens_interval),
                "tokens_per_param": o.ratio,
                "tokens_per_param_interval": _ends(o.ratio_interval),
                "loss": o.loss,
                "in_range": o.in_range,
            }
            for o in each.optima
        ],
    }


def _ends(interval: Interval) -> list[float] | None:
    return None if interval is None else list(interval)
