"""The Kimi Linear backbone: layers, causality, matched starts, balance of experts, parameters and FLOPs."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.optim import Muon
from torch.utils.flop_counter import FlopCounterMode

from scaling.compute import forward_flops, non_embedding_parameters, parameters
from scaling.config import KimiConfig, ModelConfig, ResidualConfig
from scaling.errors import ConfigError, TrainingError
from scaling.memory import saved_bytes
from scaling.model.kernel_footprints import kernel_footprints
from scaling.model.kimi import KDA, MLA, Experts, check_kernels, sequence_balance
from scaling.model.language_model import LanguageModel
from scaling.training.optimizer import StackedMuon, build_optimizer, parameter_groups

VOCABULARY, T = 50, 96  # T is no multiple of KDA's chunk
SCHEMES = [ResidualConfig("baseline"), ResidualConfig("block", {"block_size": 3}), ResidualConfig("full")]
SIZE = ModelConfig(
    name="k", n_layers=5, d_model=48, n_heads=2, head_dim=16, d_ff=24, tied_head=False,
    kimi=KimiConfig(n_experts=8, experts_per_token=2, n_shared_experts=1, kv_rank=32),
)  # fmt: skip


def model_of(residual=SCHEMES[0], size=SIZE, vocabulary=VOCABULARY, seq_len=T):
    return LanguageModel(size, residual, vocabulary, seq_len)


def tokens_of(batch=2, seed=0):
    return torch.randint(VOCABULARY, (batch, T), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("n_layers", "mla"),
    [(12, [4, 8, 12]), (13, [4, 8, 12, 13]), (14, [4, 8, 12, 14]), (16, [4, 8, 12, 16]), (17, [4, 8, 12, 16, 17])],
)
def test_every_fourth_attention_and_the_last_is_mla(n_layers, mla):
    config = ModelConfig(name="m", n_layers=n_layers, d_model=8, n_heads=1, d_ff=8, head_dim=8, kimi=KimiConfig())
    assert [i + 1 for i in range(n_layers) if config.is_mla(i)] == mla


def test_layers_alternate_attention_and_experts():
    kinds = [type(s) for s in model_of().sublayers]
    assert kinds == [KDA, Experts, KDA, Experts, KDA, Experts, MLA, Experts, MLA, Experts]


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_no_token_sees_those_after_it(residual):
    model, tokens = model_of(residual), tokens_of()
    changed = tokens.clone()
    changed[:, 70:] = (changed[:, 70:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(before[:, :70], after[:, :70])
    assert (before[:, 70:] - after[:, 70:]).abs().amax() > 1e-3


def test_arms_share_their_start_and_agree_before_training():
    """M2, A6: with queries at 0 the reads are the stream divided by a number, which the PreNorms take out again."""
    baseline, *others = (model_of(residual) for residual in SCHEMES)
    expected = baseline.logits(tokens_of())
    shared = dict(baseline.named_parameters())
    for model in others:
        own = dict(model.named_parameters())
        assert all(torch.equal(own[name], p) for name, p in shared.items())
        torch.testing.assert_close(model.logits(tokens_of()), expected, rtol=1e-3, atol=1e-3)


def test_built_on_meta_and_materialised_is_built_directly():
    """M1, with the choice biases, which are buffers."""
    direct = model_of(SCHEMES[1]).state_dict()
    with torch.device("meta"):
        model = model_of(SCHEMES[1])
    model = model.to_empty(device="cpu")
    model.init_weights(seed=0)
    assert all(torch.equal(direct[name], tensor) for name, tensor in model.state_dict().items())
    assert any(name.endswith("e_score_correction_bias") for name in direct)


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_every_parameter_learns(residual):
    model, tokens = model_of(residual), tokens_of(4)
    (model(tokens, tokens) + 0.01 * model.routing.balance_loss).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # The keys of a read do not matter while its query is 0.
    assert silent == ([] if residual.scheme == "baseline" else ["residual.gains"])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_router_works_in_float32_and_the_experts_in_the_precision_of_the_rest(precision):
    seen, model = {}, model_of()
    experts = model.sublayers[1].mixer
    experts.gate.register_forward_hook(lambda _m, _i, out: seen.update(router=out[0].dtype))
    experts.experts.register_forward_hook(lambda _m, _i, out: seen.update(experts=out.dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        model(tokens_of(), tokens_of()).backward()
    assert seen == {"router": torch.float32, "experts": precision}
    assert experts.experts.gate_up_proj.grad.dtype == torch.float32


# --- balance


def test_the_balance_loss_is_1_when_use_is_even_and_grows_with_its_unevenness():
    scores, one_of_four = torch.full((2, 8, 4), 0.5), torch.eye(4).repeat(2, 2, 1)
    assert sequence_balance(scores, one_of_four) == pytest.approx(1)
    all_the_first = torch.tensor([1.0, 0, 0, 0]).expand(2, 8, 4)
    assert sequence_balance(all_the_first + 1e-9, all_the_first) == pytest.approx(4)


def test_the_balance_loss_does_not_depend_on_the_micro_batch():
    """A3, for what is added to the loss."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(4, 8, 6, generator=generator)
    taken = torch.zeros_like(scores).scatter(-1, torch.randint(6, (4, 8, 1), generator=generator), 1.0)
    parts = [sequence_balance(s, t) for s, t in zip(scores.split(1), taken.split(1), strict=True)]
    assert torch.stack(parts).mean() == pytest.approx(sequence_balance(scores, taken).item())


def test_load_counts_the_slots_of_every_layer():
    model, tokens = model_of(), tokens_of(3)
    model(tokens, tokens)
    assert model.routing.load.shape == (5, 8)
    assert model.routing.load.sum(1).tolist() == [tokens.numel() * 2] * 5


def test_the_choice_bias_changes_who_is_chosen_and_nothing_else():
    layer, x = model_of().sublayers[1], torch.randn(2, T, 48, generator=torch.Generator().manual_seed(0))
    layer.choice_bias[3] = 10
    assert layer(x, None).load[3] == 2 * T
    _, weights, _ = layer.mixer.gate(x)
    torch.testing.assert_close(weights.sum(-1), torch.full((2 * T,), SIZE.kimi.routed_scale))


# --- counts


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_parameters_are_the_models(residual):
    model, shape = model_of(residual), SIZE.shape(residual, VOCABULARY, T)
    groups = parameters(shape)
    assert sum(groups.values()) == sum(p.numel() for p in model.parameters())
    by_name = {
        "router": ".gate.weight",
        "experts": ".experts.",
        "shared_experts": ".shared_experts.",
    }
    for group, part in by_name.items():
        assert groups[group] == sum(p.numel() for name, p in model.named_parameters() if part in name), group
    for group, kind in (("kda", KDA), ("mla", MLA)):
        own = [p for s in model.sublayers if isinstance(s, kind) for p in s.mixer.parameters()]
        assert groups[group] == sum(p.numel() for p in own), group
    idle = groups["experts"] * 6 // 8
    total = sum(n for group, n in groups.items() if group not in ("embedding", "head"))
    assert non_embedding_parameters(shape) == total - idle


def test_flops_are_what_pytorch_counts_on_meta():
    """C1, C2: within 1 %, the recurrence apart, whose kernel is none of PyTorch's.

    PyTorch counts attention as if it were not causal, and values as wide as the keys they are padded to; it counts
    the convolutions over their padding; and it has no formula for grouped products, which stand for the experts.
    """
    shape = SIZE.shape(SCHEMES[0], VOCABULARY, T)
    with torch.device("meta"):
        model, tokens = model_of(), torch.zeros(2, T, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, kernel_footprints():
        model(tokens, tokens)
    counted = counter.get_total_flops() / tokens.numel()
    flops = forward_flops(shape)
    scores = flops["mla_scores"] * T / ((T + 1) / 2) * 2 * shape.qk_dim / (shape.qk_dim + shape.head_dim)
    otherwise_counted = ("kda_recurrence", "mla_scores", "kda_convolutions", "experts")
    ours = sum(n for component, n in flops.items() if component not in otherwise_counted) + scores
    theirs = counted - counter.flop_counts["Global"][torch.ops.aten.convolution] / tokens.numel()
    assert theirs == pytest.approx(ours, rel=0.01)


def test_a_tokens_experts_cost_what_its_products_do():
    """The grouped products that the test above leaves out, one token at a time."""
    shape = SIZE.shape(SCHEMES[0], VOCABULARY, T)
    experts = model_of().sublayers[1].mixer.experts
    experts.config._experts_implementation = "eager"
    x = torch.randn(1, 48, device="cpu")
    with FlopCounterMode(display=False) as counter:
        experts(x, torch.tensor([[2, 5]]), torch.ones(1, 2))
    assert counter.get_total_flops() * SIZE.n_layers == forward_flops(shape)["experts"]


def test_the_footprint_has_the_shapes_of_the_kernel_and_keeps_less_than_plain_pytorch():
    model, tokens = model_of(), tokens_of()
    with torch.device("meta"):
        on_meta, meta_tokens = model_of(), torch.zeros(2, T, dtype=torch.long)
    with kernel_footprints():
        footprint = saved_bytes(on_meta, meta_tokens, meta_tokens)
        on_meta(meta_tokens, meta_tokens).backward()
    assert all(p.grad is not None for p in on_meta.parameters())
    assert footprint < saved_bytes(model, tokens, tokens) / 5


# --- optimiser


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_stacked_experts_are_hidden_matrices_and_convolutions_and_decays_are_not(optimizer, tiny_run, change):
    """A5."""
    model = model_of(SCHEMES[1])
    hidden = {id(p) for p in parameter_groups(model)["hidden"]}
    for name, p in model.named_parameters():
        matrix = name.startswith("sublayers.") and p.ndim in (2, 3) and "conv1d" not in name
        assert (id(p) in hidden) == matrix, name
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    built = build_optimizer(model, change(tiny_run, "train", optimizer=optimizer).train)
    tokens = tokens_of()
    model(tokens, tokens).backward()
    built.step()
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert {name for name in before if name not in moved} <= {"residual.gains"}
    built.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_muon_takes_each_expert_as_a_matrix_of_its_own(tiny_run, change):
    """Two steps, the second with momentum; up to bfloat16, in which Muon makes matrices orthogonal: a few percent."""
    train = change(tiny_run, "train", optimizer="muon").train
    stack = model_of().sublayers[1].mixer.experts.down_proj
    start = stack.detach().clone()
    alone = [nn.Parameter(matrix.clone()) for matrix in start]
    one_by_one = Muon(alone, lr=train.lr, weight_decay=train.weight_decay, adjust_lr_fn="match_rms_adamw")
    together = StackedMuon([stack], train.lr, train.weight_decay)
    for seed in (0, 1):
        stack.grad = torch.randn(stack.shape, generator=torch.Generator().manual_seed(seed))
        for parameter, grad in zip(alone, stack.grad, strict=True):
            parameter.grad = grad.clone()
        one_by_one.step()
        together.step()
    moved, expected = stack - start, torch.stack(list(alone)) - start
    assert (moved - expected).norm() < 0.05 * expected.norm()


# --- what a user can get wrong


def test_bad_settings_are_named_together():
    with pytest.raises(ConfigError) as raised:
        KimiConfig(n_experts=4, experts_per_token=8, kv_rank=0)
    assert len(raised.value.problems) == 2
    with pytest.raises(ConfigError, match="Kimi Linear has no grouped heads"):
        ModelConfig(name="m", n_layers=1, d_model=8, n_heads=2, d_ff=8, n_kv_heads=1, kimi=KimiConfig())


def test_kernels_and_devices_that_do_not_go_together_are_refused_by_name(monkeypatch):
    def refused(on_gpu, says):
        with pytest.raises(TrainingError, match=says) as raised:
            check_kernels(on_gpu)
        assert "\n" not in str(raised.value)
        check_kernels(not on_gpu)

    refused(True, r"No module named 'fla'.: pip install 'attnres-scaling\[kimi\]'")
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    refused(True, "No module named 'fla.ops.kda'")
    kernels = ModuleType("fla.ops.kda")
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    refused(True, "has no attribute 'chunk_kda'")
    kernels.chunk_kda = object()
    refused(False, "without flash-linear")
