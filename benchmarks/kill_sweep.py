"""Kill a sweep's processes at random moments and compare what it ends with to an undisturbed one, bit for bit.

    python benchmarks/kill_sweep.py --reference runs/demo --kills 20 --seed 0

`--reference` is a finished folder of the same sweep on the same machine (`make demo` leaves runs/demo). Victims are
drawn by a seeded generator: a training process three times out of four, else the sweep itself, whose runs the
kernel then ends. Every kill is SIGKILL, so nothing is cleaned up.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.collect import collect
from scaling.records import find_runs

DISTURBED = ("seconds", "superseded_rows", "damaged_rows")  # what a kill may leave its mark on


def training_processes(folder: Path) -> list[int]:
    """Processes that train a run of the folder, found by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "train" in command and any(part.startswith(str(folder)) for part in command):
                found.append(int(entry.name))
    return found


def start(sweep: Path, runs: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scaling", "sweep", str(sweep), "--execution.runs_folder", str(runs)]
    return subprocess.Popen([*command, "--execution.retries", "100", *extra], stdout=subprocess.DEVNULL)


def final_table(folder: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in run.items() if k not in DISTURBED} for run in collect(folder).runs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, default=Path("sweeps/demo.yaml"))
    parser.add_argument("--reference", type=Path, default=Path("runs/demo"))
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/killed"), help="runs of the disturbed sweep, made anew"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean-wait", type=float, default=20.0, help="seconds between two kills, on average")
    given, extra = parser.parse_known_args()

    console, draw = Console(width=110), random.Random(given.seed)
    shutil.rmtree(given.folder, ignore_errors=True)
    runs = given.folder / given.reference.name
    sweep = start(given.sweep, given.folder, extra)
    began, kills = time.monotonic(), 0
    next_kill = began + draw.uniform(0.5, 1.5) * given.mean_wait
    while sweep.poll() is None or kills < given.kills:
        if sweep.poll() is not None and sweep.returncode >= 0:
            break
        time.sleep(0.2)
        if kills < given.kills and time.monotonic() >= next_kill:
            victims = training_processes(runs)
            if not victims:
                continue
            whole_sweep = draw.random() < 0.25
            victim = sweep.pid if whole_sweep else draw.choice(victims)
            os.kill(victim, signal.SIGKILL)
            kills += 1
            what = "the sweep" if whole_sweep else "a run"
            console.print(f"kill {kills:>2} after {time.monotonic() - began:5.0f} s: {what}", highlight=False)
            if whole_sweep:
                sweep.wait()
                sweep = start(given.sweep, given.folder, extra)
            next_kill = time.monotonic() + draw.uniform(0.5, 1.5) * given.mean_wait
    if sweep.wait() != 0:
        console.print(f"the sweep ended with status {sweep.returncode}")
        return 1

    table = Table("run", "attempts", "validation loss", "result.json", title=f"{kills} kills, seed {given.seed}")
    same = kills == given.kills
    for ours, theirs in zip(find_runs(runs), find_runs(given.reference), strict=True):
        equal = (ours.path / "result.json").read_bytes() == (theirs.path / "result.json").read_bytes()
        same &= equal
        attempts = len((ours.read_run() or {})["attempts"])
        loss = (ours.read_result() or {})["val_loss"]
        table.add_row(ours.name, str(attempts), f"{loss:.9f}", "same bytes" if equal else "DIFFERS")
    console.print(table)
    tables_equal = final_table(runs) == final_table(given.reference)
    console.print(f"final table without {', '.join(DISTURBED)}: {'identical' if tables_equal else 'DIFFERENT'}")
    return 0 if same and tables_equal else 1


if __name__ == "__main__":
    sys.exit(main())
