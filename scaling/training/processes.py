"""The processes of a run on several devices: the first starts the others, and none outlives another for long."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from types import TracebackType

import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.distributed import _destroy_dist_connection

from scaling.config import RunConfig
from scaling.process import PARENT, is_first_process
from scaling.records import Report, RunDirectory
from scaling.training.failures import process_lost, record

POLL_SECONDS = 0.2
NOTICE_SECONDS = 5.0
"""How long after a broken connection the process at its other end may still take to be gone."""
PATIENCE_SECONDS = 30.0
"""How long a process may take to end by itself once another is gone."""


class Processes:
    """A context in which the other processes of a run live, for its first process.

    In every process it takes the connection down. Over NCCL that waits for all of them: so the first process does it
    before it waits for the others' ends, after a failure nobody does, and Lightning's own attempt at the end of the
    process is called off. Otherwise the first process is the last to do it.
    """

    def __init__(self, run: RunDirectory, config: RunConfig, report: Report):
        """Set up; the others train the run too, from its config.yaml."""
        self.run, self.config, self.report = run, config, report
        self._numbers = range(1, config.execution.devices) if is_first_process() else range(0)
        self._others: list[subprocess.Popen[bytes]] = []
        self._before = dict(os.environ)
        self._over = threading.Event()

    def __enter__(self) -> Processes:
        if self._numbers:
            each = max(1, torch.get_num_threads() // self.config.execution.devices)
            threads = os.environ.get("OMP_NUM_THREADS", str(each))
            torch.set_num_threads(int(threads))
            os.environ |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(find_free_network_port()),
                "NODE_RANK": "0",
                "LOCAL_RANK": "0",
                "OMP_NUM_THREADS": threads,
            }
            command = [sys.executable, "-m", "scaling", "train", str(self.run.path / "config.yaml")]
            for number in self._numbers:
                environment = {**os.environ, "LOCAL_RANK": str(number), PARENT: str(os.getpid())}
                self._others.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        atexit.unregister(_destroy_dist_connection)
        connected = torch.distributed.is_initialized() and error is None
        if connected and torch.distributed.get_backend() == "nccl":
            torch.distributed.destroy_process_group()
        patience = PATIENCE_SECONDS if error is None else NOTICE_SECONDS if isinstance(error, RuntimeError) else 0.0
        end = time.monotonic() + patience
        while self._running() and not self._lost() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        lost = self._lost()
        for process in self._running():  # all they had to keep, the first process has
            process.kill()
        for process in self._others:
            process.wait()
        if connected and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ |= self._before
        if lost and isinstance(error, RuntimeError):
            raise process_lost(self.run, self.config, *lost) from None

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._others if process.poll() is None]

    def _lost(self) -> tuple[int, int] | None:
        """Number and exit status of a process that ended before its time, of several one that took the others along."""
        ended = [(number, process.poll()) for number, process in zip(self._numbers, self._others, strict=True)]
        early = [(number, status) for number, status in ended if status]
        return min(early, key=lambda lost: (lost[1] == 1, lost), default=None)

    def _watch(self) -> None:
        """End this process when another is gone and this one waits for it in vain, where no exception reaches."""
        while not self._over.wait(POLL_SECONDS):
            if self._lost() and not self._over.wait(PATIENCE_SECONDS):
                lost = self._lost()
                assert lost is not None
                error = process_lost(self.run, self.config, *lost)
                self.report.close()
                record(self.run, error)
                print(f"error: {error}", file=sys.stderr, flush=True)
                os._exit(error.exit_status)
