"""How a run is asked to stop: SIGINT or SIGTERM once, to end after the step it is in; twice, to end at once."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType, TracebackType
from typing import Any

import lightning.pytorch as pl
import torch

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_SECONDS = 1.0
"""Signals this close are one request: a cluster may send each process its own and the group's."""


class StopNow(BaseException):
    """Ends the run at once. Not an Exception, so that no library on the way takes it for a failure of its own."""


class StopRequest:
    """A context in which the signals ask this process's run to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._last = -math.inf
        self.step_is_worth_finishing = False
        """Until it is, the first request ends the run at once: there is nothing yet that the next start would lack."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again, self._last = now - self._last > SAME_REQUEST_SECONDS, now
        at_once = (self.requested and again) or not self.step_is_worth_finishing
        self.requested = True
        if at_once:
            raise StopNow

    def agreed(self, trainer: pl.Trainer) -> bool:
        """Whether any process of the run was asked: the same answer in all of them, if all ask at the same place."""
        if trainer.world_size == 1:
            return self.requested
        asked = torch.tensor(float(self.requested), device=trainer.strategy.root_device)
        return trainer.strategy.reduce(asked, reduce_op="sum").item() > 0
