"""What a person sees while a sweep works: a bar a run on a terminal, a line an event in a log."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scaling.config import RunConfig
from scaling.errors import RecordError
from scaling.records import RunDirectory

REFRESH_SECONDS = 1.0


class Watch:
    """A context in which events are shown; progress is read from the runs' own status files."""

    def __init__(self, runs: Sequence[RunConfig], directories: Sequence[RunDirectory], console: Console):
        self.console = console
        self._directories = {c.run_name: d for c, d in zip(runs, directories, strict=True)}
        self._before = self._finished()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("all runs", total=len(directories) - self._before, detail="")
        self._tasks: dict[str, TaskID] = {}
        self._mutex = threading.Lock()
        self._done = threading.Event()
        self._refresher = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> Watch:
        self._bars.start()
        self._refresher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._refresher.join()
        self._bars.stop()

    def event(self, what: str, config: RunConfig) -> None:
        """Show that a run was `started`, `finished`, `retried` or `failed`, or is `waiting` for another sweep."""
        name, detail = config.run_name, ""
        with self._mutex:
            if what == "started":
                self._tasks[name] = self._bars.add_task(name, total=config.steps, detail="")
            elif what != "retried" and name in self._tasks:
                self._bars.remove_task(self._tasks.pop(name))
        if what == "finished" and (result := self._directories[name].read_result()):
            detail = f", validation loss {result['val_loss']:.4f}"
        self.console.print(f"{what:>8}  {name}{detail}", highlight=False)

    def _finished(self) -> int:
        return sum((d.path / "result.json").exists() for d in self._directories.values())

    def _refresh(self) -> None:
        while not self._done.wait(REFRESH_SECONDS):
            self._bars.update(self._all, completed=self._finished() - self._before)
            with self._mutex:
                for name, task in self._tasks.items():
                    self._show(task, self._directories[name])

    def _show(self, task: TaskID, run: RunDirectory) -> None:
        try:
            status = run.read_status()
        except RecordError:  # the run's own process will say so
            return
        detail = f"loss {status['loss']:.4f}  {status['tokens_per_second']:,.0f} tokens/s" if "loss" in status else ""
        self._bars.update(task, completed=status.get("step", 0), detail=detail)
