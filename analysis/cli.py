"""Verbs of `python -m analysis`. What they need is imported when they run, so that --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from analysis.errors import AnalysisError, FitError, OutputError, TableError


def collect(runs: Path, out: Path) -> None:
    """Read run directories into OUT/runs.csv and OUT/curves.csv, and OUT/dynamics.csv where runs measured it.

    Args:
        runs: folder of a sweep's runs, for example runs/demo
        out: results folder to write into, for example results/demo
    """
    from analysis.collect import CURVE_COLUMNS, DYNAMICS_COLUMNS, RUN_COLUMNS, csv_text
    from analysis.collect import collect as read
    from analysis.store import write
    from analysis.tables import print_collected

    collected = read(runs)
    files = [
        write(out / "runs.csv", csv_text(RUN_COLUMNS, collected.runs)),
        write(out / "curves.csv", csv_text(CURVE_COLUMNS, collected.curves)),
    ]
    if collected.dynamics:
        files.append(write(out / "dynamics.csv", csv_text(DYNAMICS_COLUMNS, collected.dynamics)))
    print_collected(_console(), collected)
    _print_paths(files)


def fit(table: Path, columns: dict[str, str] | None = None, out: Path | None = None, replicates: int = 4000) -> None:
    """Fit L(C) without, with pinned and with free floor, and L(N, D) with its best use of compute; write fit.json.

    Args:
        table: results folder, a table of runs, or a bare table of losses with N and D or C (CSV)
        columns: our names of columns with the table's, for example '{val_loss: loss, params: N, tokens: D}'
        out: folder for fit.json; the results folder itself if one is given
        replicates: bootstrap replicates behind the intervals of L(N, D); 0 for none
    """
    from analysis.law_records import floors_part, growths_part, size_tokens_part
    from analysis.law_tables import print_floors, print_growths, print_losses, print_size_tokens
    from analysis.loss_laws import floors, growths, over_compute, size_tokens
    from analysis.losses import is_bare, load_losses, of_runs
    from analysis.runs import load
    from analysis.store import fit_record, json_text, losses_record, write
    from analysis.tables import print_hygiene, print_laws

    if replicates < 0:
        raise FitError(f"--replicates is {replicates}: give 0 or more")
    console = _console()
    if is_bare(table, columns):
        losses = load_losses(table, columns)
        record = losses_record(losses)
        print_losses(console, losses)
    else:
        runs = load(table, columns)
        losses = of_runs(runs)
        record = fit_record(runs)
        print_hygiene(console, runs)
    for ledger, laws in over_compute(losses).items():
        print_laws(console, ledger, laws)
    of_compute, of_size, of_optima = floors(losses), size_tokens(losses, replicates), growths(losses)
    print_floors(console, of_compute)
    print_size_tokens(console, of_size)
    print_growths(console, of_optima)
    record |= {
        "floors": floors_part(of_compute),
        "size_and_tokens": size_tokens_part(of_size),
        "size_over_compute": growths_part(of_optima),
    }
    if folder := _folder(table, out):
        _print_paths([write(folder / "fit.json", json_text(record))])


def multiplier(
    table: Path,
    ledger: str | None = None,
    claim: float | None = None,
    margin: float = 0.05,
    columns: dict[str, str] | None = None,
    out: Path | None = None,
) -> None:
    """Estimate every arm's compute multiplier with its interval; write multiplier.json.

    Args:
        table: results folder, or a table of runs (CSV)
        ledger: ledger of the headline: model, 6nd, paper or seconds; the first of these that the table has
        claim: a published multiplier to hold the arms against, for example 1.25
        margin: how far from the claim, as a share of compute, M may be for the difference not to matter
        columns: our names of columns with the table's, for example '{val_loss: loss, params: N, tokens: D}'
        out: folder for multiplier.json; the results folder itself if one is given
    """
    from analysis.claim import check_claim
    from analysis.ledgers import leading
    from analysis.runs import load
    from analysis.store import json_text, multiplier_record, write
    from analysis.study import studies
    from analysis.study_tables import print_answers, print_studies
    from analysis.tables import print_hygiene, print_multipliers

    if claim is not None:
        check_claim(claim, margin)
    runs = load(table, columns)
    headline = leading(runs.ledgers, ledger)
    console = _console()
    print_hygiene(console, runs)
    by_ledger = {x: studies(runs, x, claim, margin) for x in runs.ledgers}
    print_multipliers(console, by_ledger, headline)
    print_studies(console, by_ledger[headline])
    print_answers(console, by_ledger[headline])
    if folder := _folder(table, out):
        record = multiplier_record(runs, headline, claim, margin)
        _print_paths([write(folder / "multiplier.json", json_text(record))])


def plots(table: Path, columns: dict[str, str] | None = None, out: Path | None = None) -> None:
    """Draw every figure that the folder has numbers for as PNG and SVG into FOLDER/figures.

    Args:
        table: results folder, or a table of runs (CSV)
        columns: our names of columns with the table's, for example '{val_loss: loss, params: N, tokens: D}'
        out: folder to draw into; figures/ in the results folder if one is given
    """
    from analysis.curves import load_curves
    from analysis.design import Design, design
    from analysis.figures import draw_all, draw_beside, draw_laws
    from analysis.losses import is_bare, load_losses
    from analysis.runs import check_ladder, read_runs

    bare = is_bare(table, columns)
    folder = out or (table / "figures" if table.is_dir() else None)
    if folder is None:
        raise OutputError(f"{table} is not a results folder: say where the figures go with --out FOLDER")
    if not bare:
        runs = read_runs(table, columns)
        drawn = draw_all(runs, load_curves(runs.path.parent), folder)
        drawn += draw_beside(runs, folder) if table.is_dir() else []
        if not drawn:
            check_ladder(runs)
        _print_paths(drawn)
        if design(runs) is Design.OTHER:
            print("no loss against compute: `python -m analysis multiplier` says what it lacks")
    elif drawn := draw_laws(load_losses(table, columns), folder):
        _print_paths(drawn)
    else:
        raise FitError(f"{table} has no law of parameters and tokens to draw: `python -m analysis fit` says why")


def report(
    folder: Path, claim: float | None = None, margin: float = 0.05, columns: dict[str, str] | None = None
) -> None:
    """Write one self-contained page, report.md and report.html, with the figures.

    Args:
        folder: results folder, for example results/demo
        claim: a published multiplier to hold the arms against, for example 1.25
        margin: how far from the claim, as a share of compute, M may be for the difference not to matter
        columns: our names of columns with the table's, for example '{val_loss: loss, params: N, tokens: D}'
    """
    from analysis.curves import load_curves
    from analysis.design import Design, design
    from analysis.ledgers import leading
    from analysis.report import write_report
    from analysis.report_arms import write_arms_report
    from analysis.runs import check_ladder, read_runs

    if not folder.is_dir():
        raise OutputError(f"{folder} is not a folder: a report is written into the results folder that holds runs.csv")
    runs = read_runs(folder, columns)
    curves = load_curves(folder)
    if claim is not None and design(runs) is not Design.LADDER:
        raise TableError(
            f"{runs.path} is no ladder of sizes and has no multiplier to hold a claim against: leave it out"
        )
    if design(runs) is not Design.LADDER and runs.ledgers and (pages := write_arms_report(runs, curves, folder)):
        _print_paths(pages)
        return
    check_ladder(runs)
    _print_paths(write_report(runs, curves, leading(runs.ledgers), folder, claim, margin))


def compare(first: Path, second: Path, ledger: str | None = None, columns: dict[str, str] | None = None) -> None:
    """Set the multipliers of two results folders or tables side by side, with their ratio.

    Args:
        first: results folder or table of runs
        second: results folder or table of runs
        ledger: ledger to compare in: model, 6nd, paper or seconds; the first of these that both have
        columns: our names of the first table's columns with its own
    """
    from analysis.compare import common_ledger
    from analysis.compare import compare as side_by_side
    from analysis.runs import load
    from analysis.tables import print_comparison, print_hygiene

    one, two = load(first, columns), load(second)
    chosen = common_ledger(one, two, ledger)
    console = _console()
    for runs in (one, two):
        print_hygiene(console, runs)
    print_comparison(console, chosen, (str(first), str(second)), side_by_side(one, two, chosen))


def mixing(run: Path, text: str | None = None, out: Path | None = None) -> None:
    """Solve for a trained run's depth mixing matrix and its semiseparable rank; write and draw it.

    Args:
        run: directory of a run with its checkpoint, for example runs/demo/block-cpu-8x64-s0-581a3b6e
        text: text whose tokens are mixed; the first of the run's validation text if not given
        out: folder for mixing.csv, mixing.png and mixing.svg; the run's own if not given
    """
    from analysis.figures import render
    from analysis.figures.mixing import mixing_map
    from analysis.mixing import mixing_of_run, mixing_text, summary
    from analysis.store import write

    found = mixing_of_run(run, text)
    print(summary(found))
    folder, figure = out or run, mixing_map(found)
    _print_paths(
        [
            write(folder / "mixing.csv", mixing_text(found)),
            *(write(folder / f"mixing.{kind}", render(figure, kind)) for kind in ("png", "svg")),
        ]
    )


def power(
    sizes: int | list[int] | None = None,
    seeds: int | list[int] | None = None,
    sd: float | None = None,
    size_sd: float | None = None,
    alpha: float | None = None,
    span: float | None = None,
    multiplier: float | None = None,
    table: Path | None = None,
    ledger: str | None = None,
    columns: dict[str, str] | None = None,
    out: Path | None = None,
) -> None:
    """Plan: the multiplier that sizes and seeds can detect, and the cheapest design for one; write power.json.

    Args:
        sizes: numbers of sizes, one or a list such as [3,5,8]; by default 3 to 8
        seeds: numbers of seeds a size, one or a list such as [1,2,4]; by default 1, 2 and 4
        sd: standard deviation of one run's ln L (about its share of the loss); needed unless a table is given
        size_sd: standard deviation of a size's ln L about the power law; 0.0028, or the table's
        alpha: exponent of loss in compute; 0.057, or the table's
        span: largest compute over the smallest; 8, or the table's
        multiplier: look for the cheapest design that detects this multiplier, for example 1.1
        table: results folder or table of an earlier experiment to take the noise from
        ledger: ledger of that table; the first of model, 6nd, paper and seconds that it has
        columns: our names of that table's columns with its own
        out: folder for power.json, power.png and power.svg
    """
    from analysis.figures import render
    from analysis.figures.planning import power_curves
    from analysis.plan import plan, plan_record, print_plan
    from analysis.store import json_text, write

    made = plan(sizes, seeds, sd, size_sd, alpha, span, multiplier, table, ledger, columns)
    print_plan(_console(), made)
    if out:
        figure = power_curves(made)
        _print_paths(
            [
                write(out / "power.json", json_text(plan_record(made))),
                *(write(out / f"power.{kind}", render(figure, kind)) for kind in ("png", "svg")),
            ]
        )


def calibrate(tables: int = 20_000, seed: int = 0, out: Path | None = None) -> None:
    """Count how often the intervals hold the truth in simulated tables; write coverage.json. Minutes.

    Args:
        tables: simulated tables a setting
        seed: seed of the random numbers
        out: folder for coverage.json, coverage.png and coverage.svg, for example results/calibration
    """
    from analysis.calibrate import calibrate as run
    from analysis.calibrate import settings
    from analysis.calibration_tables import coverage_record, coverage_text, print_coverage
    from analysis.figures import render
    from analysis.figures.calibration import coverage
    from analysis.store import write

    found = run(settings(), tables, seed)
    print_coverage(_console(), found)
    if out:
        figure = coverage(found)
        _print_paths(
            [
                write(out / "coverage.json", coverage_text(coverage_record(found, seed))),
                *(write(out / f"coverage.{kind}", render(figure, kind)) for kind in ("png", "svg")),
            ]
        )


VERBS: tuple[Callable[..., None], ...] = (
    *(collect, fit, multiplier, plots, report, compare, mixing, power, calibrate),
)


class _Parser(ArgumentParser):
    """Errors of the command line in one line, like all others."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        print(f"error: {' '.join(message.split())}; see `python -m analysis --help`", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0, or 2 with one line on stderr for an error the user can mend."""
    from scaling.errors import ScalingError

    chosen = _parser().parse_args(arguments)
    verb = next(verb for verb in VERBS if verb.__name__ == chosen.verb)
    try:
        verb(**vars(chosen[chosen.verb]))
    except (AnalysisError, ScalingError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> ArgumentParser:
    parser = _Parser(prog="python -m analysis", description="Fit, draw and report what a residual scheme is worth.")
    verbs = parser.add_subcommands(dest="verb")
    for verb in VERBS:
        described = _Parser(description=_first_line(verb))
        described.add_function_arguments(verb, as_positional=True, as_group=False)
        verbs.add_subcommand(verb.__name__, described, help=_first_line(verb))
    return parser


def _first_line(verb: Callable[..., None]) -> str:
    return (verb.__doc__ or "").partition("\n")[0]


def _folder(table: Path, out: Path | None) -> Path | None:
    """Where results go: into --out, else into the results folder that was given, else nowhere."""
    return out or (table if table.is_dir() else None)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _print_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"wrote {path}")
