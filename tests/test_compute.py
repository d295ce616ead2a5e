"""Parameters and FLOPs: analytic against the model and against PyTorch's counter on the meta device."""

from dataclasses import asdict, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scaling.compute import (
    flops_per_token,
    forward_flops,
    ledgers,
    non_embedding_parameters,
    parameters,
    shape_of_record,
)
from scaling.config import DataConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from scaling.model.language_model import LanguageModel
from scaling.model.residual.reference import read_sources

SHAPES = {
    "tied": {},
    "untied": {"tied_head": False},
    "grouped": {"n_kv_heads": 1},
    "wide-heads": {"head_dim": 64},
}
SCHEMES = [ResidualConfig("baseline"), ResidualConfig("block", {"n_blocks": 3}), ResidualConfig("full")]


def run_of(residual=SCHEMES[0], seq_len=128, **shape):
    model = ModelConfig(**{"name": "m", "n_layers": 3, "d_model": 96, "n_heads": 2, "d_ff": 200, **shape})
    train = TrainConfig(seq_len=seq_len, batch_tokens=seq_len, tokens=1e4, validation_tokens=seq_len)
    return RunConfig(model, DataConfig("d", vocab_size=700), train, residual)


def build(run):
    return LanguageModel(run.model, run.residual, run.data.vocab_size, run.train.seq_len)


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parameters_are_the_models(residual, shape):
    run = run_of(residual, **shape)
    model, groups = build(run), parameters(run.shape)
    assert sum(groups.values()) == sum(p.numel() for p in model.parameters())
    by_group = {
        "embedding": model.embedding.weight.numel(),
        "residual": sum(p.numel() for p in model.residual.parameters()),
        "norm": sum(p.numel() for n, p in model.named_parameters() if "norm" in n),
        "mlp": sum(p.numel() for n, p in model.named_parameters() if ".gate." in n or ".up." in n or ".down." in n),
    }
    assert {g: groups[g] for g in by_group} == by_group
    assert non_embedding_parameters(run.shape) == sum(groups.values()) - groups["embedding"] - groups["head"]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_flops_are_what_pytorch_counts_on_meta(shape):
    """C1, C2: within 1 %; PyTorch counts attention as if it were not causal, the ledger its causal half."""
    run = run_of(**shape)
    with torch.device("meta"):
        model = build(run)
        tokens = torch.zeros(2, run.train.seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens, tokens)
    counted = forward.get_total_flops() / tokens.numel()
    flops = forward_flops(run.shape)
    causal_share = (run.train.seq_len + 1) / 2 / run.train.seq_len
    analytic = sum(flops.values()) + flops["attention_scores"] * (1 / causal_share - 1)
    assert analytic == pytest.approx(counted, rel=0.01)
    assert flops["attention_scores"] > 0.05 * analytic

    with FlopCounterMode(display=False) as both:
        loss.backward()
    assert 2 * analytic == pytest.approx(both.get_total_flops() / tokens.numel(), rel=0.01)


@pytest.mark.parametrize("residual", SCHEMES[1:], ids=lambda r: r.scheme)
def test_depth_mixing_flops_are_those_of_the_reads(residual):
    """Logits and weighted sums as PyTorch counts the reference's, and 2 D for each mean square."""
    run = run_of(residual)
    scheme = build(run).residual
    d, counted = run.model.d_model, 0
    for n in scheme.sources_per_read[1:]:
        values = [torch.zeros(1, 4, d, device="meta") for _ in range(n)]
        with FlopCounterMode(display=False) as counter:
            read_sources(torch.zeros(d, device="meta"), torch.ones(d, device="meta"), values, 0.0)
        counted += counter.get_total_flops() / 4
    mean_squares = 2 * d * (1 + run.model.n_sublayers)
    assert scheme.flops_per_token - mean_squares == pytest.approx(counted, rel=0.01)
    assert forward_flops(run.shape)["depth_mixing"] == scheme.flops_per_token


def test_tied_and_untied_twins_cost_the_same():
    """C3: the lookup costs nothing, the head always counts."""
    tied, untied = run_of().shape, run_of(tied_head=False).shape
    assert forward_flops(tied) == forward_flops(untied)
    assert ledgers(tied) == ledgers(untied)


def test_compute_does_not_depend_on_accumulation_or_devices(change):
    """C4."""
    base = replace(run_of(), train=replace(run_of().train, batch_tokens=1024))
    for values in ({"micro_batch": 1}, {"micro_batch": 8}, {"devices": 2}):
        run = change(base, "execution", **values)
        assert run.tokens * flops_per_token(run.shape, "model") == base.tokens * flops_per_token(base.shape, "model")


def test_the_attention_term_grows_with_the_context():
    """C1: at 8,192 tokens it is far from negligible."""
    short, long = (forward_flops(run_of(seq_len=t).shape) for t in (128, 8192))
    assert long["attention_scores"] / short["attention_scores"] == pytest.approx(8193 / 129)
    assert long["attention_scores"] > 0.38 * sum(long.values())


def test_ledgers_are_what_they_say():
    shape = run_of(SCHEMES[1]).shape
    assert flops_per_token(shape, "6nd") == 6 * non_embedding_parameters(shape)
    assert flops_per_token(shape, "model") == 3 * sum(forward_flops(shape).values())
    attention = flops_per_token(shape, "paper") - flops_per_token(shape, "6nd")
    assert attention == 3 * forward_flops(shape)["attention_scores"]
    with pytest.raises(ValueError, match="seconds"):
        flops_per_token(shape, "seconds")


def test_compute_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, scaling.compute, scaling.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shape_round_trips_through_a_run_file():
    shape = run_of(SCHEMES[2]).shape
    assert shape_of_record(asdict(shape)) == shape
