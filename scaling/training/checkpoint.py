"""Checkpoints that survive a kill, a full disk and damage: the newest and the one before, each renamed when whole."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from scaling.process import is_first_process
from scaling.records import RunDirectory


class RotatingCheckpoints(TorchCheckpointIO):
    """How the trainer saves: whatever is at the path becomes the run's previous checkpoint."""

    def __init__(self, run: RunDirectory):
        self.run = run

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Make `checkpoint` the newest; until it is whole on disk, the two before it stay as they are.

        Raises:
            OSError: the disk is full or read-only.
        """
        serialised = io.BytesIO()  # not straight to the file: torch turns a full disk into an internal error
        torch.save(checkpoint, serialised)
        newest = self.run.last_checkpoint
        temporary = newest.with_suffix(".part")
        try:
            with open(temporary, "wb") as file:
                file.write(serialised.getbuffer())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if newest.exists():
            os.replace(newest, self.run.previous_checkpoint)
        os.replace(temporary, newest)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Tensors and plain values, whoever asks: nothing that a checkpoint holds is ever executed.

        Raises:
            pickle.UnpicklingError: it holds anything else.
        """
        return torch.load(path, map_location="cpu", weights_only=True)


def usable_checkpoint(run: RunDirectory) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that can be read whole, if there is one, and the names of those that cannot.

    Damaged ones are renamed, so that the next save does not make one of them the checkpoint before the newest. Of
    several processes the first has judged before it starts the others, and they go by what it left.

    Raises:
        OSError: the system cannot read a file, which says nothing of what is in it.
    """
    damaged: list[str] = []
    for path in (run.last_checkpoint, run.previous_checkpoint):
        if not path.exists():
            continue
        if not is_first_process() or is_whole(path):
            return path, damaged
        os.replace(path, path.with_suffix(".damaged"))
        damaged.append(path.name)
    return None, damaged


def is_whole(path: Path) -> bool:
    """Whether every record of a checkpoint has the checksum that was written with it.

    Raises:
        OSError: the system cannot read it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception as error:  # damage may look like anything: an unknown method, a password, a bad name
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is a damaged offset's
            raise
        return False
