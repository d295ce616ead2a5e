"""Training steps side by side, alternating in one process: our arms, a textbook stack, Llama, `attn-res`.

    python benchmarks/train_step.py [--shape wide] [--only baseline block] [--rounds 15] [--eager] [--bf16] [--out FILE]

One step is forward, backward and fused AdamW on the same tokens. Printed are medians of ratios of steps of the same
round, with their quartiles: they do not depend on the machine's mood, as seconds do. The machine's matrix-product rates
are measured in the same rounds, and the steps of the rounds that --bf16 adds run under bf16 autocast.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import CONTENDERS, SHAPES, Shape, batch
from record import record
from rich.console import Console
from rich.progress import track
from rich.table import Table

from scaling.model.linear import linear
from scaling.process import keep_heap
from scaling.training.environment import machine

PRODUCT = 2048


def stepper(name: str, shape: Shape, *, compiled: bool, bf16: bool = False) -> Callable[[], float]:
    """A function that does one training step and returns its seconds."""
    torch.manual_seed(0)
    model, (tokens, targets) = CONTENDERS[name](shape), batch(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if compiled:
        model.compile(dynamic=False)

    def step() -> float:
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return step


def product_timer(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], float]:
    """A function that multiplies two square matrices a few times and returns the seconds of one product."""
    a, b = torch.randn(2, 1, PRODUCT, PRODUCT)

    def product() -> float:
        began = time.perf_counter()
        for _ in range(4):
            multiply(a, b[0])
        return (time.perf_counter() - began) / 4

    return product


def measure(
    shape: Shape, names: list[str], rounds: int, *, compiled: bool, bf16: bool, console: Console
) -> dict[str, list[float]]:
    """Seconds of every contender in every round."""
    timers = {name: stepper(name, shape, compiled=compiled) for name in names}
    if bf16:
        timers |= {
            f"{name}, bf16": stepper(name, shape, compiled=compiled, bf16=True) for name in ("baseline", "block")
        }
    timers["product, torch.mm"] = product_timer(lambda a, b: torch.mm(a[0], b))
    timers["product, ours"] = product_timer(linear)
    for name in track(timers, "warming up", console=console):
        for _ in range(3):
            timers[name]()
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in track(range(rounds), "measuring", console=console):
        for name, timer in timers.items():
            seconds[name].append(timer())
    return seconds


def ratios(seconds: dict[str, list[float]], name: str, to: str) -> list[float]:
    """Lower quartile, median, upper quartile of the ratios of the same rounds."""
    return statistics.quantiles([a / b for a, b in zip(seconds[name], seconds[to], strict=True)], n=4)


def summary(shape: Shape, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The numbers that the table shows."""
    rates = {name: 2 * PRODUCT**3 / statistics.median(times) for name, times in seconds.items() if "product" in name}
    steps = [name for name in seconds if "product" not in name]
    tokens = shape.sequences * shape.seq_len
    result: dict[str, Any] = {
        name: {
            "ratio_to_baseline": ratios(seconds, name, "baseline"),
            "tokens_per_second": tokens / statistics.median(seconds[name]),
        }
        for name in steps
    }
    if "Hugging Face Llama" in steps:
        result["baseline"]["ratio_to_llama"] = ratios(seconds, "baseline", "Hugging Face Llama")
    flop_rate = shape.flops / statistics.median(seconds["baseline"])
    result["baseline"]["flop_rate"] = flop_rate
    result["products"] = {
        name.removeprefix("product, "): {"flop_rate": rate, "baseline_reaches": flop_rate / rate}
        for name, rate in rates.items()
    }
    return result


def show(title: str, result: dict[str, Any], console: Console) -> None:
    table = Table("step of", "ratio to the baseline's", "quartiles", "tokens/s", title=title)
    for name, numbers in result.items():
        if name == "products":
            continue
        low, middle, high = numbers["ratio_to_baseline"]
        table.add_row(name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{numbers['tokens_per_second']:,.0f}")
    console.print(table)
    if "ratio_to_llama" in result["baseline"]:
        low, middle, high = result["baseline"]["ratio_to_llama"]
        console.print(f"the baseline's step to Llama's: {middle:.3f} ({low:.3f} to {high:.3f})")
    for name, numbers in result["products"].items():
        console.print(
            f"float32 products by {name}: {numbers['flop_rate'] / 1e9:.0f} GFLOP/s, of which the baseline's step "
            f"reaches {numbers['baseline_reaches']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="wide")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--eager", action="store_true", help="leave the models uncompiled")
    parser.add_argument("--bf16", action="store_true", help="also under bf16 autocast")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()

    keep_heap()
    console, shape = Console(width=110), SHAPES[given.shape]
    names = list(dict.fromkeys(["baseline", *given.only]))
    seconds = measure(shape, names, given.rounds, compiled=not given.eager, bf16=given.bf16, console=console)
    result, facts = summary(shape, seconds), machine()
    mode = "eager" if given.eager else "compiled"
    show(f"{shape}, {mode}, {facts['threads']} threads, {facts['processor']}", result, console)
    record(given.out, {"shape": str(shape), "mode": mode, "rounds": given.rounds} | result)


if __name__ == "__main__":
    main()
