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

from analysis.arm_record import arm_record
from analysis.claim import MARGIN
from analysis.errors import OutputError
from analysis.law_records import CHOICES, rows_part
from analysis.laws import arm_laws
from analysis.ledgers import law_unit
from analysis.loss_laws import over_compute
from analysis.losses import Losses
from analysis.pairing import MATCHED
from analysis.powerlaw import CONFIDENCE, MIN_POINTS, PowerLaw
from analysis.runs import Runs
from analysis.student import POWER
from analysis.study import studies

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


def multiplier_record(runs: Runs, headline: str, claim: float | None = None, margin: float = MARGIN) -> dict[str, Any]:
    """The content of multiplier.json: every arm in every ledger, with what each size says and every check of it.

    Raises:
        ClaimError: the claim or its margin cannot be.
    """
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
            "profile": "minus twice the log likelihood of the paired model within n ln(1 + t^2 / (n - 1)) of its least",
            "fieller": "t on n - 2 degrees of freedom; where it is unbounded, ends are of the gap it leaves out",
            "simultaneous": "Dunnett, correlation 1/2, variance of a run pooled over the arms",
            "separate_slopes": "M(C) by an exponent for each arm; t on n - 2, or on 2 n - 4 where unpaired",
            "power": POWER,
            "floors": "pinned E, the paired estimate of ln(L - E)",
            "law_free": "linear interpolation of the baseline's ln L over ln C; null: not reached",
            "loss_step": runs.loss_step,
            "claim": claim,
            "margin": None if claim is None else margin,
            "verdict": "consistent: 90 % interval within the margin; else not consistent: claim outside the 95 % "
            "interval; else cannot tell",
        },
        "ledgers": {
            ledger: {s.multiplier.arm: arm_record(s) for s in studies(runs, ledger, claim, margin)}
            for ledger in runs.ledgers
        },
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
        "input": {
            "file": runs.path.name,
            "sha256": runs.sha256,
            **({"columns": dict(runs.columns)} if runs.columns else {}),
        },
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


def _hygiene(runs: Runs) -> dict[str, Any]:
    h = runs.hygiene
    return {
        "rows_read": h.rows_read,
        "rows_finished": h.rows_finished,
        "pairs_used": h.pairs_used,
        "findings": [{"kind": f.kind, "subject": f.subject, "reason": f.reason} for f in h.findings],
    }
