"""A run that dies as SIGKILL would have it, at a known step."""

import pytest
from rich.console import Console

from scaling.training.checkpoint import RotatingCheckpoints
from scaling.training.run import train


def killed_after(step, run, monkeypatch):
    """Train until right after the checkpoint of a step, and die there: nothing is cleaned up."""
    save = RotatingCheckpoints.save_checkpoint

    def save_and_die(self, checkpoint, path, storage_options=None):
        save(self, checkpoint, path, storage_options)
        if checkpoint["global_step"] == step:
            raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RotatingCheckpoints, "save_checkpoint", save_and_die)
        with pytest.raises(SystemExit):
            train(run, Console(quiet=True))
