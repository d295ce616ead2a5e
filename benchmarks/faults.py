"""Run a sweep while everything goes wrong, and compare what it ends with to an undisturbed one, bit for bit.

    python benchmarks/faults.py --reference runs/demo --faults 50 --seed 0

`--reference` is a finished folder of the same sweep on the same machine (`make demo` leaves runs/demo). The disturbed
sweep writes to a file system of its own in memory (a tmpfs, so this needs root). Faults are drawn by a seeded
generator and spread over the whole of the training, however fast the machine; whenever the sweep ends before its runs
are finished, the same command is given again, as a user would.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.collect import collect
from scaling.records import RunDirectory, find_runs

DISTURBED = ("seconds", "superseded_rows", "damaged_rows", "note")  # what a fault may leave its mark on
HOLD_SECONDS = (1.0, 6.0)  # how long a disk stays full or a directory closed


@dataclass
class Disturbed:
    """The sweep under test: its process, its folder of runs, and who draws."""

    command: list[str]
    folder: Path
    n_runs: int
    draw: random.Random
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    injected: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    furthest: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Give the command (again)."""
        self.starts += 1
        log = open(self.folder.parent.parent / "sweep.log", "ab")
        self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)

    @property
    def is_working(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def training(self) -> dict[int, RunDirectory]:
        """Processes that train a run of the folder, found by their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                configs = [Path(part) for part in command if part.startswith(str(self.folder))]
                if "train" in command and configs:
                    found[int(entry.name)] = RunDirectory(configs[0].parent)
        return found

    def victim(self) -> tuple[int, RunDirectory] | None:
        """A training process, drawn, that has written a checkpoint or at least its status."""
        running = sorted(self.training().items())
        return self.draw.choice(running) if running else None

    def trained(self) -> float:
        """Share of each run's steps that was ever done, on average over the runs."""
        for run in find_runs(self.folder) if self.folder.is_dir() else []:
            status = run.read_status()
            share = 1.0 if run.read_result() else status.get("step", 0) / status.get("steps", 1)
            self.furthest[run.name] = max(share, self.furthest.get(run.name, 0.0))
        return sum(self.furthest.values()) / self.n_runs

    def finished(self) -> bool:
        """Whether every run has its result and the sweep has ended."""
        return self.results() == self.n_runs and not self.is_working

    def results(self) -> int:
        """Runs that are finished."""
        return sum(1 for _ in self.folder.glob("*/result.json"))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def a_run_is_killed(sweep: Disturbed) -> bool:
    victim = sweep.victim()
    if victim:
        kill(victim[0])
    return victim is not None


def the_sweep_is_killed(sweep: Disturbed) -> bool:
    if not sweep.is_working:
        return False
    assert sweep.process is not None
    sweep.process.kill()
    sweep.process.wait()
    return True


def the_sweep_is_stopped(sweep: Disturbed) -> bool:
    """As by Ctrl-C: every run finishes its step and saves."""
    if not sweep.is_working:
        return False
    assert sweep.process is not None
    sweep.process.send_signal(signal.SIGINT)
    sweep.process.wait()
    return True


def the_newest_checkpoint_is_damaged(sweep: Disturbed) -> bool:
    """Cut short or with bytes changed, at the moment its process dies."""
    victim = sweep.victim()
    if victim is None or not victim[1].last_checkpoint.exists():
        return False
    pid, run = victim
    os.kill(pid, signal.SIGSTOP)  # so that it does not save once more in between
    size = run.last_checkpoint.stat().st_size
    with open(run.last_checkpoint, "r+b") as file:
        if sweep.draw.random() < 0.5:
            file.truncate(sweep.draw.randrange(size))
        else:
            for _ in range(20):
                file.seek(sweep.draw.randrange(size))
                file.write(b"\xff\x00")
    kill(pid)
    return True


def the_last_row_is_torn(sweep: Disturbed) -> bool:
    """metrics.csv ends within a row, as when a machine loses power."""
    victim = sweep.victim()
    path = victim[1].path / "metrics.csv" if victim else None
    if victim is None or path is None or not path.exists():
        return False
    os.kill(victim[0], signal.SIGSTOP)
    with open(path, "r+b") as file:
        size = path.stat().st_size
        file.truncate(max(0, size - sweep.draw.randrange(1, 40)))
    kill(victim[0])
    return True


def the_disk_is_full(sweep: Disturbed) -> bool:
    filler = sweep.folder.parent / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    time.sleep(sweep.draw.uniform(*HOLD_SECONDS))
    filler.unlink()
    return True


def a_directory_is_closed(sweep: Disturbed) -> bool:
    """Nothing can be made or renamed in a run's directory (root may write where modes forbid it, but not here)."""
    victim = sweep.victim()
    if victim is None:
        return False
    subprocess.run(["chattr", "+i", victim[1].path], check=True)
    try:
        time.sleep(sweep.draw.uniform(*HOLD_SECONDS))
    finally:
        subprocess.run(["chattr", "-i", victim[1].path], check=True)
    return True


FAULTS: tuple[Callable[[Disturbed], bool], ...] = (
    a_run_is_killed,
    the_sweep_is_killed,
    the_sweep_is_stopped,
    the_newest_checkpoint_is_damaged,
    the_last_row_is_torn,
    the_disk_is_full,
    a_directory_is_closed,
)


@contextlib.contextmanager
def memory_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A small file system at `folder`, gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def disturb(sweep: Disturbed, faults: int, console: Console) -> None:
    """Start the sweep, inject a fault whenever another share of its training is done, and see it to its end."""
    began = time.monotonic()
    kinds: list[Callable[[Disturbed], bool]] = []
    moments = sorted((sweep.draw.random() + i) / (faults + 1) for i in range(faults))
    while moments or not sweep.finished():
        if not sweep.is_working:
            if sweep.finished():
                raise SystemExit(f"all runs finished before the last {len(moments)} of {faults} faults")
            sweep.start()
        time.sleep(0.2)
        if not moments or sweep.trained() < moments[0]:
            continue
        if not kinds:  # every kind once before any comes again
            kinds = sweep.draw.sample(FAULTS, len(FAULTS))
        fault = kinds.pop()
        trained = [run.name for run in sweep.training().values()]
        if fault(sweep):
            moments.pop(0)
            sweep.injected[fault.__name__] += 1
            sweep.hit.update(trained)
            console.print(
                f"{sum(sweep.injected.values()):>3} after {time.monotonic() - began:5.0f} s: "
                f"{fault.__name__.replace('_', ' ')} ({sweep.trained():.0%} trained, {sweep.results()} runs finished)",
                highlight=False,
            )
        else:
            kinds.insert(0, fault)


def final_table(folder: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in run.items() if k not in DISTURBED} for run in collect(folder).runs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, default=Path("sweeps/demo.yaml"))
    parser.add_argument("--reference", type=Path, default=Path("runs/demo"))
    parser.add_argument("--folder", type=Path, default=Path("runs/disturbed"), help="made anew, as a tmpfs")
    parser.add_argument("--megabytes", type=int, default=160, help="size of that tmpfs")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given, extra = parser.parse_known_args()
    if os.geteuid() != 0:
        raise SystemExit("a file system of its own needs root: run this as root")

    console = Console(width=110)
    shutil.rmtree(given.folder, ignore_errors=True)
    folder = given.folder / "disk" / given.reference.name
    command = [sys.executable, "-m", "scaling", "sweep", str(given.sweep), "--execution.runs_folder"]
    command += [str(folder.parent), "--execution.retries", "3", "--execution.checkpoint_every", "10", *extra]
    sweep = Disturbed(command, folder, len(find_runs(given.reference)), random.Random(given.seed))
    with memory_disk(given.folder / "disk", given.megabytes):
        disturb(sweep, given.faults, console)
        same = report(sweep, given.reference, given.seed, console)
    return 0 if same else 1


def report(sweep: Disturbed, reference: Path, seed: int, console: Console) -> bool:
    """Print what was injected and whether the runs ended as if nothing had been."""
    kinds = Table("fault", "times", title=f"{sum(sweep.injected.values())} faults, seed {seed}")
    for name, times in sorted(sweep.injected.items()):
        kinds.add_row(name.replace("_", " "), str(times))
    kinds.add_row("(the command given)", str(sweep.starts))
    console.print(kinds)
    table, same = Table("run", "faults while it trained", "attempts", "validation loss", "result.json"), True
    for ours, theirs in zip(find_runs(sweep.folder), find_runs(reference), strict=True):
        equal = (ours.path / "result.json").read_bytes() == (theirs.path / "result.json").read_bytes()
        same &= equal
        attempts = len((ours.read_run() or {})["attempts"])
        loss = (ours.read_result() or {})["val_loss"]
        table.add_row(
            ours.name, str(sweep.hit[ours.name]), str(attempts), f"{loss:.9f}", "same bytes" if equal else "DIFFERS"
        )
    console.print(table)
    pairs = zip(final_table(sweep.folder), final_table(reference), strict=True)
    different = sorted(
        {name for ours, theirs in pairs for name in ours.keys() | theirs if ours.get(name) != theirs.get(name)}
    )
    outcome = f"{', '.join(different)} DIFFER" if different else "identical"
    console.print(f"final table without {', '.join(DISTURBED)}: {outcome}")
    return same and not different


if __name__ == "__main__":
    sys.exit(main())
