"""Training in other processes, and looking at them, which start and end while one looks."""

import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import yaml


def train_by_command_line(run, tmp_path):
    """Train in processes of its own, which say nothing on stderr; returns the result."""
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(asdict(run)))
    command = [sys.executable, "-m", "scaling", "train", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return run.directory.read_result()


def wait_until(condition, seconds=60.0, pause=0.02):
    """Ask until the answer is true, and return it; in vain is a failed test."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain"
        time.sleep(pause)
    return answer


def _read(pid, name) -> bytes:
    """A file of a process below /proc; nothing where the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def children_of(pid) -> dict[int, list[str]]:
    """The command lines of the living processes that it started."""
    children = map(int, _read(pid, f"task/{pid}/children").split())
    command_lines = {child: _read(child, "cmdline").decode().split("\0")[:-1] for child in children}
    return {child: words for child, words in command_lines.items() if words}


def lives(pid) -> bool:
    """Whether it runs: a process that ended and is not yet waited for does not."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"
