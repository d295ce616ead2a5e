"""Attention Residuals: blocks, fast reads against slow ones, and the faults that others made (rows M1 to M11).

What holds for every scheme is in `test_schemes.py`.
"""

import shutil

import pytest
import scheme_cases
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheme_cases import EPS, doubles, randomise, walk
from torch import nn

from scaling.config import ResidualConfig
from scaling.errors import ConfigError
from scaling.model.residual import SCHEMES, build_scheme
from scaling.model.residual.block import Block, block_ends
from scaling.model.residual.depth_attention import key_logits, merge, mix
from scaling.model.residual.reference import Reference, read_sources, sources_of_read


def model_of(scheme="block", options=None, **shape):
    return scheme_cases.model_of(ResidualConfig(scheme, options or {}), **shape)


# --- blocks


@pytest.mark.parametrize(
    ("n_sublayers", "n_blocks", "expected"),
    [
        (24, 8, (3, 6, 9, 12, 15, 18, 21, 24)),
        (26, 8, (3, 6, 9, 13, 16, 19, 22, 26)),
        (28, 8, (3, 7, 10, 14, 17, 21, 24, 28)),
        (32, 8, (4, 8, 12, 16, 20, 24, 28, 32)),
        (34, 8, (4, 8, 12, 17, 21, 25, 29, 34)),
        *((n, 1, (n,)) for n in (24, 26, 28, 32, 34)),
        *((n, n, tuple(range(1, n + 1))) for n in (24, 26, 28, 32, 34)),
    ],
)
def test_boundaries_of_a_number_of_blocks(n_sublayers, n_blocks, expected):
    assert block_ends(n_sublayers, n_blocks=n_blocks) == expected


@pytest.mark.parametrize(
    ("n_sublayers", "expected"),
    [
        (24, (4, 8, 12, 16, 20, 24)),
        (26, (4, 8, 12, 16, 20, 24, 26)),
        (28, (4, 8, 12, 16, 20, 24, 28)),
        (32, (4, 8, 12, 16, 20, 24, 28, 32)),
        (34, (4, 8, 12, 16, 20, 24, 28, 32, 34)),
    ],
)
def test_boundaries_of_a_block_size_in_sublayers(n_sublayers, expected):
    assert block_ends(n_sublayers, block_size=4) == expected


@given(st.integers(1, 60), st.data())
def test_sizes_of_balanced_blocks_differ_by_at_most_one(n_sublayers, data):
    n_blocks = data.draw(st.integers(1, n_sublayers))
    ends = block_ends(n_sublayers, n_blocks=n_blocks)
    sizes = [b - a for a, b in zip((0, *ends), ends, strict=False)]
    assert len(sizes) == n_blocks
    assert sum(sizes) == n_sublayers
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 24), st.data())
def test_sources_conserve_every_output_exactly_once(n_sublayers, data):
    """M3: at every read the sources sum to the embedding plus all earlier outputs, each in one source."""
    ends = block_ends(n_sublayers, n_blocks=data.draw(st.integers(1, n_sublayers)))
    # Source values are powers of two, so a sum says exactly which outputs it holds.
    values = [torch.full((1, 1, 1), 2.0**i, dtype=torch.float64) for i in range(n_sublayers + 1)]
    scheme = Block(n_sublayers, 1, EPS, n_blocks=len(ends)).double()
    state = scheme.start(values[0])
    for done in range(n_sublayers + 1):
        sources = [s.value for s in state.sources] + ([state.partial] if state.partial is not None else [])
        held = [int(s.item()) for s in sources]
        assert held[0] == 1
        assert sum(held) == 2 ** (done + 1) - 1
        assert sum(bin(h).count("1") for h in held) == done + 1
        assert len(sources) == scheme.sources_per_read[done]
        assert held == [int(s.item()) for s in sources_of_read(values[0], values[1 : done + 1], ends)]
        if done < n_sublayers:
            state = scheme.write(state, done, values[done + 1])


# --- against the reference


@pytest.mark.parametrize("options", [{"n_blocks": 1}, {"n_blocks": 3}, {"n_blocks": 7}, {"block_size": 3}])
@pytest.mark.parametrize("d_model", [1, 5, 16])
def test_values_and_gradients_match_the_reference(options, d_model):
    """M2, M8: reads, final read, and gradients of the embedding, the first sublayer, queries and gains."""
    torch.manual_seed(0)
    n = 7
    scheme = Block(n, d_model, EPS, **options).double()
    randomise(scheme)
    maps = [torch.randn(d_model, d_model, dtype=torch.float64, requires_grad=True) for _ in range(n)]
    embedding = torch.randn(2, 3, d_model, dtype=torch.float64, requires_grad=True)
    leaves = [embedding, *maps, scheme.queries, scheme.gains]
    weights = [torch.randn(2, 3, d_model, dtype=torch.float64) for _ in range(n + 1)]

    def run(judge):
        reads = walk(judge, embedding, maps)
        loss = sum((w * r).sum() for w, r in zip(weights, reads, strict=True))
        return reads, torch.autograd.grad(loss, leaves)

    reads, gradients = run(scheme)
    expected_reads, expected_gradients = run(Reference(scheme.queries, scheme.gains, scheme.ends, EPS))
    torch.testing.assert_close(reads, expected_reads, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_reads", [1, 3])
def test_gradcheck_of_key_logits(n_reads):
    assert torch.autograd.gradcheck(lambda v, w: key_logits(v, w, EPS), (doubles(2, 2, 3), doubles(n_reads, 3)))


@pytest.mark.parametrize("n_sources", [1, 2, 5])
@pytest.mark.parametrize("n_reads", [1, 3])
def test_gradcheck_of_a_mix(n_sources, n_reads):
    values = [doubles(2, 2, 3, seed=i) for i in range(n_sources)]
    logits = [doubles(n_reads, 2, 2, seed=10 + i) for i in range(n_sources)]

    def function(*both):
        mixed = mix(list(both[:n_sources]), list(both[n_sources:]))
        return *mixed.outs, mixed.log_sum_exp

    assert torch.autograd.gradcheck(function, (*values, *logits))


@pytest.mark.parametrize("n_finished", [1, 2, 4])
@pytest.mark.parametrize("n_since", [0, 1, 3])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_gradcheck_of_a_merge(n_finished, n_since, is_open, normed):
    n = n_finished + n_since
    values = [doubles(2, 2, 3, seed=i) for i in range(n)]
    logits = [doubles(2 if i < n_finished else 1, 2, 2, seed=20 + i) for i in range(n)]
    others = ([doubles(3, seed=50)] if normed else []) + ([doubles(2, 2, 3, seed=60), doubles(3, seed=61)] * is_open)

    def function(*leaves):
        values, logits, others = leaves[:n], leaves[n : 2 * n], list(leaves[2 * n :])
        gain = others.pop(0) if normed else None
        mixed = mix(list(values[:n_finished]), list(logits[:n_finished]))
        since = [(v, logit[0]) for v, logit in zip(values[n_finished:], logits[n_finished:], strict=True)]
        return merge(mixed, 1, since, tuple(others) or None, gain, EPS)

    assert torch.autograd.gradcheck(function, (*values, *logits, *others))


def test_as_many_blocks_as_sublayers_is_full_bit_for_bit():
    """M4."""
    tokens = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))
    results = []
    for scheme, options in (("full", {}), ("block", {"n_blocks": 6}), ("block", {"block_size": 1})):
        model = model_of(scheme, options)
        randomise(model.residual)
        loss = model(tokens, tokens)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


# --- zero queries


def queries_are_zero(model):
    return torch.count_nonzero(model.residual.queries) == 0 and bool((model.residual.gains == 1).all())


@pytest.mark.parametrize("scheme", ["block", "full"])
def test_queries_start_at_zero_however_the_model_is_built(scheme):
    """M1: directly, from the meta device, inside Lightning, and after loading a baseline's weights."""
    from scaling.config import DataConfig, RunConfig, TrainConfig
    from scaling.training.module import TrainingModule

    options = {"n_blocks": 2} if scheme == "block" else {}
    direct = model_of(scheme, options)
    assert queries_are_zero(direct)

    with torch.device("meta"):
        materialised = model_of(scheme, options)
    materialised.to_empty(device="cpu")
    materialised.init_weights(0)
    assert queries_are_zero(materialised)
    state, expected = materialised.state_dict(), direct.state_dict()
    assert all(torch.equal(state[k], expected[k]) for k in expected)
    assert torch.equal(materialised.cos, direct.cos)

    config = RunConfig(
        direct.config, DataConfig(name="d", vocab_size=300), TrainConfig(seq_len=8, batch_tokens=8, tokens=8,
        validation_tokens=8), ResidualConfig(scheme, options)
    )  # fmt: skip
    assert queries_are_zero(TrainingModule(config).model)

    missing = direct.load_state_dict(model_of("baseline", seed=5).state_dict(), strict=False)
    assert set(missing.missing_keys) == {"residual.queries", "residual.gains"}
    assert queries_are_zero(direct)


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 4, 6])
def test_zero_queries_give_the_baselines_logits(n_blocks):
    """M2: the sources sum to the residual stream, their mean is it over k, and every consumer is an RMSNorm."""
    tokens = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))
    baseline = model_of("baseline", norm_eps=1e-30).double()
    other = model_of("block", {"n_blocks": n_blocks}, norm_eps=1e-30).double()
    torch.testing.assert_close(other.logits(tokens), baseline.logits(tokens), rtol=1e-12, atol=1e-12)
    other.residual.finish = lambda state: state.sources[-1].value  # what leaving out the final read would do
    assert not torch.allclose(other.logits(tokens), baseline.logits(tokens), rtol=0.1)


@pytest.mark.parametrize(("d_model", "n_layers"), [(64, 8), (1264, 17)])
@pytest.mark.parametrize("scheme", ["block", "full"])
def test_arms_agree_at_step_zero_with_the_default_eps(scheme, d_model, n_layers):
    """M10: at the narrowest and the widest shape, float32 logits differ by less than 1e-4 of their scale."""
    tokens = torch.randint(40, (1, 10), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, baseline = (model_of(s, d_model=d_model, n_layers=n_layers).logits(tokens) for s in (scheme, "baseline"))
    assert (ours - baseline).abs().max() < 1e-4 * baseline.abs().max()


# --- memory, precision, compile


def saved_by_reads(scheme, n, d_model, tokens=32):
    """What autograd keeps for the reads alone, each storage once: numbers of width D a token, and other scalars."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if tensor.numel() >= tokens and storage.data_ptr() not in kept:
            wide = tensor.shape[-1] == d_model
            assert not (wide and tensor.ndim > 3), "a stack (N, B, T, D)"
            kept[storage.data_ptr()] = (storage, wide)  # held, so that no address is used twice
        return tensor

    state = scheme.start(torch.randn(1, tokens, d_model, requires_grad=True))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        for i in range(n):
            read = scheme.normed_read(state, i, nn.RMSNorm(d_model))
            state = scheme.write(state, i, read * 1.0)
        scheme.finish(state)
    sizes = {wide: sum(s.nbytes() // 4 for s, w in kept.values() if w == wide) / tokens for wide in (True, False)}
    return sizes[True] / d_model, sizes[False]


@pytest.mark.parametrize("scheme", ["block", "full"])
def test_saved_activations_grow_linearly_and_hold_no_stack(scheme):
    """M5: about one vector a token and sublayer, and a scalar for each read of a source."""
    for n in (16, 32, 64):
        options = {"n_blocks": 8} if scheme == "block" else {}
        built = build_scheme(ResidualConfig(scheme, options), n, 64, EPS)
        vectors, scalars = saved_by_reads(built, n, 64)
        assert vectors <= 1.3 * n + 24
        assert scalars <= sum(built.sources_per_read) + 16 * n


@pytest.mark.parametrize(
    ("scheme", "options"), [("block", {"n_blocks": 3}), ("block", {"block_size": 4}), ("full", {})]
)
def test_each_query_belongs_to_a_read_of_two_sources_or_more(scheme, options):
    """M9."""
    model = model_of(scheme, options)
    randomise(model.residual)
    tokens = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))
    model(tokens, tokens).backward()
    assert bool((model.residual.queries.grad.abs().sum(1) > 0).all())
    assert model.residual.sources_per_read[0] == 1
    assert min(model.residual.sources_per_read[1:]) >= 2


@pytest.mark.parametrize("scheme", ["block", "full"])
def test_gradients_under_autocast_are_those_outside(scheme):
    """M11: also where the backward pass itself runs under autocast."""
    built = build_scheme(ResidualConfig(scheme), 8, 32, EPS)
    randomise(built)
    maps = [torch.randn(32, 32, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    values = [torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(9), requires_grad=True)]
    norm = nn.RMSNorm(32, eps=EPS)

    def gradients():
        state, total = built.start(values[0]), 0.0
        for i, scale in enumerate(maps):
            read = built.normed_read(state, i, norm)
            state = built.write(state, i, read * scale[i])
            total = total + (read * scale[0]).sum()
        return torch.autograd.grad(total + built.finish(state).sum(), [values[0], *built.parameters(), norm.weight])

    plain = gradients()
    with torch.autocast("cpu", torch.bfloat16):
        cast = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


def test_read_of_bfloat16_values_computes_in_float32():
    torch.manual_seed(0)
    values = [torch.randn(2, 4, 32, dtype=torch.bfloat16) for _ in range(4)]
    weight = torch.randn(32)
    logits = [key_logits(v, weight.unsqueeze(0), EPS) for v in values]
    assert logits[0].dtype == torch.float32
    out = mix(values, logits).outs[0]
    wide = read_sources(weight, torch.ones(32), [v.float() for v in values], EPS)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wide.to(torch.bfloat16), rtol=0, atol=0.02)


@pytest.mark.parametrize("d_model", [37, 896, 960, 1168, 1264])
def test_any_width(d_model):
    """M7."""
    tokens = torch.randint(40, (1, 4), generator=torch.Generator().manual_seed(0))
    model = model_of("block", {"n_blocks": 2}, d_model=d_model, n_layers=1)
    loss = model(tokens, tokens)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# --- other reads


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("block", {"n_blocks": 0}, "residual.options.n_blocks is 0: must be a whole number from 1 to 6"),
        ("block", {"n_blocks": 3, "query": "dynamic"}, "residual.options.query is 'dynamic': must be static or input"),
        ("full", {"key_norm": 0}, "residual.options.key_norm is 0: must be true or false"),
        ("full", {"activation": None}, "residual.options.activation is None: must be softmax or sigmoid"),
        ("full", {"mixing": "scalars", "query": "input"}, "residual.options.query must be left out where"),
        ("full", {"mixing": "scalars", "key_norm": False}, "residual.options.key_norm must be left out where"),
        ("full", {"n_heads": 5}, "residual.options.n_heads is 5: must divide the model's width, 24"),
        (
            "full",
            {"window": 7},
            "residual.options.window is 7: must be a whole number from 1 to 6, the model's sublayers",
        ),
        ("block", {"window": 2}, "residual.options.window is not an option of block: it has n_blocks, "),
        ("full", {"n_blocks": 2}, "residual.options.n_blocks is not an option of full: it has query, "),
        ("hyper_connections", {"n_streams": 0}, "residual.options.n_streams is 0: must be a whole number from 1 to 16"),
        ("mhc_lite", {"n_streams": 6}, "residual.options.n_streams is 6: must be a whole number from 1 to 5"),
        ("denseformer", {"period": 2.0}, "residual.options.period is 2.0: must be a whole number from 1 to 6"),
    ],
)
def test_options_that_cannot_be_are_one_line_each(scheme, options, message):
    with pytest.raises(ConfigError) as error:
        build_scheme(ResidualConfig(scheme, options), 6, 24, EPS)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scheme", ["block", "full"])
def test_default_options_are_the_fast_read(scheme):
    """Named or not, and with the parameters it always had."""
    options = {"query": "static", "mixing": "attention", "activation": "softmax", "key_norm": True, "n_heads": 1}
    plain, named = model_of(scheme, n_layers=4), model_of(scheme, options, n_layers=4)
    assert plain.residual.variant is named.residual.variant is None
    assert set(dict(named.residual.named_parameters())) == {"queries", "gains"}
    assert torch.equal(plain.logits(scheme_cases.TOKENS), named.logits(scheme_cases.TOKENS))


def test_a_window_that_holds_everything_is_the_fast_read():
    fast = build_scheme(ResidualConfig("full"), 6, 8, EPS).double()
    slow = build_scheme(ResidualConfig("full", {"window": 6}), 6, 8, EPS).double()
    randomise(fast)
    slow.variant.load_state_dict(fast.state_dict())
    maps = [doubles(8, 8, seed=i) for i in range(6)]
    reads, expected = (walk(scheme, doubles(2, 3, 8), maps) for scheme in (slow, fast))
    torch.testing.assert_close(reads, expected, rtol=1e-12, atol=1e-12)


# --- the registry


def test_a_new_scheme_is_one_class(monkeypatch):
    from scaling.model.residual.baseline import Baseline

    monkeypatch.setattr("scaling.model.residual.scheme.SCHEMES", dict(SCHEMES))

    class Doubled(Baseline, name="doubled"):
        def __init__(self, n_sublayers, d_model, eps, *, factor: float = 2.0):
            super().__init__(n_sublayers, d_model, eps)
            self.factor = factor

        def write(self, state, sublayer, output):
            return state + self.factor * output

    tokens = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))
    assert not torch.equal(model_of("doubled").logits(tokens), model_of("baseline").logits(tokens))
    assert torch.equal(model_of("doubled", {"factor": 1.0}).logits(tokens), model_of("baseline").logits(tokens))
    assert isinstance(model_of("doubled").residual, nn.Module)


@pytest.mark.parametrize("fault", ["option", "abstract", "constructor"])
def test_a_scheme_that_cannot_be_built_is_one_line(monkeypatch, fault):
    from scaling.model.residual.baseline import Baseline
    from scaling.model.residual.scheme import ResidualScheme

    class Faulty(ResidualScheme if fault == "abstract" else Baseline):
        def __init__(self, n_sublayers, d_model, eps, *, initial: float = 0.1):
            super().__init__(n_sublayers, d_model, eps)
            nn.init.constant_(torch.empty(1), initial)
            if fault == "constructor":
                self.missing  # noqa: B018

    monkeypatch.setitem(SCHEMES, "faulty", Faulty)
    options = {"initial": "foo"} if fault == "option" else {}
    with pytest.raises(ConfigError, match=r"residual scheme faulty cannot be built with options") as error:
        build_scheme(ResidualConfig("faulty", options), 4, 8, EPS)
    assert "\n" not in str(error.value)
    assert "test_residual.py" in str(error.value)


@pytest.mark.parametrize("text", ["def broken(:\n", "import no_such_module\n", "1 / 0\n"])
def test_a_file_of_schemes_that_cannot_be_imported_is_named(tmp_path, text):
    """In a copy of the package, in a process of its own."""
    import subprocess
    import sys
    from pathlib import Path

    package = Path(__file__).parents[2] / "scaling"
    shutil.copytree(package, tmp_path / "scaling", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scaling/model/residual/mine.py").write_text(text)
    sweep = Path(__file__).parents[2] / "sweeps/demo.yaml"
    command = [sys.executable, "-m", "scaling", "sweep", str(sweep), "--dry-run"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "mine.py" in done.stderr
