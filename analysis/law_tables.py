"""What `fit` prints of the laws of `loss_laws`: rounded to what the intervals support."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from analysis.allocation import Interval
from analysis.floor import FloorLaw, FreeFloor
from analysis.loss_laws import Floors, Growth, SizeTokens, is_mixed
from analysis.losses import Losses
from analysis.tables import print_table
from analysis.wording import arm_name, count_text


def print_losses(console: Console, losses: Losses) -> None:
    """What became of the rows of a bare table, ahead of any law."""
    used = losses.rows_read - len(losses.findings)
    console.print(Text(f"{losses.path}: {losses.rows_read} rows, {used} used"), soft_wrap=True)
    rows = [(finding.kind, finding.subject, finding.reason) for finding in losses.findings]
    print_table(console, "Left out", ("what", "which", "why"), rows)
    for arm in next(iter(losses.over_compute.values())):
        if is_mixed(losses, arm):
            text = "sizes differ at equal compute: L(C) runs through all of them, and is not the law of the best size"
            console.print(Text(f"{arm_name(arm)}: {text}"), soft_wrap=True)


def print_growths(console: Console, growths: Mapping[str, Growth]) -> None:
    """How the sizes of the table grow with compute: one line for all arms that agree."""
    lines: dict[str, list[str]] = {}
    for arm, each in growths.items():
        weighted = ", weighted by N_sd" if each.weighted else ""
        text = f"{_rounded(each.exponent, each.interval)} ({_interval_text(each.interval)}{weighted})"
        lines.setdefault(text, []).append(arm_name(arm))
    for text, arms in lines.items():
        console.print(Text(f"Sizes as they are in the table grow as C^{text}: {', '.join(arms)}"), soft_wrap=True)


def print_floors(console: Console, floors: Mapping[str, Mapping[str, Floors]]) -> None:
    """A table a ledger: every arm's exponent at every pinned floor, and with a free one."""
    for ledger, arms in floors.items():
        pins = next((each.pinned for each in arms.values() if not isinstance(each.pinned, str)), [])
        rows = [(arm_name(arm), *_pinned(each.pinned, len(pins)), *_free(each.free)) for arm, each in arms.items()]
        header = (
            "arm",
            *(f"E {law.floor:.3g}" for law in pins),
            "free E",
            "its 95 % interval",
            "alpha there",
            "remark",
        )
        title = f"Exponent of L = E + A C^-alpha at pinned floors E, and with E free (exploratory), ledger {ledger}"
        print_table(console, title, header, rows)


def print_size_tokens(console: Console, fits: Mapping[str, SizeTokens]) -> None:
    """The law of parameters and tokens of every arm, its certificate, and the optimal allocation."""
    rows: list[Sequence[object]] = []
    for arm, each in fits.items():
        if isinstance(each.law, str):
            rows.append((arm_name(arm), "none", "", "", each.law))
            continue
        intervals = each.sample.intervals if each.sample else {}
        rows += [
            (arm_name(arm), name, _rounded(value, intervals.get(name)), _interval_text(intervals.get(name)), "")
            for name, value in each.law.named.items()
        ]
    title = "L = E + A / N^alpha + B / D^beta"
    print_table(console, title, ("arm", "parameter", "value", "95 % interval", "remark"), rows)
    for arm, each in fits.items():
        if not isinstance(each.law, str):
            console.print(Text(f"{arm_name(arm)}: {_certificate(each)}"), soft_wrap=True)
            _print_optima(console, arm, each)


def _pinned(laws: list[FloorLaw] | str, count: int) -> list[str]:
    return [""] * count if isinstance(laws, str) else [f"{law.exponent:.4f}" for law in laws]


def _free(best: FreeFloor | str) -> tuple[str, ...]:
    if isinstance(best, str):
        return "none", "", "", best
    low, high = best.interval
    alphas = f"{best.exponents[0]:.3f} to {best.exponents[1]:.3f}"
    return f"{best.law.floor:.3f}", f"{low:.3f} to {high:.3f}".replace("0.000 to", "0 to"), alphas, ""


def _certificate(each: SizeTokens) -> str:
    assert not isinstance(each.law, str)
    c = each.law.certificate
    text = (
        f"{len(each.law.rows)} runs; {c.agreeing} of {c.starts} starts agree to {c.disagreement:.0e}, gradient "
        f"{c.gradient:.0e}, {c.distance:.2g} from the start, condition {c.condition:.3g}, rank {c.rank} of 5, "
        "no bound hit"
    )
    if each.sample is None:
        return text
    s = each.sample
    zero = f", {s.at_floor_zero} with the floor at 0" if s.at_floor_zero else ""
    reason = f"; no intervals: {s.reason}" if s.reason else ""
    return f"{text}; {s.replicates} bootstrap replicates, {s.failed} failed{zero}{reason}"


def _print_optima(console: Console, arm: str, each: SizeTokens) -> None:
    powers = ", ".join(
        f"{name} as C^{value:.3f} ({_interval_text(interval)})"
        for name, (value, interval) in zip(("N_opt grows", "D_opt"), each.exponents.values(), strict=True)
    )
    rows = [
        (
            f"{o.compute:.3g}",
            count_text(o.size),
            _counts(o.size_interval),
            count_text(o.tokens),
            _rounded(o.ratio, o.ratio_interval),
            _interval_text(o.ratio_interval),
            f"{o.loss:.3f}",
            "" if o.in_range else "extrapolated",
        )
        for o in each.optima
    ]
    header = ("C = 6 N D", "N_opt", "interval", "D_opt", "D/N", "interval", "loss", "remark")
    print_table(console, f"Best use of compute, {arm_name(arm)}: {powers}", header, rows)


def _rounded(value: float, interval: Interval) -> str:
    """A value with two digits of its interval's half-width; with two of its own where that would round it away."""
    if interval is None or not 0 < interval[1] - interval[0] < math.inf:
        return f"{value:.4g}"
    if 0 < abs(value) < (interval[1] - interval[0]) / 2:
        return f"{float(f'{value:.2g}'):g}"
    return f"{value:.{_decimals(interval)}f}"


def _interval_text(interval: Interval) -> str:
    if interval is None:
        return "none"
    return " to ".join(_rounded(end, interval) for end in interval)


def _decimals(interval: tuple[float, float]) -> int:
    return min(6, max(0, 1 - math.floor(math.log10((interval[1] - interval[0]) / 2))))


def _counts(interval: Interval) -> str:
    return "none" if interval is None else " to ".join(map(count_text, interval))
