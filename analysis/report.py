"""One page for a reader who was not there: what was run, on what, the answer, its interval, what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.caveats import FEW_TOKENS, caveats, tokens_per_parameter
from analysis.claim import MARGIN, check_claim
from analysis.figures import draw_all, draw_beside
from analysis.ledgers import COLUMN, axis_unit
from analysis.multiplier import Multiplier, estimates
from analysis.page import escape, figure_link, table, to_html
from analysis.pairing import BASELINE, KINDS
from analysis.report_checks import check_sections
from analysis.report_pictures import picture_sections
from analysis.runs import Runs
from analysis.store import package_version, write
from analysis.study import studies
from analysis.study_wording import answers
from analysis.wording import (
    LEDGER_TEXT,
    arm_name,
    count_text,
    estimate_text,
    interval_text,
    loss_text,
    range_text,
    seconds_text,
    times,
)


def write_report(
    runs: Runs,
    curves: pd.DataFrame | None,
    headline: str,
    folder: Path,
    claim: float | None = None,
    margin: float = MARGIN,
) -> list[Path]:
    """Draw the figures and write report.md and report.html into a folder; returns the two pages.

    Raises:
        OutputError: a file cannot be written.
        ClaimError: the claim or its margin cannot be.
    """
    if claim is not None:
        check_claim(claim, margin)
    drawn = draw_all(runs, curves, folder / "figures", claim) + draw_beside(runs, folder / "figures")
    figures = [path for path in drawn if path.suffix == ".png"]
    title = f"Compute multiplier: {folder.resolve().name}"
    markdown = page(runs, headline, [path.relative_to(folder) for path in figures], title, claim, margin)
    return [
        write(folder / "report.md", markdown),
        write(folder / "report.html", to_html(markdown, title, folder)),
    ]


def page(
    runs: Runs,
    headline: str,
    figures: Sequence[Path],
    title: str,
    claim: float | None = None,
    margin: float = MARGIN,
) -> str:
    """The page as Markdown; the figures are referred to by path."""
    by_ledger = {ledger: estimates(runs, ledger) for ledger in runs.ledgers}
    first = by_ledger[headline]
    checked = studies(runs, headline, claim, margin)
    by_name = {path.stem: path for path in figures}
    sections = [
        f"# {escape(title)}",
        "\n\n".join(f"**{escape(line)}**" for line in answers(checked)),
        "M is how many times more compute the baseline needs to reach the arm's loss. 1 means no difference; "
        "the interval is where M lies with 95 % confidence if the runs are what they seem.",
        figure_link(by_name[f"loss_compute_{headline}"], "loss against compute; the arrow is the multiplier"),
        "Loss against compute on logarithmic axes. Each curve is an arm's own power law, solid over its runs and "
        "dashed beyond them; an arrow leads from the arm's curve to the baseline's at equal loss.",
        "## The answer in every ledger",
        _answers(by_ledger),
        "\n".join(f"- `{ledger}`: {LEDGER_TEXT[ledger]}" for ledger in runs.ledgers),
        "## What was run",
        setting(runs),
        run_table(runs, headline),
        "## What each size says",
        figure_link(by_name["paired_losses"], "difference in loss per size"),
        _size_table(first),
        _method(first),
        *check_sections(checked, by_name),
        "## What would change the answer",
        "\n".join(f"- {escape(sentence)}" for sentence in caveats(runs, by_ledger, headline)),
        "## What was left out",
        hygiene_text(runs),
    ]
    sections += picture_sections(by_name)
    rest = [ledger for ledger in runs.ledgers if ledger != headline]
    if rest:
        sections.append("## Loss against compute in the other ledgers")
        sections += [figure_link(by_name[f"loss_compute_{x}"], f"loss against compute, ledger {x}") for x in rest]
    laws = [path for name, path in by_name.items() if name.startswith("size_tokens_")]
    if laws:
        sections.append("## Loss against parameters and tokens")
        sections += [figure_link(path, "best use of compute") for path in laws]
    sections.append(
        f"{made_from(runs)} The verbs `multiplier` and `fit` write the same in full precision, to `multiplier.json` "
        "and `fit.json`."
    )
    return "\n\n".join(sections) + "\n"


def made_from(runs: Runs) -> str:
    """Which bytes of which file the page says."""
    return f"Made from `{runs.path.name}` (sha256 `{runs.sha256}`) by attnres-scaling {escape(package_version())}."


def _answers(by_ledger: dict[str, list[Multiplier]]) -> str:
    rows = [
        (
            arm_name(m.arm),
            ledger,
            estimate_text(m),
            interval_text(m.interval),
            len(m.pairs),
            f"{m.sizes_in_range} of {len(m.sizes)}" if m.sizes else "",
            m.reason,
        )
        for ledger, multipliers in by_ledger.items()
        for m in multipliers
    ]
    return table(("arm", "ledger", "M", "95 % interval", "sizes", "in the baseline's range", "remark"), rows)


def setting(runs: Runs) -> str:
    """What the finished runs have in common, as a list."""
    finished = runs.table[runs.table["status"] == "finished"]
    sizes = finished.sort_values("params")["size"].unique()
    facts = {
        "arms": ", ".join(arm_name(arm) for arm in (BASELINE, *runs.arms)),
        "sizes": ", ".join(sizes),
        "parameters (outside embedding and head)": _range(finished["params"]),
        "tokens a run": _range(finished["tokens"]),
        "tokens a parameter": _tokens(runs),
        "seeds": ", ".join(str(seed) for seed in sorted(finished["seed"].unique())),
        "corpus": ", ".join(sorted(set(finished["data"]) - {""})),
        "global batch": _range(finished["batch_tokens"], " tokens"),
        "sequence": _range(finished["seq_len"], " tokens"),
        "machine": "; ".join(sorted(set(finished["machine"]) - {""})),
        "device time, all runs": seconds_text(finished["seconds"].sum(min_count=1)),
    }
    return "\n".join(f"- {name}: {escape(value)}" for name, value in facts.items() if value)


def _tokens(runs: Runs) -> str:
    ratio = tokens_per_parameter(runs)
    if ratio is None:
        return ""
    low = f", which is low (under {FEW_TOKENS}): short runs exaggerate the effect" if ratio[0] < FEW_TOKENS else ""
    return range_text(ratio) + low


def _range(values: pd.Series, unit: str = "") -> str:
    return "" if values.isna().all() else range_text((values.min(), values.max())) + unit


def run_table(runs: Runs, headline: str) -> str:
    """Every run of the table, with its compute in one ledger."""
    compute = runs.table[COLUMN[headline]]
    unit = axis_unit(headline, compute.max())
    rows = [
        (
            row["run"],
            arm_name(row["variant"]),
            row["size"],
            row["seed"],
            row["status"],
            count_text(row["params"]),
            count_text(row["tokens"]),
            f"{row[COLUMN[headline]] / unit.scale:.4g}".replace("nan", ""),
            loss_text(row["val_loss"]) if row["status"] == "finished" else "",
            seconds_text(row["seconds"]),
        )
        for _, row in _in_order(runs).iterrows()
    ]
    compute_name = f"compute, {headline} ({unit.label})"
    header = ("run", "arm", "size", "seed", "status", "parameters", "tokens", compute_name, "loss", "device time")
    return table(header, rows)


def _in_order(runs: Runs) -> pd.DataFrame:
    """The rows by arm, then by size, then by seed."""
    order = {arm: place for place, arm in enumerate((BASELINE, *runs.arms))}
    return runs.table.assign(place=runs.table["variant"].map(order)).sort_values(["place", "params", "size", "seed"])


def _size_table(multipliers: Sequence[Multiplier]) -> str:
    rows = [
        (
            arm_name(m.arm),
            s.pair.size,
            len(s.pair.seeds),
            loss_text(s.pair.loss_baseline),
            loss_text(s.pair.loss_arm),
            f"{s.pair.loss_baseline - s.pair.loss_arm:.4f}",
            times(s.multiplier),
            "in range" if s.in_range else "beyond the baseline's runs",
        )
        for m in multipliers
        for s in m.sizes
    ]
    return table(("arm", "size", "seeds", "baseline's loss", "arm's loss", "difference", "M", "arm's loss is"), rows)


def _method(multipliers: Sequence[Multiplier]) -> str:
    exponents = "; ".join(
        f"{arm_name(m.arm)} {m.law.exponent:.4f} ({m.law.exponent_interval[0]:.4f} to {m.law.exponent_interval[1]:.4f})"
        for m in multipliers
        if m.law is not None
    )
    return escape(
        "Losses are nats per token on the validation set at the end of training. A size's multiplier turns its "
        "difference in log loss into compute with one exponent shared by the two arms of a pair, and corrects for "
        "unequal compute; the answer is the mean over sizes, its interval a t interval that carries the scatter "
        f"of sizes and the error of the exponent. Exponents with their 95 % intervals: {exponents or 'none'}."
    )


def hygiene_text(runs: Runs) -> str:
    """What became of every row of the table."""
    h = runs.hygiene
    counts = f"{h.rows_read} rows were read, {h.rows_finished} of them finished runs; {h.pairs_used} pairs were used."
    if not h.findings:
        return f"{counts} Nothing was left out."
    counts = f"{counts} Found: {escape(h.counts)}."
    rows = [(finding.kind, finding.subject, finding.reason) for finding in h.findings]
    legend = [f"- {kind}: {meaning}" for kind, meaning in KINDS.items() if h.of(kind)]
    return "\n\n".join((counts, table(("what", "which", "why"), rows), "\n".join(legend)))
