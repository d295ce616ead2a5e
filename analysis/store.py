"""What an analysis leaves behind: fit.json and multiplier.json in full precision, and the one way to write a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from analysis.errors import OutputError
from analysis.law_records import CHOICES, rows_part
from analysis.laws import arm_laws
from analysis.ledgers import law_unit
from analysis.loss_laws import over_compute
from analysis.losses import Losses
from analysis.multiplier import Multiplier, estimates
from analysis.pairing import MATCHED
from analysis.powerlaw import CONFIDENCE, MIN_POINTS, PowerLaw
from analysis.runs import Runs

FORMAT = 1


def write(path: Path, content: str | bytes) -> Path:
    """Write a file whole, making its folder; returns the path.

    Raises:
        OutputError: it cannot be written there.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OutputError(f"cannot write {path} ({error.strerror}): give a folder that can be written") from None
    return path


def json_text(record: Mapping[str, Any]) -> str:
    """A record as JSON in full precision; a number that is not finite is an error, never written."""
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def fit_record(runs: Runs) -> dict[str, Any]:
    """The content of fit.json: the law of every arm in every ledger."""
    return {
        **_header(runs),
        "choices": {
            "law": "L = A C^-alpha",
            "method": "least squares of ln L on ln C, each size the mean over its seeds",
            "rows": "finished runs that are part of a pair",
            "confidence": CONFIDENCE,
            **CHOICES,
        },
        "ledgers": {
            ledger: {arm: _law(law, ledger) for arm, law in arm_laws(runs, ledger).items()} for ledger in runs.ledgers
        },
        "hygiene": _hygiene(runs),
    }


def multiplier_record(runs: Runs, headline: str) -> dict[str, Any]:
    """The content of multiplier.json: every arm in every ledger, with what each size says."""
    return {
        **_header(runs),
        "headline_ledger": headline,
        "choices": {
            "definition": "M = compute of the baseline / compute of the arm at equal loss",
            "estimate": "mean over sizes of (ln L_baseline - ln L_arm) / alpha + ln(C_baseline / C_arm), exponentiated",
            "alpha": "minus the slope of the two arms' mean ln L on their mean ln C; shared by the arms",
            "variance": "var(ln M_i) / n + (mean(ln L_baseline - ln L_arm) / alpha^2)^2 se(alpha)^2",
            "interval": "t on Satterthwaite's degrees of freedom of n - 1 and n - 2",
            "confidence": CONFIDENCE,
            "seeds": "paired by seed, then averaged in ln L and ln C",
            "paired_if_equal": list(MATCHED),
            "sizes_needed": MIN_POINTS,
        },
        "ledgers": {ledger: {m.arm: _multiplier(m) for m in estimates(runs, ledger)} for ledger in runs.ledgers},
        "hygiene": _hygiene(runs),
    }


def losses_record(losses: Losses) -> dict[str, Any]:
    """The head of fit.json for a bare table of losses: its power laws and what became of its rows."""
    return {
        **_header(losses),
        "choices": {
            "law": "L = A C^-alpha",
            "method": "least squares of ln L on ln C",
            "rows": "every finished row",
            "confidence": CONFIDENCE,
            **CHOICES,
        },
        "ledgers": {
            ledger: {arm: _law(law, ledger) for arm, law in laws.items()}
            for ledger, laws in over_compute(losses).items()
        },
        "hygiene": rows_part(losses),
    }


def package_version() -> str:
    """Version of the installed package, or "unknown" where only its files are."""
    try:
        return version("attnres-scaling")
    except PackageNotFoundError:
        return "unknown"


def _header(runs: Runs | Losses) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": package_version(),
        "input": {"file": runs.path.name, "sha256": runs.sha256},
    }


def _law(law: PowerLaw | str, ledger: str) -> dict[str, Any]:
    if isinstance(law, str):
        return {"reason": law}
    unit = law_unit(ledger)
    return {
        "A": law.coefficient(unit.scale),
        "A_interval": list(law.coefficient_interval(unit.scale)),
        "compute_unit": unit.label,
        "alpha": law.exponent,
        "alpha_se": law.exponent_se,
        "alpha_interval": list(law.exponent_interval),
        "df": law.df,
        "points": law.points,
        "residual_sd_ln_loss": law.residual_sd,
        "compute_range": [math.exp(x) / unit.scale for x in law.ln_compute_range],
    }


def _multiplier(m: Multiplier) -> dict[str, Any]:
    return {
        "multiplier": m.multiplier,
        "interval": m.interval and list(m.interval),
        "reason": m.reason or None,
        "ln_multiplier": m.ln_multiplier,
        "variance_spread": m.spread_variance,
        "variance_exponent": m.exponent_variance,
        "df": m.df,
        "alpha": m.law and m.law.exponent,
        "alpha_se": m.law and m.law.exponent_se,
        "alpha_interval": m.law and list(m.law.exponent_interval),
        "sizes_in_range": m.sizes_in_range,
        "sizes": [
            {
                "size": s.pair.size,
                "seeds": list(s.pair.seeds),
                "loss_baseline": s.pair.loss_baseline,
                "loss_arm": s.pair.loss_arm,
                "compute_baseline": math.exp(s.pair.ln_compute_baseline),
                "compute_arm": math.exp(s.pair.ln_compute_arm),
                "multiplier": s.multiplier,
                "in_range": s.in_range,
            }
            for s in m.sizes
        ],
    }


def _hygiene(runs: Runs) -> dict[str, Any]:
    h = runs.hygiene
    return {
        "rows_read": h.rows_read,
        "rows_finished": h.rows_finished,
        "pairs_used": h.pairs_used,
        "findings": [{"kind": f.kind, "subject": f.subject, "reason": f.reason} for f in h.findings],
    }
