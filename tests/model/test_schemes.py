"""What holds for every residual scheme and ablation; what is one scheme's own is in the test files beside this one."""

import shutil
from dataclasses import replace

import pytest
import torch
from interruption import killed_after
from processes import train_by_command_line
from rich.console import Console
from scheme_cases import CASES, EPS, SCHEMES_ONCE, TOKENS, built, doubles, model_of, over, randomise, walk
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scaling.model.residual import SCHEMES
from scaling.training.run import train


def test_every_registered_scheme_is_a_case():
    assert {case.config.scheme for case in CASES.values()} == set(SCHEMES)


@over()
@pytest.mark.parametrize("d_model", [2, 6, 16])
def test_values_and_gradients_match_the_reference(name, d_model):
    """M2, M8: reads, final read, and gradients of the embedding, the sublayers and every parameter."""
    n = 7
    scheme = built(name, n, d_model).double()
    randomise(scheme, scale=0.7)
    maps = [doubles(d_model, d_model, seed=10 + i) for i in range(n)]
    embedding = doubles(2, 3, d_model)
    leaves = [embedding, *maps, *scheme.parameters()]
    weights = [doubles(2, 3, d_model, seed=30 + i).detach() for i in range(n + 1)]

    def run(judge):
        reads = walk(judge, embedding, maps)
        loss = sum((w * r).sum() for w, r in zip(weights, reads, strict=True))
        return reads, torch.autograd.grad(loss, leaves)

    reads, gradients = run(scheme)
    expected_reads, expected_gradients = run(CASES[name].reference(scheme))
    torch.testing.assert_close(reads, expected_reads, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-8, atol=1e-8)


@over()
def test_depth_weights_are_those_with_which_a_read_is_made(name):
    """Of schemes that have them: solved for from the reads, head by head; of several the mean. A softmax's sum to 1."""
    n, d_model = 7, 24
    scheme = built(name, n, d_model).double()
    randomise(scheme, scale=0.4)
    state = scheme.start(doubles(2, 3, d_model))
    for sublayer in range(n):
        weights = scheme.read_weights(state, sublayer)
        if weights is None:
            return
        values = [s.value for s in state.sources] + ([] if state.partial is None else [state.partial])
        assert weights.shape == (len(values), 2, 3)
        heads = (scheme.options.n_heads, -1)
        of_heads = torch.stack(values, -1).unflatten(-2, heads)
        read = scheme.read(state, sublayer).unflatten(-1, heads).unsqueeze(-1)
        solved = torch.linalg.lstsq(of_heads, read).solution.squeeze(-1).mean(-2)
        torch.testing.assert_close(weights, solved.movedim(-1, 0), rtol=1e-8, atol=1e-8)
        if scheme.options.activation == "softmax":
            torch.testing.assert_close(weights.sum(0), torch.ones(2, 3, dtype=torch.float64))
        state = scheme.write(state, sublayer, doubles(2, 3, d_model, seed=sublayer + 2))


@over()
def test_gradcheck(name):
    scheme = built(name, 4, 2).double()
    randomise(scheme, scale=0.5)
    maps = [doubles(2, 2, seed=10 + i).detach() for i in range(4)]
    assert torch.autograd.gradcheck(lambda e: tuple(walk(scheme, e, maps)), doubles(1, 2, 2))


@over()
def test_shared_parameters_are_bit_identical_across_arms(name):
    """A6: the extra parameters of an arm do not move the others."""
    ours, baseline = model_of(CASES[name].config).state_dict(), model_of(CASES["baseline"].config).state_dict()
    assert {key for key in ours if not key.startswith("residual.")} == set(baseline)
    assert all(torch.equal(ours[key], tensor) for key, tensor in baseline.items())


@over()
def test_it_starts_as_the_baseline_or_does_not(name):
    """M2: the logits before training, in float64; where they are the baseline's, to rounding."""
    case = CASES[name]
    ours, baseline = (model_of(c.config, norm_eps=1e-30).double().logits(TOKENS) for c in (case, CASES["baseline"]))
    if case.starts_as_baseline:
        torch.testing.assert_close(ours, baseline, rtol=1e-12, atol=1e-12)
    else:
        assert (ours - baseline).abs().max() > 0.1 * baseline.abs().max()


@over()
def test_flops_are_what_pytorch_counts_of_the_reference_on_meta(name):
    """C1: within 1 %, and 2 D for each mean square, which is no contraction to PyTorch."""
    n, d = 6, 96
    with torch.device("meta"):
        scheme = built(name, n, d)
        embedding = torch.zeros(2, 4, d)
    reference = CASES[name].reference(scheme)
    with FlopCounterMode(display=False) as counter:
        state = reference.start(embedding)
        for i in range(n):
            state = reference.write(state, i, reference.read(state, i) * 1.0)
        reference.finish(state)
    expected = counter.get_total_flops() / 8 + 2 * d * CASES[name].norms(scheme)
    assert scheme.flops_per_token == pytest.approx(expected, rel=0.01)
    assert scheme.n_parameters == sum(p.numel() for p in scheme.parameters())


@over()
def test_gradient_flows_to_every_parameter(name):
    """M9: from the first step on, so that data-parallel training needs no search for unused parameters."""
    model = model_of(CASES[name].config)
    model(TOKENS, TOKENS).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    randomise(model.residual)
    model.zero_grad()
    model(TOKENS, TOKENS).backward()
    assert [n for n, p in model.named_parameters() if not p.grad.any()] == []


@over()
def test_weights_stay_float32_under_autocast(name):
    """M11: reads and recorded weights under bf16 autocast are bit for bit those outside it, also for bf16 outputs."""
    scheme = built(name, 8, 32)
    randomise(scheme, scale=0.3)
    generator = torch.Generator().manual_seed(0)
    outputs = [torch.randn(2, 4, 32, dtype=torch.bfloat16, generator=generator) for _ in range(8)]

    def run():
        state, reads = scheme.start(torch.ones(2, 4, 32)), []
        for i, output in enumerate(outputs):
            weights = scheme.read_weights(state, i)
            reads += [scheme.read(state, i), *([] if weights is None else [weights])]
            state = scheme.write(state, i, output)
        return [*reads, scheme.finish(state)]

    plain = run()
    with torch.autocast("cpu", torch.bfloat16):
        cast = run()
    assert {r.dtype for r in plain + cast} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


@over()
def test_activation_checkpointing_changes_nothing(name):
    model = model_of(CASES[name].config)
    randomise(model.residual)
    results = []
    for model.checkpoint_activations in (False, True):
        results.append(torch.autograd.grad(model.hidden(TOKENS).square().sum(), list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@over()
def test_a_normed_read_is_the_norm_of_the_read(name):
    scheme = built(name).double()
    randomise(scheme)
    norm = nn.RMSNorm(16, eps=EPS, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    state = scheme.start(doubles(2, 3, 16))
    for i in range(7):
        read = scheme.read(state, i)
        torch.testing.assert_close(scheme.normed_read(state, i, norm), norm(read), rtol=1e-12, atol=1e-12)
        state = scheme.write(state, i, torch.tanh(read))


@over()
def test_saved_activations_grow_linearly_with_depth(name):
    """M5: twice the sublayers keep about twice the vectors, and no stack of sources."""
    kept = [saved_vectors(built(name, n, 64), n) for n in (12, 24, 48)]
    assert kept[2] - kept[1] <= 2.2 * (kept[1] - kept[0])


def saved_vectors(scheme, n, tokens=8):
    """Vectors of width D a token that autograd keeps, each storage once; parameters and scalars left out."""
    size, storages = tokens * scheme.d_model, {}
    own = {p.untyped_storage().data_ptr() for p in scheme.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if tensor.numel() >= size and storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    state = scheme.start(torch.randn(1, tokens, scheme.d_model, requires_grad=True))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        for i in range(n):
            state = scheme.write(state, i, scheme.read(state, i) * 1.0)
        scheme.finish(state)
    return sum(s.nbytes() for s in storages.values()) / (4 * size)


@over()
def test_it_is_the_same_from_the_meta_device_and_from_its_weights(name):
    """M1: built on meta and materialised, and loaded into a model of another seed."""
    config = CASES[name].config
    direct = model_of(config)
    with torch.device("meta"):
        materialised = model_of(config)
    materialised.to_empty(device="cpu")
    materialised.init_weights(0)
    scheme = built(name, direct.config.n_sublayers, direct.config.d_model)
    for model in (direct, materialised):
        own = dict(model.residual.named_parameters())
        assert own.keys() == dict(scheme.named_parameters()).keys()
        assert all(torch.equal(own[key], start) for key, start in scheme.named_parameters())
    assert torch.equal(materialised.logits(TOKENS), direct.logits(TOKENS))
    randomise(direct.residual)
    loaded = model_of(config, seed=7)
    loaded.load_state_dict(direct.state_dict())
    assert torch.equal(loaded.logits(TOKENS), direct.logits(TOKENS))


@over(slow=lambda name: name not in SCHEMES_ONCE)
def test_killed_and_resumed_equals_never_stopped_bit_for_bit(name, tiny_run, change, tmp_path, monkeypatch):
    """T3."""
    run = replace(tiny_run, residual=CASES[name].config, variant="arm")
    whole = change(run, "execution", runs_folder=str(tmp_path / "whole"))
    train(whole, Console(quiet=True))
    killed_after(8, run, monkeypatch)
    train(run, Console(quiet=True))
    results = [(r.directory.path / "result.json").read_bytes() for r in (whole, run)]
    assert results[0] == results[1]


@pytest.mark.slow
@over(SCHEMES_ONCE)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_the_same_model(name, strategy, tiny_run, change, tmp_path):
    """M9: without a search for unused parameters, and with the scheme's own in shards."""
    one = replace(tiny_run, residual=CASES[name].config, variant="arm")
    two = change(one, "execution", runs_folder=str(tmp_path / "two"), devices=2, strategy=strategy)
    ours, expected = train_by_command_line(two, tmp_path), train(one, Console(quiet=True))
    assert ours["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@over(slow=lambda name: CASES[name].heavy)
def test_compiled_equals_eager_and_does_not_recompile(name):
    """M6, T7: float32 rounding, forward and backward, and in validation; one graph each; the same checkpoint keys."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = (model_of(CASES[name].config, d_model=16, n_layers=2) for _ in range(2))
    for model in (eager, compiled):
        randomise(model.residual, scale=0.5)  # sharper weights amplify rounding
    compiled.compile(dynamic=False)
    assert compiled.state_dict().keys() == eager.state_dict().keys()
    for step in range(4):
        tokens = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(step))
        losses = []
        for model in (eager, compiled):
            model.zero_grad()
            loss = model(tokens, tokens)
            loss.backward()
            losses.append(loss.detach())
        assert losses[0].dtype == losses[1].dtype == torch.float32
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        for (parameter, a), b in zip(eager.named_parameters(), compiled.parameters(), strict=True):
            assert (b.grad - a.grad).abs().max() <= 5e-5 * a.grad.abs().max(), parameter
        with torch.no_grad():
            torch.testing.assert_close(compiled(tokens, tokens), losses[0], rtol=1e-5, atol=1e-6)
        if step == 1:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs == 2
    assert not torch._dynamo.utils.counters["graph_break"]
