"""Memory of a training step: bytes that autograd keeps of a forward pass, and the process's peak.

    python benchmarks/memory.py [--shape wide] [--out FILE]

The peak is measured in a process of its own for each contender, over two eager steps; what the process held before its
first step is taken off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from contenders import CONTENDERS, SHAPES, Shape, batch
from record import record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from train_step import stepper

from scaling.memory import saved_bytes
from scaling.process import keep_heap


def saved(name: str, shape: Shape, *, compiled: bool) -> int:
    """Bytes that autograd keeps of one forward pass."""
    model = CONTENDERS[name](shape)
    if compiled:
        model.compile(dynamic=False)
    return saved_bytes(model, *batch(shape))


def peak_of_this_process(name: str, shape: Shape) -> int:
    """Bytes that two steps add to what the process holds at most."""
    keep_heap()
    step = stepper(name, shape, compiled=False)
    before = resident("VmRSS")
    for _ in range(2):
        step()
    return resident("VmHWM") - before


def resident(what: str) -> int:
    """Bytes resident now (VmRSS) or at most so far (VmHWM); getrusage's maximum would begin with the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def peak(name: str, shape: str) -> int:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--shape", shape, "--peak-of", name]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="wide")
    parser.add_argument("--peak-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    if given.peak_of:
        print(peak_of_this_process(given.peak_of, shape))
        return

    console = Console(width=110)
    numbers: dict[str, dict[str, int]] = {}
    for name in track(CONTENDERS, "counting", console=console):
        numbers[name] = {"saved_eager": saved(name, shape, compiled=False), "peak": peak(name, given.shape)}
        if name in ("baseline", "block", "full"):
            torch._dynamo.reset()
            numbers[name]["saved_compiled"] = saved(name, shape, compiled=True)
    table = Table("", "saved, eager", "to baseline", "saved, compiled", "to baseline", "peak", "to baseline",
                  title=str(shape))  # fmt: skip
    for name, row in numbers.items():
        cells = []
        for key in ("saved_eager", "saved_compiled", "peak"):
            known = key in row
            cells += (
                [f"{row[key] / 2**20:,.0f} MiB", f"{row[key] / numbers['baseline'][key]:.3f}"] if known else ["", ""]
            )
        table.add_row(name, *cells)
    console.print(table)
    record(given.out, {"shape": str(shape)} | numbers)


if __name__ == "__main__":
    main()
