"""Device seconds of training steps, for the `seconds` ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Seconds of the steps since the last row; the caller restarts it after anything that is not training.

    The first step of an attempt carries compilation and warm-up, so it is charged as the mean of the other steps of
    its row.
    """

    def __init__(self) -> None:
        self._warm = False
        self._first_seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin a row now."""
        self._began, self._timed, self._untimed = time.perf_counter(), 0, 0

    def tick(self) -> None:
        """One step is done."""
        if self._warm:
            self._timed += 1
            return
        self._warm = True
        self._first_seconds = time.perf_counter() - self._began
        self.restart()
        self._untimed = 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose seconds are not of training."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def take(self) -> float:
        """Seconds of the steps since the last restart."""
        if self._timed == 0:
            return self._first_seconds * self._untimed
        return (time.perf_counter() - self._began) * (self._timed + self._untimed) / self._timed
