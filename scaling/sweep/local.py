"""A sweep on this machine: its queue, what a person sees of it, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Sequence

from rich.console import Console

from scaling.errors import Stopped, SweepError
from scaling.sweep.devices import Device
from scaling.sweep.plan import Plan
from scaling.sweep.queue import POLL_SECONDS, LocalQueue
from scaling.sweep.signals import Signals
from scaling.sweep.tables import print_failures
from scaling.sweep.watch import Watch


def train_here(plan: Plan, devices: Sequence[Device], console: Console) -> None:
    """Train every run of a plan that has no result.

    Raises:
        Stopped: a signal ended the sweep; every run has been saved, or, after a second signal, killed.
        SweepError: some runs did not finish; they have been named on the console.
    """
    directories = [run.directory for run in plan.runs]
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with Watch(plan.runs, directories, console) as watch, Signals(*endings) as signals:
        queue = LocalQueue(plan.runs, devices, watch.event, watch.say)
        while queue.advance():
            if len(signals.received) > 1:
                queue.kill()
            elif signals.received and not queue.stopping:
                if signal.SIGHUP in signals.received:
                    _leave_terminal()
                console.print("every run finishes its step and saves; a second Ctrl-C stops at once", highlight=False)
                queue.stop()
            time.sleep(POLL_SECONDS)
    if signals.received:
        raise Stopped("stopped: the same command goes on where this one ended")
    if queue.failures:
        print_failures(console, sorted(queue.failures, key=lambda failure: failure.run))
        raise SweepError(
            f"{len(queue.failures)} of {len(plan.runs)} runs did not finish; the same command tries them again"
        )


def _leave_terminal() -> None:
    """The terminal is gone: printing to it would fail, and there is nobody to read it."""
    with open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere.fileno(), stream)
