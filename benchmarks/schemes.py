"""What the arms of a sweep cost: parameters, FLOPs, and the time of a step beside the baseline's.

    python benchmarks/schemes.py [sweeps/cpu-schemes.yaml] [--rounds 10] [--compile] [--out FILE]

Every arm of the sweep's first size steps in turn with the baseline, in one process; printed is the median of the ratios
of neighbouring steps, with its quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import record
from rich.console import Console
from rich.progress import track
from rich.table import Table

from scaling.compute import forward_flops
from scaling.config import RunConfig
from scaling.model.language_model import LanguageModel
from scaling.process import keep_heap
from scaling.sweep.plan import read_plan
from scaling.training.optimizer import build_optimizer


def stepper(run: RunConfig, *, compiled: bool) -> Callable[[], float]:
    """A function that does one training step of an arm on random tokens and returns its seconds."""
    model = LanguageModel(run.model, run.residual, run.data.vocab_size, run.train.seq_len)
    optimizer = build_optimizer(model, run.train)
    tokens = torch.randint(run.data.vocab_size, (run.micro_batch, run.train.seq_len))
    if compiled:
        model.compile(dynamic=False)

    def step() -> float:
        began = time.perf_counter()
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=Path, default=Path("sweeps/cpu-schemes.yaml"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()
    keep_heap()
    torch.manual_seed(0)
    console = Console(width=110)
    runs = read_plan(given.sweep).runs
    runs = [run for run in runs if run.model == runs[0].model and run.seed == runs[0].seed]
    baseline = stepper(next(run for run in runs if run.variant == "baseline"), compiled=given.compile)
    table = Table("arm", title=f"{runs[0].model.name}, {'compiled' if given.compile else 'eager'}")
    for heading in ("own parameters", "own FLOPs a token", "step / baseline's", "quartiles"):
        table.add_column(heading, justify="right")
    arms = {}
    for run in track(runs, "measuring", console=console):
        own, ratios = stepper(run, compiled=given.compile), []
        for step in (own, baseline):
            for _ in range(3):
                step()
        for _ in range(given.rounds):
            ratios.append(own() / baseline())
        low, middle, high = statistics.quantiles(ratios, n=4)
        shape = run.shape
        flops = forward_flops(shape)["depth_mixing"]
        arms[run.variant] = {"parameters": shape.residual_parameters, "flops_per_token": flops, "ratios": ratios}
        table.add_row(
            run.variant, f"{shape.residual_parameters:,}", f"{flops:,.0f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"
        )
    console.print(table)
    record(given.out, {"size": runs[0].model.name, "compiled": given.compile, "arms": arms})


if __name__ == "__main__":
    main()
