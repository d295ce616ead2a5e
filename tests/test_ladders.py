"""The paper's ladder in both backbones: shapes, parameters and compute against its Table 2 and figure 4."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scaling.compute import PFLOPS_DAY, flops_per_token, non_embedding_parameters, parameters
from scaling.config import ModelConfig, ResidualConfig
from scaling.loading import load, read_yaml
from scaling.model.language_model import LanguageModel
from scaling.sweep.devices import Device
from scaling.sweep.estimate import rate_of_peak, wall_seconds
from scaling.sweep.plan import read_plan
from scaling.sweep.queue import LocalQueue

ROOT = Path(__file__).parents[1]
# arXiv 2603.15031, table 2: activated parameters, tokens, layers = heads, width, width of an expert, rate, sequences
# a step; and PFLOP/s-days at which figure 4 plots the size.
TABLE_2 = {
    "194m": (194e6, 38.7e9, 12, 896, 400, 2.99e-3, 192, 0.6916),
    "241m": (241e6, 45.4e9, 13, 960, 432, 2.80e-3, 256, 1.0405),
    "296m": (296e6, 62.1e9, 14, 1024, 464, 2.50e-3, 320, 1.6937),
    "436m": (436e6, 87.9e9, 16, 1168, 528, 2.20e-3, 384, 3.3528),
    "528m": (528e6, 119.0e9, 17, 1264, 560, 2.02e-3, 432, 5.5974),
}
BLOCKS = {"194m": 6, "241m": 7, "296m": 7, "436m": 8, "528m": 9}
SCHEMES = [ResidualConfig("baseline"), ResidualConfig("block", {"block_size": 4}), ResidualConfig("full")]
SWEEPS = ("paper", "paper-dense", "node", "node-kimi")


def size_of(backbone, size):
    return load(ModelConfig, ROOT / "configs" / "model" / f"{backbone}-{size}.yaml")


@pytest.mark.parametrize("size", TABLE_2)
@pytest.mark.parametrize("backbone", ["dense", "kimi"])
def test_depth_heads_and_width_are_table_2s(backbone, size):
    _, _, layers, width, d_ff, *_ = TABLE_2[size]
    config = size_of(backbone, size)
    assert (config.n_layers, config.n_heads, config.d_model, config.head_dim) == (layers, layers, width, 128)
    if backbone == "kimi":
        assert config.d_ff == d_ff


@pytest.mark.parametrize(("backbone", "within"), [("dense", 0.005), ("kimi", 0.03)])
@pytest.mark.parametrize("size", TABLE_2)
def test_activated_parameters_are_table_2s(backbone, within, size):
    shape = size_of(backbone, size).shape(SCHEMES[0], 50_304, 8192)
    assert non_embedding_parameters(shape) == pytest.approx(TABLE_2[size][0], rel=within)


@pytest.mark.parametrize("size", TABLE_2)
def test_kimis_compute_is_what_figure_4_plots(size):
    _, tokens, *_, plotted = TABLE_2[size]
    shape = size_of("kimi", size).shape(SCHEMES[0], 50_304, 8192)
    assert flops_per_token(shape, "paper") * tokens / PFLOPS_DAY == pytest.approx(plotted, rel=0.03)


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
@pytest.mark.parametrize("size", TABLE_2)
@pytest.mark.parametrize("backbone", ["dense", "kimi"])
def test_every_size_builds_on_meta_with_every_scheme(backbone, size, residual):
    config = size_of(backbone, size)
    with torch.device("meta"):
        model = LanguageModel(config, residual, 50_304, 8192)
    counted = sum(parameters(config.shape(residual, 50_304, 8192)).values())
    assert counted == sum(p.numel() for p in model.parameters())
    if residual.scheme == "block":
        assert len(model.residual.ends) == BLOCKS[size]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_sweeps_train_matched_arms_of_every_size(name):
    plan = read_plan(ROOT / "sweeps" / f"{name}.yaml")
    arms = {}
    for run in plan.runs:
        arms.setdefault(run.model.name.partition("-")[2], {})[run.variant] = run
    assert set(arms) == set(TABLE_2)
    for size, by_variant in arms.items():
        assert set(by_variant) == {"baseline", "block", "full"}
        _, tokens, *_, rate, sequences, _ = TABLE_2[size]
        baseline = by_variant["baseline"]
        assert all(run.train == baseline.train and run.tokens == baseline.tokens for run in by_variant.values())
        assert (baseline.train.lr, baseline.batch_sequences, baseline.train.seq_len) == (rate, sequences, 8192)
        assert baseline.train.schedule == "cosine"
        wanted = tokens if name.startswith("paper") else 20 * non_embedding_parameters(baseline.shape)
        assert baseline.tokens == pytest.approx(wanted, abs=baseline.train.batch_tokens)


@pytest.mark.parametrize("name", SWEEPS)
def test_the_corpus_of_a_sweep_is_large_enough_or_may_be_read_again(name):
    for run in read_plan(ROOT / "sweeps" / f"{name}.yaml").runs:
        there = run.data.max_train_tokens or 99e9  # FineWeb-Edu's sample of 100 billion
        assert run.tokens < there or run.train.allow_repeat


# --- what the headers say, at their rate: an H100 at 40 % of its peak

RATE = rate_of_peak(989)


def header_says(name, pattern):
    (said,) = re.findall(pattern, (ROOT / "sweeps" / f"{name}.yaml").read_text())
    return float(said)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_crash_costs_no_run_more_than_a_quarter_of_an_hour(name):
    for run in read_plan(ROOT / "sweeps" / f"{name}.yaml").runs:
        assert run.execution.checkpoint_every * wall_seconds(run, RATE) / run.steps < 15.1 * 60


@pytest.mark.parametrize("name", SWEEPS)
def test_the_disk_that_checkpoints_need_is_that_of_the_header(name):
    """Two of each run: weights and AdamW's two moments, four bytes each."""
    runs = read_plan(ROOT / "sweeps" / f"{name}.yaml").runs
    needed = sum(2 * 12 * sum(parameters(run.shape).values()) for run in runs)
    assert header_says(name, r"(\d+) GB of checkpoints") == pytest.approx(needed / 1e9, rel=0.01)


@pytest.mark.parametrize("name", ["node", "node-kimi"])
def test_the_hours_of_8_gpus_are_those_of_the_queue(name):
    minute = 0

    class Played(LocalQueue):
        def _launch(self, job):
            end = minute + round(wall_seconds(job.config, RATE) / 60)
            job.process = SimpleNamespace(poll=lambda: 0 if minute >= end else None)

    plan = read_plan(ROOT / "sweeps" / f"{name}.yaml", {"execution.runs_folder": "/nowhere"})
    queue = Played(plan.runs, [Device(gpu=str(i)) for i in range(8)], lambda *_: None)
    while queue.advance():
        minute += 1
    assert header_says(name, r"about (\d+) hours of 8 GPUs") == pytest.approx(minute / 60, abs=0.5)


@pytest.mark.parametrize("name", ["fineweb-edu", "fineweb-edu-11b", "c4"])
def test_corpora_of_the_hub_are_pinned_to_a_commit(name):
    revision = read_yaml(ROOT / "configs" / "data" / f"{name}.yaml")["hub_revision"]
    assert len(revision) == 40
    assert int(revision, 16)
