"""Where runs stand, drawn: once for `status`, again and again for `status --watch` and while a sweep works."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scaling.config import RunConfig
from scaling.records import RunDirectory
from scaling.sweep.standing import WAITED_FOR, Roster, Standing, seconds_left
from scaling.sweep.tables import duration, number, styled_state

REFRESH_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""How long none is waited for before the watch ends: a run that is tried again looks failed until it has started."""
FRAME_LINES = 9
"""Lines of a table beside its rows: frame, headings, the row of all, the caption, the cursor's."""
WIDTH_FOR_BARS = 120
"""Columns from which there is room for bars and frames."""


def standing_table(standings: Sequence[Standing], width: int, lines: int | None = None) -> RenderableType:
    """A row a run, a row of all, and what runs have to say.

    Args:
        standings: the runs.
        width: columns that there are; names are cut where they are too few.
        lines: how many there is room for; what runs, then what was heard of last, is shown first.
    """
    shown = _shown(standings, lines)
    by_state = Counter(s.state for s in standings)
    wide = width >= WIDTH_FOR_BARS
    look: dict[str, Any] = {} if wide else {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    states = Text(", ").join(Text.assemble(f"{n} ", styled_state(state)) for state, n in by_state.items())
    table = Table(**look, caption=states)
    table.add_column("run", overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    if wide:
        table.add_column("", width=(width - WIDTH_FOR_BARS) // 3 + 8)
    utilisation_known = wide and any(s.utilisation is not None for s in standings)
    utilisation = ["utilisation"] if utilisation_known else []
    for heading in ("step", "loss", "validation", "tokens/s", *utilisation, "left", "silent"):
        table.add_column(heading, justify="right", no_wrap=True)

    def row(name: str, state: Text, s: Standing, left: str) -> None:
        table.add_row(
            Text(name),
            state,
            *([ProgressBar(s.steps, s.step) if s.steps else ""] if wide else []),
            f"{s.step}/{s.steps}" if s.steps else "",
            _loss(s.loss),
            _loss(s.validation),
            number(s.tokens_per_second) if s.tokens_per_second else "",
            *(["" if s.utilisation is None else f"{s.utilisation:.1%}"] if utilisation_known else []),
            left,
            _silent(s.updated),
        )

    for s in shown:
        row(s.run, styled_state(s.state), s, _left(s.seconds_left) if s.state == "running" else "")
    table.add_section()
    steps = [s.steps for s in standings if s.steps]
    together = Standing(
        "in all" if len(shown) == len(standings) else f"in all, {len(standings) - len(shown)} not shown",
        f"{by_state['finished']}/{len(standings)}",
        step=sum(s.step for s in standings),
        steps=sum(steps) if len(steps) == len(standings) else None,
        tokens_per_second=sum(s.tokens_per_second or 0.0 for s in standings),
        updated=max((s.updated for s in standings if s.updated), default=None),
    )
    waited_for = any(s.state in WAITED_FOR for s in standings)
    row(together.run, Text(together.state), together, _left(seconds_left(standings)) if waited_for else "")
    cut: dict[str, Any] = {} if lines is None else {"no_wrap": True, "overflow": "ellipsis"}
    said = [s.message if s.message.startswith(s.run) else f"{s.run}: {s.message}" for s in shown if s.message]
    return Group(table, *(Text(line, **cut) for line in said))


def follow(roster: Roster, console: Console, quiet_seconds: float = QUIET_SECONDS) -> None:
    """Draw where runs stand until none is waited for, or Ctrl-C; at no terminal whenever a run's state changes."""
    if not console.is_terminal:
        states: list[tuple[str, str]] = []
        for standings in _until_over(roster, quiet_seconds):
            if states != (states := [(s.run, s.state) for s in standings]):
                console.print(standing_table(standings, console.width))
        return
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, transient=True) as live:
        for standings in _until_over(roster, quiet_seconds):
            live.update(standing_table(standings, console.width, console.height), refresh=True)
    console.print(standing_table(roster.standings(), console.width))


class Watch:
    """A context in which a sweep's events are printed, on a terminal above the table of its runs."""

    def __init__(self, runs: Sequence[RunConfig], directories: Sequence[RunDirectory], console: Console):
        self.console = console
        self._directories = {run.run_name: directory for run, directory in zip(runs, directories, strict=True)}
        roster = Roster(lambda: directories, runs)
        self._live = Live(
            get_renderable=lambda: standing_table(roster.standings(), console.width, console.height),
            console=console,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
        )

    def __enter__(self) -> Watch:
        if self.console.is_terminal:
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(Text(line), soft_wrap=True)

    def event(self, what: str, run: RunConfig) -> None:
        """Print that a run was `started`, `finished`, `retried` or `failed`, or is `waiting` for another sweep."""
        name, detail = run.run_name, ""
        if what == "finished" and (result := self._directories[name].read_result()):
            detail = f", validation loss {result['val_loss']:.4f}"
        self.say(f"{what:>8}  {name}{detail}")


def _until_over(roster: Roster, quiet_seconds: float) -> Iterator[list[Standing]]:
    """Where runs stand, every second until all are finished, or for some time none has been waited for."""
    waited_for = time.monotonic()
    while True:
        standings = roster.standings()
        yield standings
        if any(s.state in WAITED_FOR for s in standings):
            waited_for = time.monotonic()
        elif all(s.state == "finished" for s in standings) or time.monotonic() - waited_for >= quiet_seconds:
            return
        time.sleep(REFRESH_SECONDS)


def _shown(standings: Sequence[Standing], lines: int | None) -> Sequence[Standing]:
    if lines is None:
        return standings
    free, names = lines - FRAME_LINES, set()
    for s in sorted(standings, key=lambda s: (s.state != "running", -(s.updated or 0.0))):
        free -= 2 if s.message else 1
        if free < 0:
            break
        names.add(s.run)
    return [s for s in standings if s.run in names]


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _left(seconds: float | None) -> str:
    return "?" if seconds is None else duration(seconds)


def _silent(updated: float | None) -> str:
    return "" if updated is None else duration(time.time() - updated)
