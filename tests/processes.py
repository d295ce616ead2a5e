"""Looking at other processes, which start and end while one looks."""

import time
from pathlib import Path


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
