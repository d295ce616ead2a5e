"""What the arms of a sweep cost: parameters, FLOPs, the time of a step beside the baseline's, and what dynamics add.

    python benchmarks/schemes.py [sweeps/cpu-schemes.yaml] [--rounds 10] [--compile] [--out FILE]

Every arm of the sweep's first size steps in turn with the baseline, in one process; printed is the median of the ratios
of neighbouring steps, with its quartiles. Dynamics are measured in turn with the arm's own step, and printed as a share
of the time of the steps from one measurement to the next, `--every` of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from scaling.training.dynamics import PROBE_TOKENS, measure
from scaling.training.optimizer import build_optimizer


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return statistics.quantiles(values, n=4)


def stepper(run: RunConfig, *, compiled: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    """Functions that do one training step of an arm on random tokens, and one measurement of dynamics, in seconds."""
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

    def look() -> float:
        began = time.perf_counter()
        few = tokens[: max(1, PROBE_TOKENS // run.train.seq_len)]
        measure(model, few, few)
        return time.perf_counter() - began

    return step, look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=Path, default=Path("sweeps/cpu-schemes.yaml"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--every", type=int, default=100, help="execution.dynamics_every")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()
    keep_heap()
    torch.manual_seed(0)
    console = Console(width=110)
    runs = read_plan(given.sweep).runs
    runs = [run for run in runs if run.model == runs[0].model and run.seed == runs[0].seed]
    baseline, _ = stepper(next(run for run in runs if run.variant == "baseline"), compiled=given.compile)
    table = Table("arm", title=f"{runs[0].model.name}, {'compiled' if given.compile else 'eager'}")
    for heading in ("parameters", "FLOPs a token", "step / baseline's", "dynamics"):
        table.add_column(heading, justify="right")
    arms: dict[str, dict[str, Any]] = {}
    for run in track(runs, "measuring", console=console):
        own, look = stepper(run, compiled=given.compile)
        for warm in (own, baseline, look):
            for _ in range(3):
                warm()
        seconds = [(own(), baseline(), look()) for _ in range(given.rounds)]
        arm = arms[run.variant] = {
            "parameters": run.shape.residual_parameters,
            "depth_mixing": forward_flops(run.shape)["depth_mixing"],
            "ratio_to_baseline": quartiles([step / its for step, its, _ in seconds]),
            "dynamics_share": quartiles([looking / (given.every * step) for step, _, looking in seconds]),
        }
        low, middle, high = arm["ratio_to_baseline"]
        table.add_row(
            run.variant,
            f"{arm['parameters']:,}",
            f"{arm['depth_mixing']:,.0f}",
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
            f"{arm['dynamics_share'][1]:.2%}",
        )
    console.print(table)
    numbers = {"rounds": given.rounds, "compiled": given.compile, "dynamics_every": given.every, "arms": arms}
    record(given.out, {"size": runs[0].model.name} | numbers)


if __name__ == "__main__":
    main()
