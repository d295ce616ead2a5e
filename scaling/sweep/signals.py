"""Requests to end, counted instead of obeyed, so that a sweep can answer them between two steps of its own."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """A context in which the given signals only add to `received`; afterwards they act as before."""

    def __init__(self, *numbers: signal.Signals):
        self.received: list[signal.Signals] = []
        self._numbers = numbers
        self._before: list[Any] = []

    def __enter__(self) -> Signals:
        self._before = [signal.signal(number, self._note) for number in self._numbers]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in zip(self._numbers, self._before, strict=True):
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
