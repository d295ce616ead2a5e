"""What a person sees while a sweep works: a bar a run on a terminal, a line an event in a log."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scaling.config import RunConfig
from scaling.records import RunDirectory

REFRESH_SECONDS = 1.0


class Watch:
    """A context in which events are shown; progress is read from the runs' own status files."""

    def __init__(self, runs: Sequence[RunConfig], directories: Sequence[RunDirectory], console: Console):
        self.console = console
        self._directories = {c.run_name: d for c, d in zip(runs, directories, strict=True)}
        self._remaining = sum(d.read_result() is None for d in directories)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("all runs", total=self._remaining, detail="")
        self._tasks: dict[str, TaskID] = {}
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
        """Show that a run was `started`, `finished`, `retried` or `failed`."""
        name = config.run_name
        if what == "started":
            self._tasks[name] = self._bars.add_task(name, total=config.steps, detail="")
        elif what in ("finished", "failed"):
            self._bars.remove_task(self._tasks.pop(name))
            self._bars.advance(self._all)
        result = self._directories[name].read_result()
        detail = f", validation loss {result['val_loss']:.4f}" if what == "finished" and result else ""
        self.console.print(f"{what:>8}  {name}{detail}", highlight=False)

    def _refresh(self) -> None:
        while not self._done.wait(REFRESH_SECONDS):
            for name, task in list(self._tasks.items()):
                status = self._directories[name].read_status()
                detail = (
                    f"loss {status['loss']:.4f}  {status['tokens_per_second']:,.0f} tokens/s"
                    if "loss" in status
                    else ""
                )
                self._bars.update(task, completed=status.get("step", 0), detail=detail)
