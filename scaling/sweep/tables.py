"""The tables that `sweep` prints, and how every table of runs says things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaling.compute import flops_per_token, non_embedding_parameters, parameters
from scaling.config import RunConfig
from scaling.errors import RecordError
from scaling.records import RunDirectory
from scaling.sweep.estimate import Rate, wall_seconds
from scaling.sweep.queue import Failure

STATE_STYLES = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "diverged": "red",
    "lost": "yellow",
    "stopped": "yellow",
    "damaged": "red",
}


def run_table(title: str | None, *headings: str) -> Table:
    """A table with one row a run: its name, which is never wrapped, then numbers."""
    table = Table(title=title)
    table.add_column("run", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def plan_table(runs: Sequence[RunConfig], directories: Sequence[RunDirectory], rate: Rate | None) -> Table:
    """What a sweep will do: parameters, tokens, FLOPs and, where a rate is known, time a run."""
    table = Table("run", "state", title="Plan")
    for heading in ("parameters", "non-embedding", "tokens", "steps", "FLOPs", *(["time"] if rate else [])):
        table.add_column(heading, justify="right")
    for config, run in zip(runs, directories, strict=True):
        shape = config.shape
        table.add_row(
            config.run_name,
            styled_state(readable_status(run)["state"]),
            number(sum(parameters(shape).values())),
            number(non_embedding_parameters(shape)),
            number(config.tokens),
            str(config.steps),
            f"{flops_per_token(shape, 'model') * config.tokens:.3g}",
            *([duration(wall_seconds(config, rate))] if rate else []),
        )
    return table


def print_failures(console: Console, failures: Sequence[Failure]) -> None:
    """Runs that did not finish, why, and where their logs are."""
    table = Table("run", "reason", title="Not finished", style="red")
    for failure in failures:
        table.add_row(failure.run, Text(failure.reason))
    console.print(table)
    for failure in failures:
        if failure.log.exists():
            console.print(Text(f"log: {failure.log}"), soft_wrap=True)


def readable_status(run: RunDirectory) -> dict[str, Any]:
    """The status of a run, `damaged` where its files cannot be read: one run's trouble hides no other's row."""
    try:
        run.read_result()
        return run.read_status()
    except RecordError as error:
        return {"state": "damaged", "message": str(error)}


def styled_state(state: str) -> Text:
    """A state in its colour."""
    return Text(state, STATE_STYLES.get(state, ""))


def number(value: float) -> str:
    """1234567 as 1.23M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def significant(value: float) -> str:
    """Three digits, or all of a whole number that has more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def wide_console() -> Console:
    """The console of the command line: at a terminal as wide as it is, else wide enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def error_console() -> Console:
    """For what is not output: progress, which a pipe or a file does not want."""
    return Console(stderr=True)
