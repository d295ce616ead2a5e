"""Tables with a known answer, run directories as training writes them, and the golden table."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import main
from scaling.compute import DenseShape, ledgers
from scaling.records import RunDirectory

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"


@pytest.fixture
def golden() -> Callable[[str], Path]:
    """`golden(name)`: a file of the golden folder; the test is skipped by name where it is missing."""

    def find(name: str) -> Path:
        path = GOLDEN / name
        if not path.is_file():
            pytest.skip(f"golden/{name} is not here")
        return path

    return find


def planted_rows(
    multipliers: dict[str, float],
    alpha: float = 0.06,
    compute: tuple[float, ...] = (1e18, 2e18, 4e18, 8e18),
    noise: float = 0.0,
    seeds: int = 1,
    dearer: float = 1.0,
) -> list[dict[str, Any]]:
    """Rows on L = 2 (M C)^-alpha; the arms' compute is `dearer` times the baseline's."""
    generator = random.Random(0)
    rows = []
    for variant, m in {"baseline": 1.0, **multipliers}.items():
        for place, c in enumerate(compute):
            for seed in range(seeds):
                flops = c * (1.0 if variant == "baseline" else dearer)
                loss = 2 * (m * flops / 1e18) ** -alpha * math.exp(generator.gauss(0, noise))
                rows.append(
                    {"size": f"s{place}", "variant": variant, "seed": seed, "flops_model": flops, "val_loss": loss}
                )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as a CSV whose columns are those of any row."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(
            {key: repr(value) if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
    return path


@pytest.fixture
def planted() -> Callable[..., list[dict[str, Any]]]:
    """`planted({"block": 1.25}, ...)`: rows with known multipliers."""
    return planted_rows


@pytest.fixture
def table(tmp_path: Path) -> Callable[[list[dict[str, Any]]], Path]:
    """`table(rows)`: the rows in a results folder of their own, as runs.csv; returns the folder."""

    def write(rows: list[dict[str, Any]], name: str = "results") -> Path:
        return write_rows(tmp_path / name / "runs.csv", rows).parent

    return write


@pytest.fixture
def analysis(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`analysis("multiplier", path)`: run a verb; returns exit status, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def write_run(
    folder: Path,
    variant: str = "baseline",
    width: int = 64,
    seed: int = 0,
    loss: float = 3.0,
    state: str = "finished",
    steps: int = 40,
    **changes: Any,
) -> RunDirectory:
    """One run directory as training leaves it. `changes` replace keys of run.json."""
    sites = 0 if variant == "baseline" else 17
    heads = width // 32
    shape = DenseShape(
        n_layers=8,
        d_model=width,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=32,
        d_ff=3 * width,
        vocab_size=512,
        tied_head=True,
        seq_len=128,
        residual_parameters=2 * width * sites,
        residual_flops=20 * width * sites,
    )
    name = f"{variant}-w{width}-s{seed}-abc123"
    run = RunDirectory(folder / name)
    run.write_config({"seed": seed})
    run.write_run(
        {
            "run": name,
            "variant": variant,
            "size": f"w{width}",
            "seed": seed,
            "shape": asdict(shape),
            "flops_per_token": ledgers(shape),
            "training": {
                "tokens": steps * 1024,
                "steps": steps,
                "batch_tokens": 1024,
                "schedule": "5c4ed",
                "tuning": {"optimizer": "adamw", "lr": 0.003},
            },
            "data": {"name": "python", "hash": "da7a"},
            "attempts": [{"attempt": 1, "machine": {"processor": "CPU", "threads": 2}}],
            **changes,
        }
    )
    metrics = run.open_metrics(1)
    for step in range(2, steps + 1, 2):
        now = loss + 3 * math.exp(-step / 8)
        metrics.append(
            step=step, tokens=step * 1024, train_loss=now, val_loss=now if step % 4 == 0 else None, seconds=width / 128
        )
    metrics.close()
    if state == "finished":
        run.write_result(
            {
                "run": name,
                "tokens": steps * 1024,
                "val_loss": loss,
                "train_loss": loss + 0.1,
                "data_hash": "da7a",
                "batches_hash": f"ba7c{seed}",
            }
        )
    run.write_status(state)
    return run


def write_sweep(folder: Path, gain: float = 0.05, widths: tuple[int, ...] = (64, 96, 128, 160)) -> Path:
    """A folder of finished runs, baseline and Block, in which Block's loss is lower by a share `gain`."""
    for width in widths:
        loss = 4 * (width / 64) ** -0.3
        write_run(folder, "baseline", width, loss=loss)
        write_run(folder, "block", width, loss=loss * (1 - gain * (1 + width % 3 / 20)))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A folder of finished runs."""
    return write_sweep(tmp_path / "runs")


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished runs that no test changes."""
    return write_sweep(tmp_path_factory.mktemp("sweep") / "runs")


@pytest.fixture
def one_run() -> Callable[..., RunDirectory]:
    """`one_run(folder, variant, width, ...)`: write one run directory."""
    return write_run
