"""The counted memory of a training step beside the measured one: every case within 10 %, or exit status 1.

    python benchmarks/memory_estimate.py [--sizes narrow words] [--keep-heap] [--out FILE]

Measured is what a run of two steps, by the trainer, adds to the resident memory of a process of its own at most. A tiny
run before it loads the libraries. Every large tensor has pages of its own there; with --keep-heap the C allocator keeps
what is freed, as it does while training, and gaps between tensors come on top.

Kimi Linear is counted here as it runs on a CPU, with KDA in plain PyTorch, and in float32: in bf16 the process holds
some 370 MiB more than its tensors. The footprint of its GPU kernel, which `estimate` counts, has no measurement here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import lightning.pytorch as pl
import torch
from memory import resident
from record import record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils.data import DataLoader

from scaling.config import DataConfig, ExecutionConfig, KimiConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from scaling.loading import build
from scaling.memory import training_memory
from scaling.process import keep_heap
from scaling.training.module import TrainingModule

ALLOWED = 0.1
PAGES_OF_THEIR_OWN = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def _run(
    name: str, layers: int, width: int, heads: int, mlp: int, vocab: int, sequences: int, length: int,
    kimi: KimiConfig | None = None,
) -> RunConfig:  # fmt: skip
    return RunConfig(
        model=ModelConfig(name=name, n_layers=layers, d_model=width, n_heads=heads, head_dim=64, d_ff=mlp, kimi=kimi),
        data=DataConfig(name="random", source="python", vocab_size=vocab),
        train=TrainConfig(seq_len=length, batch_tokens=sequences * length, tokens=2 * sequences * length),
        execution=ExecutionConfig(accelerator="cpu"),
    )


TINY = _run("tiny", 4, 64, 1, 64, 512, 2, 64)
SIZES = {
    run.model.name: run
    for run in (
        _run("narrow", 8, 128, 2, 344, 4096, 32, 256),  # most of it activations
        _run("wide", 6, 768, 12, 2048, 8192, 1, 512),  # weights and optimiser
        _run("deep", 24, 256, 4, 704, 4096, 4, 512),  # many sources
        _run("words", 4, 256, 4, 704, 32768, 4, 512),  # logits
        _run("kimi", 4, 256, 4, 128, 4096, 4, 256, KimiConfig(n_experts=16, experts_per_token=4, kv_rank=64)),
    )
}
CASES = list(product(("baseline", "block", "full"), ("float32", "bf16"), (False, True)))


def case(run: RunConfig, scheme: str, precision: str, checkpointed: bool) -> RunConfig:
    return replace(
        run,
        residual=ResidualConfig(scheme),
        train=replace(run.train, precision=precision),
        execution=replace(run.execution, checkpoint_activations=checkpointed),
    )


def train(run: RunConfig) -> None:
    """Two steps on random tokens, by the trainer."""
    module = TrainingModule(run)
    module.model.checkpoint_activations = run.execution.checkpoint_activations
    generator = torch.Generator().manual_seed(0)
    size = (2, run.micro_batch, run.train.seq_len)
    tokens, targets = torch.randint(run.data.vocab_size, size, generator=generator)
    n = run.batch_sequences // run.micro_batch
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=2,
        accumulate_grad_batches=n,
        precision="bf16-mixed" if run.train.precision == "bf16" else "32-true",
        barebones=True,
    )
    trainer.fit(module, DataLoader([(tokens, targets)] * 2 * n, batch_size=None))


def peak_of_this_process(run: RunConfig, *, heap_kept: bool) -> int:
    """Bytes that a run adds to what this process holds at most."""
    if heap_kept:
        keep_heap()
    train(case(TINY, run.residual.scheme, run.train.precision, run.execution.checkpoint_activations))
    before = resident("VmRSS")
    train(run)
    return resident("VmHWM") - before


def peak(run: RunConfig, *, heap_kept: bool) -> int:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--peak-of", json.dumps(asdict(run)), *(["--keep-heap"] if heap_kept else [])]
    environment = os.environ | ({} if heap_kept else PAGES_OF_THEIR_OWN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.split()[-1])


def counted(run: RunConfig) -> int:
    """Bytes of a step on a CPU."""
    if run.model.kimi is None:
        return sum(training_memory(run).values())
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    with patch("scaling.model.kernel_footprints._stand_in", chunk_kimi_delta_attention):
        return sum(training_memory(run).values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--keep-heap", action="store_true", help="measure with the heap kept, as training on a CPU does"
    )
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    parser.add_argument("--peak-of", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak_of:
        print(peak_of_this_process(build(RunConfig, given.peak_of), heap_kept=given.keep_heap))
        return 0

    console = Console(width=110)
    table = Table("size", "scheme", "precision", "checkpointed", title="Memory of a training step, MiB")
    for heading in ("counted", "measured", "ratio"):
        table.add_column(heading, justify="right")
    rows = []
    cases = [(name, of) for name, of in product(given.sizes, CASES) if name != "kimi" or of[1] == "float32"]
    for name, of in track(cases, "measuring", console=console):
        run = case(SIZES[name], *of)
        ours, measured = counted(run), peak(run, heap_kept=given.keep_heap)
        rows.append({"size": name, "scheme": of[0], "precision": of[1], "checkpointed": of[2],
                     "counted": ours, "measured": measured})  # fmt: skip
        ratio = ours / measured
        wrong = abs(ratio - 1) > ALLOWED
        table.add_row(name, *of[:2], "yes" if of[2] else "no", f"{ours / 2**20:,.0f}", f"{measured / 2**20:,.0f}",
                      f"{ratio:.3f}", style="red" if wrong else None)  # fmt: skip
    console.print(table)
    worst = max(abs(row["counted"] / row["measured"] - 1) for row in rows)
    console.print(f"the largest deviation is {worst:.1%}, allowed are {ALLOWED:.0%}")
    record(given.out, {"heap_kept": given.keep_heap, "cases": rows})
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
