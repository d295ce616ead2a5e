"""What the verbs print: tables for a terminal, rounded to what the intervals support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.collect import Collected
from analysis.compare import Comparison
from analysis.ledgers import law_unit
from analysis.multiplier import Multiplier
from analysis.pairing import BASELINE
from analysis.powerlaw import PowerLaw
from analysis.runs import Runs
from analysis.wording import arm_name, estimate_text, half_width, interval_text, loss_text, sentence, times


def print_collected(console: Console, collected: Collected) -> None:
    """How many runs of each arm are in which state, and what is wrong with any."""
    states = sorted({run["status"] for run in collected.runs}, key=lambda s: (s != "finished", s))
    counts = Counter((run.get("variant") or "unknown", run["status"]) for run in collected.runs)
    rows = [(arm, *(counts[arm, state] for state in states)) for arm in dict.fromkeys(arm for arm, _ in counts)]
    print_table(console, "Runs", ("arm", *states), rows)
    for problem in collected.problems:
        console.print(Text(f"  {problem}"))


def print_hygiene(console: Console, runs: Runs) -> None:
    """What became of the rows, ahead of any estimate."""
    h = runs.hygiene
    console.print(
        Text(f"{runs.path}: {h.rows_read} rows, {h.rows_finished} finished runs, {h.pairs_used} pairs used"),
        soft_wrap=True,
    )
    if h.findings:
        rows = [(finding.kind, finding.subject, finding.reason) for finding in h.findings]
        print_table(console, "Left out, or worth knowing", ("what", "which", "why"), rows)


def print_laws(console: Console, ledger: str, laws: dict[str, PowerLaw | str]) -> None:
    """The law of every arm in one ledger; a text instead of a law is the reason why there is none."""
    rows: list[Sequence[object]] = []
    for variant, law in laws.items():
        if isinstance(law, str):
            rows.append((arm_name(variant), "none", "", "", law))
            continue
        low, high = law.exponent_interval
        a = law.coefficient(law_unit(ledger).scale)
        rows.append((arm_name(variant), f"{a:.4f}", f"{law.exponent:.5f}", f"{low:.4f} to {high:.4f}", law.points))
    title = f"L = A C^-alpha, ledger {ledger}, C in {law_unit(ledger).label}"
    print_table(console, title, ("arm", "A", "alpha", "95 % interval", "sizes"), rows)


def print_multipliers(console: Console, by_ledger: dict[str, list[Multiplier]], headline: str) -> None:
    """What each size says in the headline's ledger, every ledger's estimate, and the answer in words."""
    sizes: list[Sequence[object]] = [
        (
            arm_name(m.arm),
            s.pair.size,
            len(s.pair.seeds),
            loss_text(s.pair.loss_baseline),
            loss_text(s.pair.loss_arm),
            times(s.multiplier),
            "yes" if s.in_range else "no, extrapolated",
        )
        for m in by_ledger[headline]
        for s in m.sizes
    ]
    header: Sequence[str] = ("arm", "size", "seeds", "loss, baseline", "loss, arm", "M", "baseline reached it")
    print_table(console, f"Each size, ledger {headline}", header, sizes)
    rows = [
        (
            arm_name(m.arm),
            ledger,
            estimate_text(m),
            interval_text(m.interval),
            f"{m.sizes_in_range} of {len(m.pairs)}",
            f"{m.df:.1f}" if m.df else "",
            f"{m.law.exponent:.4f}" if m.law else "",
            m.reason,
        )
        for ledger, multipliers in by_ledger.items()
        for m in multipliers
    ]
    header = ("arm", "ledger", "M", "95 % interval", "sizes in range", "df", "alpha", "remark")
    print_table(console, "Compute multiplier", header, rows)
    for m in by_ledger[headline]:
        console.print(Text(sentence(m)), soft_wrap=True)


def print_comparison(console: Console, ledger: str, names: tuple[str, str], comparisons: list[Comparison]) -> None:
    """The multipliers of two tables side by side."""
    rows = [
        (
            arm_name(c.arm),
            _cell(c.first),
            _cell(c.second),
            times(c.ratio, half_width(c.interval)) if c.ratio else "",
            interval_text(c.interval),
            c.reason,
        )
        for c in comparisons
    ]
    header = ("arm", *names, "ratio", "95 % interval", "remark")
    print_table(console, f"Compute multipliers against {BASELINE}, ledger {ledger}", header, rows)


def _cell(m: Multiplier | None) -> str:
    if m is None:
        return ""
    return estimate_text(m) + (f" ({interval_text(m.interval)})" if m.interval else "")


def print_table(console: Console, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table without the columns that are empty in every row; nothing if there are no rows."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return
    shown = [i for i in range(len(header)) if any(row[i] for row in cells)]
    table = Table(title=Text(title), title_justify="left")
    for i in shown:
        table.add_column(Text(header[i]))
    for row in cells:
        table.add_row(*(Text(row[i]) for i in shown))
    console.print(table)
