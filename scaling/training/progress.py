"""The progress of a run as a person watches it: a bar on a terminal, lines in a log."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling.config import RunConfig
from scaling.training.recorder import Recorder


class ProgressDisplay(pl.Callback):
    """Steps done, loss and speed; must come after the recorder, whose numbers it shows."""

    def __init__(self, config: RunConfig, recorder: Recorder, console: Console):
        self.config, self.recorder, self.console = config, recorder, console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(config.run_name, total=config.steps, loss="")
        self._shown = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show the bar from the step the run goes on from."""
        self._bar.update(self._task, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Move the bar, or print a line at every row of the table."""
        step = trainer.global_step
        if step == self._shown:
            return
        self._shown = step
        losses = {"loss": self.recorder.train_loss, "validation": self.recorder.progress.val_loss}
        text = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items() if not math.isnan(loss))
        self._bar.update(self._task, completed=step, loss=text)
        due = step % self.config.execution.log_every == 0 or step == self.config.steps
        if due and not self.console.is_terminal:
            self.console.print(f"step {step}/{self.config.steps}  {text}", highlight=False)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()
