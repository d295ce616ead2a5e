"""Everything that has to be seen on a GPU, in one run of at most eight minutes.

    python benchmarks/gpu.py [--out results/bench/gpu.json]
    python benchmarks/gpu.py --smoke          # the same at toy sizes on any device: does the script run?

First block and full are held against the reference on the card, in float32 and bf16, eager and compiled. Then step
time, peak memory and the share of the card's measured bf16 matrix-product rate of baseline, block and full are
measured at the dense 194M and 528M shapes with 8,192 tokens a step under bf16 autocast, alternating in one process, and
so is one depth read by `fla`'s fused operator, if flash-linear-attention is importable, beside ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import CONTENDERS, Shape, batch
from record import record
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scaling.config import ModelConfig, ResidualConfig
from scaling.model.residual import build_scheme
from scaling.model.residual.reference import Reference

ARMS = ("baseline", "block", "full")
EPS = 1e-6


def dense(name: str, parameters: float, n_layers: int, d_model: int) -> Shape:
    """Table 2's depth, width and heads (128 wide), with the MLP that gives its parameters."""
    attention = 4 * d_model * n_layers * 128 * n_layers
    d_ff = 16 * round((parameters - attention) / (3 * d_model * n_layers) / 16)
    model = ModelConfig(name=name, n_layers=n_layers, d_model=d_model, n_heads=n_layers, head_dim=128, d_ff=d_ff)
    return Shape(model, 50_304, 1, 8192)


def toy(name: str) -> Shape:
    return Shape(ModelConfig(name=name, n_layers=4, d_model=64, n_heads=2, head_dim=32, d_ff=64), 256, 2, 32)


def deviation(scheme: str, dtype: torch.dtype, device: str, *, compiled: bool, width: int, tokens: int) -> float:
    """Largest deviation of reads and gradients from the reference's in float64, relative to the largest entry."""
    generator = torch.Generator(device).manual_seed(0)
    n = 12
    built = build_scheme(ResidualConfig(scheme), n, width, EPS, device=device)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device)

    embedding, outputs = random(1, tokens, width).to(dtype), [random(1, tokens, width).to(dtype) for _ in range(n)]
    weights = [random(1, tokens, width) for _ in range(n + 1)]

    def run(judge: Any, to: torch.dtype) -> list[Tensor]:
        leaves = [t.to(to).requires_grad_() for t in (embedding, *outputs)]
        parameters = [built.queries, built.gains]

        def reads(leaves: list[Tensor]) -> list[Tensor]:
            state, seen = judge.start(leaves[0]), []
            for i, output in enumerate(leaves[1:]):
                seen.append(judge.read(state, i))
                state = judge.write(state, i, output)
            return [*seen, judge.finish(state)]

        seen = (torch.compile(reads) if compiled and judge is built else reads)(leaves)
        loss = sum((w * r).sum() for w, r in zip(weights, seen, strict=True))
        return [*seen, *torch.autograd.grad(loss, [*leaves, *parameters])]

    ours = run(built, dtype)
    exact = run(Reference(built.queries.double(), built.gains.double(), built.ends, EPS), torch.float64)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, exact, strict=True))


def seconds_of(function: Callable[[], Any], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def product_rate(device: str, size: int) -> float:
    """FLOP/s of bf16 products of square matrices."""
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    times = [seconds_of(lambda: a @ b, device) for _ in range(12)]
    return 2 * size**3 / statistics.median(times[2:])


def steps(shape: Shape, device: str, rounds: int, rate: float) -> dict[str, dict[str, float]]:
    """Step time, peak memory and share of the product rate of every arm."""
    tokens, targets = (t.to(device) for t in batch(shape))
    timers, peaks = {}, dict.fromkeys(ARMS, 0.0)
    for arm in ARMS:
        torch.manual_seed(0)
        model = CONTENDERS[arm](shape).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        model.compile(dynamic=False)

        def step(model: torch.nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            with torch.autocast(device, torch.bfloat16):
                loss = model(tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        held = torch.cuda.memory_allocated() if device == "cuda" else 0
        for _ in range(3):
            step()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks[arm] = torch.cuda.max_memory_allocated() - held
        timers[arm] = step
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm, step in timers.items():
            seconds[arm].append(seconds_of(step, device))
    return {
        arm: {
            "milliseconds": 1e3 * statistics.median(times),
            "ratio_to_baseline": statistics.median(a / b for a, b in zip(times, seconds["baseline"], strict=True)),
            "peak_bytes": peaks[arm],
            "share_of_product_rate": shape.flops / statistics.median(times) / rate,
        }
        for arm, times in seconds.items()
    }


def reads(device: str, width: int, tokens: int, rounds: int) -> dict[str, float]:
    """Milliseconds, forward and backward, of all normed reads of a 24-sublayer Block, ours beside fla's operator."""
    from fla.ops.attnres import fused_attnres

    n = 24
    built = build_scheme(ResidualConfig("block"), n, width, EPS, device=device)
    norm = torch.nn.RMSNorm(width, eps=EPS, device=device)
    values = [torch.randn(1, tokens, width, device=device, requires_grad=True) for _ in range(n + 1)]

    def ours() -> Tensor:
        state, total = built.start(values[0]), torch.zeros((), device=device)
        for i in range(n):
            total = total + built.normed_read(state, i, norm).sum()
            state = built.write(state, i, values[i + 1])
        return total

    def theirs() -> Tensor:
        blocks, partial, total = [values[0]], None, torch.zeros((), device=device)
        for i in range(n):
            sources = blocks if partial is None else [*blocks, partial]
            row = max(i - 1, 0)
            total = (
                total
                + fused_attnres(
                    built.queries[row], sources, built.gains[row], output_rms_weight=norm.weight, rms_eps=EPS
                ).sum()
            )
            partial = values[i + 1] if partial is None else partial + values[i + 1]
            if i + 1 in built.ends:
                blocks, partial = [*blocks, partial], None
        return total

    contenders = {"ours, eager": ours, "ours, compiled": torch.compile(ours), "fla": theirs}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for function in contenders.values():
        for _ in range(3):
            function().backward()
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(seconds_of(lambda function=function: function().backward(), device))
    return {name: 1e3 * statistics.median(t) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="toy sizes, on whatever device there is")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.smoke:
        parser.error("torch sees no GPU: give --smoke to run this at toy sizes on the CPU")
    console, width, tokens = Console(width=110), 64 if given.smoke else 896, 32 if given.smoke else 2048
    result: dict[str, Any] = {"equality": {}, "steps": {}}

    table = Table("scheme", "sources", "mode", "largest deviation", "allowed", title="against the reference in float64")
    for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        for scheme in ("block", "full"):
            for compiled in (False, True):
                off = deviation(scheme, dtype, device, compiled=compiled, width=width, tokens=tokens)
                row = (scheme, str(dtype).removeprefix("torch."), "compiled" if compiled else "eager")
                table.add_row(*row, f"{off:.1e}", f"{allowed:.0e}")
                result["equality"][" ".join(row)] = {"deviation": off, "allowed": allowed}
    console.print(table)

    rate = product_rate(device, 256 if given.smoke else 8192)
    result["bf16_product_flop_rate"] = rate
    console.print(f"bf16 matrix products: {rate / 1e12:.1f} TFLOP/s")
    shapes = (
        [toy("toy")] if given.smoke else [dense("dense-194m", 194e6, 12, 896), dense("dense-528m", 528e6, 17, 1264)]
    )
    for shape in shapes:
        result["steps"][shape.model.name] = arms = steps(shape, device, 3 if given.smoke else 15, rate)
        table = Table("arm", "ms a step", "ratio", "peak, GiB", "of the product rate", title=str(shape))
        for arm, row in arms.items():
            table.add_row(
                arm, f"{row['milliseconds']:.1f}", f"{row['ratio_to_baseline']:.3f}",
                f"{row['peak_bytes'] / 2**30:.2f}", f"{row['share_of_product_rate']:.2f}",
            )  # fmt: skip
        console.print(table)
    if device == "cuda" and importlib.util.find_spec("fla"):
        result["reads_ms"] = reads(device, width, 8192, 15)
        console.print(f"all reads of a 24-sublayer Block, ms: {result['reads_ms']}")
    else:
        console.print("fla's operator: not measured (it needs a GPU and flash-linear-attention)")
    record(given.out, result)
    failed = [name for name, row in result["equality"].items() if row["deviation"] > row["allowed"]]
    if failed:
        raise SystemExit(f"further from the reference than allowed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
