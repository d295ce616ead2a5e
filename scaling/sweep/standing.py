"""Where the runs of a sweep stand, from their files alone, and how long they will still take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.compute import flops_per_token
from scaling.config import RunConfig
from scaling.errors import RecordError
from scaling.records import RunDirectory

WAITED_FOR = ("pending", "running")
"""States that end by themselves; a run in any other is over, or somebody has to start it again."""


@dataclass(frozen=True)
class Standing:
    """One run; what its files do not say is None."""

    run: str
    state: str
    """One of `records.STATES`, or `damaged`: its files cannot be read."""
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    """Training loss, nats per token."""
    validation: float | None = None
    """Newest validation loss, nats per token."""
    tokens_per_second: float | None = None
    """Of all its devices, while it runs."""
    utilisation: float | None = None
    updated: float | None = None
    """Unix time of the last sign of life."""
    message: str = ""
    flops_per_step: float | None = None
    """Of the `model` ledger."""
    tokens_per_step: float | None = None

    @property
    def flops_left(self) -> float | None:
        """FLOPs to the end of the schedule."""
        if self.flops_per_step is None or self.steps is None:
            return None
        return (self.steps - self.step) * self.flops_per_step

    @property
    def flops_per_second(self) -> float | None:
        """What it reaches now."""
        if not self.tokens_per_second or not self.tokens_per_step or self.flops_per_step is None:
            return None
        return self.tokens_per_second / self.tokens_per_step * self.flops_per_step

    @property
    def seconds_left(self) -> float | None:
        """To the end of the schedule, at the speed of now."""
        if not self.tokens_per_second or not self.tokens_per_step or self.steps is None:
            return None
        return (self.steps - self.step) * self.tokens_per_step / self.tokens_per_second


def seconds_left(standings: Sequence[Standing]) -> float | None:
    """Until every run that is waited for is done, with as many at a time and as fast as now; None if not known."""
    waited_for = [s for s in standings if s.state in WAITED_FOR]
    if not waited_for:
        return 0.0
    running = [s for s in waited_for if s.state == "running"]
    speeds = [s.flops_per_second for s in running if s.flops_per_second]
    left = [s.flops_left for s in waited_for if s.flops_left is not None]
    if not speeds or len(left) < len(waited_for):
        return None
    together = sum(left) / (statistics.fmean(speeds) * len(running))
    return max(together, *(s.seconds_left or 0.0 for s in running))


class Roster:
    """The runs of a sweep file or folder, read again at every call; what cannot change is read once."""

    def __init__(self, find: Callable[[], Sequence[RunDirectory]], runs: Sequence[RunConfig] = ()):
        """Set up; of `runs` the length of the schedule is known before they start."""
        self.find = find
        self._facts: dict[str, dict[str, Any]] = {
            run.run_name: {
                "steps": run.steps,
                "tokens_per_step": run.train.batch_tokens,
                "flops_per_step": flops_per_token(run.shape, "model") * run.train.batch_tokens,
            }
            for run in runs
        }
        self._final: dict[str, Standing] = {}
        self._validation: dict[str, tuple[int, float | None]] = {}

    def standings(self) -> list[Standing]:
        """Of every run, in order; one run's damaged files hide no other."""
        return [self._final.get(run.name) or self._standing(run) for run in self.find()]

    def _standing(self, run: RunDirectory) -> Standing:
        try:
            status, result = run.read_status(), run.read_result()
            facts = self._facts_of(run, status)
            validation = result["val_loss"] if result else self._newest_validation(run)
        except RecordError as error:
            return Standing(run.name, "damaged", message=str(error))
        running = status["state"] == "running"
        standing = Standing(
            run.name,
            status["state"],
            step=facts["steps"] if result and facts.get("steps") else status.get("step", 0),
            loss=status.get("loss"),
            validation=validation,
            tokens_per_second=status.get("tokens_per_second") if running else None,
            utilisation=status.get("utilisation") if running else None,
            updated=status.get("updated"),
            message=str(status.get("message", "")),
            **facts,
        )
        if result:
            self._final[run.name] = standing
        return standing

    def _facts_of(self, run: RunDirectory, status: Mapping[str, Any]) -> dict[str, Any]:
        if run.name in self._facts:
            return self._facts[run.name]
        recorded = run.read_run()
        if recorded is None:
            return {"steps": status.get("steps")}
        try:
            batch = int(float(recorded["training"]["batch_tokens"]))
            facts = {
                "steps": int(float(recorded["training"]["steps"])),
                "tokens_per_step": batch,
                "flops_per_step": float(recorded["flops_per_token"]["model"]) * batch,
            }
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RecordError(
                f"{run.path / 'run.json'} does not say how long the run is: delete the run directory and train again"
            ) from None
        self._facts[run.name] = facts
        return facts

    def _newest_validation(self, run: RunDirectory) -> float | None:
        """The last of metrics.csv, which is read again only when it has grown."""
        try:
            written = (run.path / "metrics.csv").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if self._validation.get(run.name, (None,))[0] != written:
            losses = [row["val_loss"] for row in run.read_metrics().rows if row["val_loss"] is not None]
            self._validation[run.name] = (written, losses[-1] if losses else None)
        return self._validation[run.name][1]
