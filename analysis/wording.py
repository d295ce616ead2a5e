"""How names and numbers are written for readers: rounded to what the interval supports, never used to compute."""

from __future__ import annotations

import math
import re

from analysis.multiplier import Multiplier
from analysis.pairing import BASELINE

LEDGER_TEXT = {
    "model": "everything the forward and backward contract: projections, causal attention, MLP, head, depth mixing",
    "6nd": "6 x parameters outside embedding and head x tokens; the arm's extra parameters count, its mixing does not",
    "paper": "6 x activated parameters outside embedding and head, plus causal attention; no head, no depth mixing",
    "seconds": "device seconds of training steps: what the machine and this implementation make of it",
}
_NAMES = {
    BASELINE: "Baseline",
    "attnres": "AttnRes",
    "block": "Block AttnRes",
    "full": "Full AttnRes",
    "mhc_lite": "mHC-lite",
    "mhc": "mHC",
    "hyper_connections": "Hyper-connections",
    "denseformer": "DenseFormer",
    "highway": "Highway",
    "full_input_query": "Full (query from input)",
    "full_scalars": "Full (learned scalars)",
    "full_sigmoid": "Full (sigmoid)",
    "full_no_key_norm": "Full (no key norm)",
    "full_window": "Full (window)",
    "block_heads": "Block (heads)",
    "block_no_key_norm": "Block (no key norm)",
}
_NUMBERED = {"full_window": "Full (window {})", "block_heads": "Block ({} heads)", "block_size": "Block (size {})"}
_LONGEST = 24


def arm_name(variant: str) -> str:
    """The name of an arm for readers."""
    if (number := re.fullmatch(r"(\w+)_(\d+)", variant)) and number[1] in _NUMBERED:
        return _NUMBERED[number[1]].format(number[2])
    return _NAMES.get(variant) or shorten(variant)


def shorten(name: str) -> str:
    """A name from a table on one line of at most 24 characters."""
    name = " ".join(name.split())
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def times(value: float | None, half_width: float | None = None) -> str:
    """A multiplier, rounded to two digits of the half-width of its interval (to two decimals without one)."""
    if value is None:
        return "none"
    decimals = 2 if not half_width else min(6, max(1, 1 - math.floor(math.log10(half_width))))
    return f"{value:.{decimals}f}"


def half_width(interval: tuple[float, float] | None) -> float | None:
    """Half the width of a multiplier's interval, at its geometric middle."""
    if interval is None:
        return None
    low, high = interval
    return math.sqrt(low * high) * math.log(high / low) / 2


def interval_text(interval: tuple[float, float] | None) -> str:
    """An interval rounded like its estimate: "1.19 to 1.29"; one that says next to nothing in two digits."""
    if interval is None:
        return "none"
    if interval[1] > 1e4 * interval[0]:
        return " to ".join(f"{end:.2g}" for end in interval)
    return " to ".join(times(end, half_width(interval)) for end in interval)


def estimate_text(m: Multiplier) -> str:
    """The multiplier alone: "1.24"."""
    return times(m.multiplier, half_width(m.interval))


def sentence(m: Multiplier) -> str:
    """The answer for one arm and ledger, in one sentence."""
    where = f"ledger {m.ledger}, {len(m.pairs)} sizes"
    name = arm_name(m.arm)
    if m.multiplier is None:
        return f"{name}: no multiplier ({where}): {m.reason}."
    value = f"{name} is worth {estimate_text(m)}x the baseline's compute"
    if m.interval is None:
        return f"{value}, without an interval ({where}): {m.reason}."
    verdict = "" if m.interval[0] > 1 or m.interval[1] < 1 else "; that includes 1, no difference"
    return f"{value} (95 % interval {interval_text(m.interval)}; {where}){verdict}."


def loss_text(loss: float) -> str:
    """A loss in nats per token, to four decimals at most."""
    return f"{loss:.4f}".rstrip("0") if loss == loss else ""


def count_text(value: float) -> str:
    """A number of parameters or tokens: "1.23M", "45.4B"; empty if it is missing."""
    if value != value:
        return ""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g}{letter}" if value < scale * 999.5 else f"{value / scale:.0f}{letter}"
    return f"{value:.3g}"


def range_text(ends: tuple[float, float]) -> str:
    """Two numbers as "1.2M to 5.3M", or one where they read the same."""
    low, high = map(count_text, ends)
    return low if low == high else f"{low} to {high}"


def seconds_text(value: float) -> str:
    """A duration in the unit that suits it; empty if it is missing."""
    if value != value:
        return ""
    for scale, unit in ((3600.0, "h"), (60.0, "min")):
        if value >= 2 * scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.1f} s"
