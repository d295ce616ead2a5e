"""Kimi Linear trained on real text: every scheme, the balance of its experts, accumulation, resume."""

import math
from dataclasses import replace

import pytest
from interruption import killed_after
from rich.console import Console

from scaling.config import KimiConfig, ModelConfig, ResidualConfig
from scaling.training.run import train

QUIET = Console(quiet=True)
SCHEMES = [ResidualConfig("baseline"), ResidualConfig("block", {"block_size": 2}), ResidualConfig("full")]
SIZE = ModelConfig(
    name="tiny-kimi", n_layers=3, d_model=32, n_heads=2, head_dim=16, d_ff=16,
    kimi=KimiConfig(n_experts=8, experts_per_token=2, kv_rank=16, mla_every=2, balance_rate=0.02),
)  # fmt: skip


@pytest.fixture
def kimi_run(tiny_run):
    return replace(tiny_run, model=SIZE)


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_every_scheme_trains_and_logs_how_even_its_experts_are(kimi_run, residual):
    run = replace(kimi_run, residual=residual, variant=residual.scheme)
    result = train(run, QUIET)
    rows = run.directory.read_metrics(run.train.batch_tokens).rows
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert math.isfinite(result["val_loss"])
    assert all(1 <= row["expert_imbalance"] <= 8 for row in rows)


def test_the_balance_loss_is_in_the_gradient_and_in_no_recorded_loss(kimi_run, tmp_path, change):
    """With weight 100 the experts are used more evenly; the first loss, before any step, is the same."""
    even = replace(kimi_run, model=replace(SIZE, kimi=replace(SIZE.kimi, balance_loss=100.0, balance_rate=0.0)))
    free = replace(kimi_run, model=replace(SIZE, kimi=replace(SIZE.kimi, balance_loss=0.0, balance_rate=0.0)))
    runs = [change(run, "execution", log_every=1) for run in (even, free)]
    first, last = [], []
    for run in runs:
        train(run, QUIET)
        rows = run.directory.read_metrics().rows
        first.append(rows[0]["train_loss"])
        last.append(rows[-1]["expert_imbalance"])
    assert first[0] == first[1]
    assert last[0] < last[1]


def test_the_bias_evens_out_the_experts(kimi_run, change):
    biased, free = (
        change(replace(kimi_run, model=replace(SIZE, kimi=replace(SIZE.kimi, balance_rate=rate))), "train", lr=0.01)
        for rate in (0.05, 0.0)
    )
    for run in (biased, free):
        train(run, QUIET)
    imbalance = [run.directory.read_metrics().rows[-1]["expert_imbalance"] for run in (biased, free)]
    assert imbalance[0] < imbalance[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_equals_never_stopped_bit_for_bit(kimi_run, change, tmp_path, monkeypatch, optimizer):
    """T3, with the choice biases and Muon's momentum of every expert."""
    run = change(kimi_run, "train", optimizer=optimizer)
    whole, cut = (change(run, "execution", runs_folder=str(tmp_path / name)) for name in ("whole", "cut"))
    expected = train(whole, QUIET)
    killed_after(8, cut, monkeypatch)
    assert train(cut, QUIET) == expected
    assert [r["train_loss"] for r in cut.directory.read_metrics().rows] == [
        r["train_loss"] for r in whole.directory.read_metrics().rows
    ]


def test_accumulation_changes_neither_the_tokens_nor_the_balance(kimi_run, change, tmp_path):
    """A1, A3, C4: in the first steps, before rounding can send a token to another expert."""
    at_once, in_parts = (
        change(kimi_run, "execution", micro_batch=m, runs_folder=str(tmp_path / str(m)), log_every=1) for m in (8, 2)
    )
    rows = []
    for run in (at_once, in_parts):
        train(run, QUIET)
        rows.append(run.directory.read_metrics().rows[:3])
    for one, other in zip(*rows, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert one["expert_imbalance"] == pytest.approx(other["expert_imbalance"], rel=0.01)
