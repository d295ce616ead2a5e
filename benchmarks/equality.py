"""Train the same 20 steps on one process and in every other way, and compare the training losses.

    python benchmarks/equality.py configs/run/quick.yaml

The corpus of the given run has to be prepared. Ends with status 1 where a loss is further off than rounding may move
it: 1e-6 of it at the first step, which the same weights compute, and 1e-5 at the last; activation checkpointing not
at all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from scaling.config import ExecutionConfig, ResidualConfig, RunConfig
from scaling.loading import load

STEPS = 20
BOUNDS = {1: 1e-6, STEPS: 1e-5}
REFERENCE = "1 process"
SCHEMES = {"baseline": {}, "block": {"n_blocks": 4}, "full": {}}


def modes(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Execution settings by name; what they compute has to be the same."""
    quarter = config.batch_sequences // 4
    two = {"devices": 2, "micro_batch": quarter}
    return {
        REFERENCE: {},
        "checkpointed": {"checkpoint_activations": True},
        "micro-batch 1/4": {"micro_batch": quarter},
        "2 processes, ddp": {"devices": 2, "strategy": "ddp"},
        "2 processes, fsdp": {"devices": 2, "strategy": "fsdp"},
        "2 processes, ddp, micro-batch 1/4, checkpointed": {**two, "strategy": "ddp", "checkpoint_activations": True},
        "2 processes, fsdp, micro-batch 1/4, checkpointed": {**two, "strategy": "fsdp", "checkpoint_activations": True},
    }


def losses(config: RunConfig, scheme: str, execution: dict[str, Any], data_folder: str) -> dict[int, float]:
    """Training loss in nats per token at every step, of a run by the command line."""
    with tempfile.TemporaryDirectory() as folder:
        run = replace(
            config,
            train=replace(config.train, tokens=STEPS * config.train.batch_tokens, tokens_per_parameter=None),
            residual=ResidualConfig(scheme, SCHEMES[scheme]),
            variant=scheme,
            execution=ExecutionConfig(
                runs_folder=folder,
                data_folder=data_folder,
                accelerator="cpu",
                log_every=1,
                validate_every=STEPS,
                **execution,
            ),
        )
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump(asdict(run)))
        subprocess.run([sys.executable, "-m", "scaling", "train", str(file)], check=True, stdout=subprocess.DEVNULL)
        return {row["step"]: row["train_loss"] for row in run.directory.read_metrics().rows}


def differences(ours: dict[int, float], reference: dict[int, float]) -> dict[int, float]:
    """Relative, at the steps that have a bound."""
    return {step: abs(ours[step] / reference[step] - 1) for step in BOUNDS}


def within(name: str, off: dict[int, float]) -> bool:
    """Whether the differences of a mode are what rounding explains."""
    return all(off[step] <= (0 if name == "checkpointed" else bound) for step, bound in BOUNDS.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="file of a run; its scheme and its tokens are replaced")
    parser.add_argument("--data-folder", default=ExecutionConfig.data_folder)
    given = parser.parse_args()
    config = load(RunConfig, given.config, {})
    table = Table("scheme", "mode", title=f"Training loss, nats per token, and its relative difference to {REFERENCE}")
    for heading in ("step 1", "off", f"step {STEPS}", "off"):
        table.add_column(heading, justify="right")
    equal = True
    for scheme in SCHEMES:
        table.add_section()
        found = {name: losses(config, scheme, way, given.data_folder) for name, way in modes(config).items()}
        for name, ours in found.items():
            off = differences(ours, found[REFERENCE])
            equal &= within(name, off)
            cells = [cell for step in BOUNDS for cell in (f"{ours[step]:.9f}", f"{off[step]:.1e}")]
            table.add_row(scheme, name, *cells, style=None if within(name, off) else "red")
    Console(width=130).print(table)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
