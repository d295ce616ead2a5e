"""Groups, schedules, and Muon beside AdamW."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaling.config import ModelConfig, ResidualConfig, TrainConfig
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import build_optimizer, learning_rate_factor, parameter_groups

TRAIN = TrainConfig(seq_len=8, batch_tokens=8, tokens=800, validation_tokens=8)
TOKENS = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(0))


def model_of(scheme="block", tied_head=True):
    config = ModelConfig(name="m", n_layers=2, d_model=16, n_heads=1, head_dim=8, d_ff=16, tied_head=tied_head)
    return LanguageModel(config, ResidualConfig(scheme), 40, 8) if scheme != "block" else LanguageModel(
        config, ResidualConfig(scheme, {"n_blocks": 2}), 40, 8
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("scheme", ["baseline", "block", "full"])
def test_every_parameter_is_in_exactly_one_group(scheme, tied_head, optimizer):
    """A5."""
    model = model_of(scheme, tied_head)
    built = build_optimizer(model, replace(TRAIN, optimizer=optimizer))
    grouped = [id(p) for group in built.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_queries_gains_and_embedding_are_never_decayed_and_never_muons(optimizer):
    """A5."""
    model = model_of(tied_head=False)
    built = build_optimizer(model, replace(TRAIN, optimizer=optimizer))
    decay = {id(p): g["weight_decay"] for g in built.param_groups for p in g["params"]}
    muons = {id(p) for g in built.param_groups if "ns_steps" in g for p in g["params"]}
    for name, p in model.named_parameters():
        hidden = name.startswith("sublayers.") and p.ndim == 2
        assert decay[id(p)] == (0.1 if hidden or name == "head.weight" else 0.0), name
        assert (id(p) in muons) == (hidden and optimizer == "muon"), name


@given(
    st.sampled_from(["cosine", "wsd"]), st.integers(10, 2000), st.floats(0, 0.4), st.floats(0.01, 0.5), st.floats(0, 1)
)
def test_schedules_rise_to_the_peak_and_fall_to_the_end(schedule, steps, warmup, decay, end):
    config = replace(TRAIN, schedule=schedule, warmup_fraction=warmup, decay_fraction=decay, final_lr_fraction=end)
    factors = [learning_rate_factor(config, steps, step) for step in range(steps)]
    n_warm = round(warmup * steps)
    assert all(0 < f <= 1 + 1e-12 for f in factors[:n_warm])
    assert factors[max(0, n_warm - 1)] == pytest.approx(1)
    assert factors[:n_warm] == sorted(factors[:n_warm])
    assert factors[n_warm:] == sorted(factors[n_warm:], reverse=True)
    assert factors[-1] == pytest.approx(end, abs=1e-9)


def test_wsd_is_flat_between_warm_up_and_decay():
    config = replace(TRAIN, schedule="wsd", warmup_fraction=0.1, decay_fraction=0.2)
    factors = [learning_rate_factor(config, 100, step) for step in range(100)]
    assert set(factors[10:80]) == {1.0}
    assert factors[89] == pytest.approx(1 - 0.9 * 0.5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_schedule_drives_every_group_also_after_loading(optimizer):
    model = model_of()
    built = build_optimizer(model, replace(TRAIN, optimizer=optimizer, lr=1.0))
    scheduler = torch.optim.lr_scheduler.LambdaLR(built, lambda step: 0.5**step)
    for _ in range(3):
        model(TOKENS, TOKENS).backward()
        built.step()
        scheduler.step()
    again = build_optimizer(model, replace(TRAIN, optimizer=optimizer, lr=1.0))
    again.load_state_dict(built.state_dict())
    assert {g["lr"] for g in again.param_groups} == {0.125}
    follow = torch.optim.lr_scheduler.LambdaLR(again, lambda step: 0.5**step)
    follow.load_state_dict(scheduler.state_dict())
    follow.step()
    assert {g["lr"] for g in again.param_groups} == {0.0625}


def test_muon_moves_hidden_matrices_and_adamw_the_rest():
    model = model_of()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    built = build_optimizer(model, replace(TRAIN, optimizer="muon", weight_decay=0.0, lr=0.01))
    model(TOKENS, TOKENS.flip(1)).backward()
    built.step()
    for name, p in model.named_parameters():
        still = name == "residual.gains"  # a gain's gradient is the query's multiple, and queries start at 0
        assert torch.equal(p, before[name]) == still, name
    # Muon's step has nearly equal singular values; a step of AdamW's on the same matrix has not.
    name = "sublayers.0.query.weight"
    singular = torch.linalg.svdvals(dict(model.named_parameters())[name].detach() - before[name])
    assert singular.max() / singular.min() < 3


def test_groups_name_the_parts():
    groups = parameter_groups(model_of(tied_head=False))
    assert set(groups) == {"hidden", "head", "rest"}
    assert len(groups["head"]) == 1
    assert len(groups["hidden"]) == 2 * (4 + 3)
