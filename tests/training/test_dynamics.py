"""Magnitudes, gradients and depth weights of sublayers: the numbers, and that training does not notice them."""

import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from interruption import killed_after
from rich.console import Console

from scaling.config import KimiConfig, ModelConfig, ResidualConfig
from scaling.data.shards import TokenReader, load_index
from scaling.dynamics_table import DYNAMICS
from scaling.errors import ConfigError
from scaling.model.language_model import LanguageModel
from scaling.model.residual.reference import Reference, rms_norm, sources_of_read
from scaling.records import RunDirectory
from scaling.training import dynamics
from scaling.training.run import train

SCHEMES = [ResidualConfig("baseline"), ResidualConfig("block", {"n_blocks": 2}), ResidualConfig("full")]
KIMI = ModelConfig(
    name="tiny-kimi", n_layers=2, d_model=32, n_heads=2, head_dim=16, d_ff=16,
    kimi=KimiConfig(n_experts=4, experts_per_token=2, kv_rank=16, mla_every=2, balance_rate=0.02),
)  # fmt: skip
MEASURED = [column for column in DYNAMICS if column not in ("attempt", "step", "tokens", "sublayer", "kind")]


def result_of(run):
    return train(run, Console(quiet=True))


@pytest.fixture
def with_and_without(tmp_path, change):
    """`with_and_without(run)`: the run with dynamics every other step and without, each in a folder of its own."""

    def _pair(run):
        return [
            change(run, "execution", runs_folder=str(tmp_path / str(every)), dynamics_every=every)
            for every in (2, None)
        ]

    return _pair


def assert_same_training(measured, plain):
    results = [result_of(run) for run in (measured, plain)]
    assert results[0] == results[1]  # with the hash of the weights
    columns = ("step", "train_loss", "val_loss", "grad_norm", "expert_imbalance")
    tables = [[[row[c] for c in columns] for row in run.directory.read_metrics().rows] for run in (measured, plain)]
    assert tables[0] == tables[1]
    assert measured.directory.read_dynamics()
    assert not (plain.directory.path / "dynamics.parquet").exists()


@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_training_is_the_same_bits_with_and_without(tiny_run, with_and_without, residual):
    assert_same_training(*with_and_without(replace(tiny_run, residual=residual, variant=residual.scheme)))


def test_training_is_the_same_bits_in_bf16_with_recomputed_micro_batches(tiny_run, change, with_and_without):
    run = change(change(tiny_run, "train", precision="bf16"), "execution", micro_batch=2, checkpoint_activations=True)
    assert_same_training(*with_and_without(run))


def test_training_of_experts_is_the_same_bits_with_and_without(tiny_run, with_and_without):
    """Their loads, biases and balance loss too."""
    measured, plain = with_and_without(replace(tiny_run, model=KIMI))
    assert_same_training(measured, plain)
    rows = measured.directory.read_dynamics()
    assert [row["kind"] for row in rows[:4]] == ["attention", "mlp", "attention", "mlp"]
    assert all(row["gradient_norm"] > 0 and len(row["weights"]) >= 1 for row in rows)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.slow
def test_a_compiled_model_is_measured_without_compiling_anew(tiny_run):
    model = LanguageModel(tiny_run.model, tiny_run.residual, 512, 64)
    batch = torch.randint(512, (2, 8, 64), generator=torch.Generator().manual_seed(0))
    expected = dynamics.measure(model, *batch[:, :4])
    model.compile(dynamic=False)
    torch._dynamo.utils.counters.clear()
    before = model(*batch)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compiled > 0
    assert dynamics.measure(model, *batch[:, :4]) == expected
    assert torch.equal(model(*batch), before)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled


def obvious(model, inputs, targets):
    """Every sublayer's read, weights and output, with its gradient, as the paper's definitions write them."""
    scheme, outputs, reads, weights = model.residual, [], [], []
    embedding = model.embedding(inputs)
    if scheme.name == "baseline":
        read = lambda i: (embedding + sum(outputs), None)  # noqa: E731
    else:
        reference = Reference(scheme.queries, scheme.gains, scheme.ends, scheme.eps)

        def read(i):
            sources = torch.stack(sources_of_read(embedding, outputs, scheme.ends))
            if i == 0:
                return embedding, torch.ones(sources.shape[:-1])
            keys = rms_norm(sources, scheme.gains[i - 1], scheme.eps)
            return reference.read([embedding, *outputs], i), (keys @ scheme.queries[i - 1]).softmax(0)

    for i, sublayer in enumerate(model.sublayers):
        hidden, given = read(i)
        output = sublayer(sublayer.norm(hidden), (model.cos, model.sin))
        output.retain_grad()
        reads.append(hidden)
        weights.append(given)
        outputs.append(output)
    hidden, _ = read(len(outputs))
    logits = model.norm(hidden) @ model.embedding.weight.T
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return reads, weights, outputs


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("residual", SCHEMES, ids=lambda r: r.scheme)
def test_numbers_are_those_of_an_obvious_computation(residual, checkpointed):
    shape = ModelConfig(name="m", n_layers=4, d_model=24, n_heads=2, head_dim=8, d_ff=32)
    model = LanguageModel(shape, residual, 50, 16).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.checkpoint_activations = checkpointed
    inputs, targets = torch.randint(50, (2, 3, 16), generator=generator)
    measured = dynamics.measure(model, inputs, targets)
    assert all(parameter.grad is None for parameter in model.parameters())

    rows = zip(measured, *obvious(model, inputs, targets), strict=True)
    for i, (row, hidden, weights, output) in enumerate(rows):
        assert (row["sublayer"], row["kind"]) == (i, ("attention", "mlp")[i % 2])
        assert row["hidden_rms"] == pytest.approx(hidden.square().mean().sqrt().item(), rel=1e-10)
        assert row["output_rms"] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-10)
        assert row["gradient_norm"] == pytest.approx(output.grad.square().sum().sqrt().item(), rel=1e-10)
        if weights is None:
            assert [row[c] for c in ("entropy", "embedding_share", "predecessor_share", "weights")] == [None] * 4
            continue
        assert row["weights"] == pytest.approx(weights.mean((1, 2)).tolist(), rel=1e-10)
        assert row["entropy"] == pytest.approx(-(weights * weights.log()).sum(0).mean().item(), rel=1e-10, abs=1e-12)
        assert (row["embedding_share"], row["predecessor_share"]) == (row["weights"][0], row["weights"][-1])


def rows_of(run):
    return run.directory.read_dynamics()


def without_attempt(rows):
    return [{k: v for k, v in row.items() if k != "attempt"} for row in rows]


def test_rows_are_of_the_start_of_every_so_many_steps_and_of_the_end(tiny_run, change):
    run = change(tiny_run, "execution", dynamics_every=8)
    result_of(run)
    rows = rows_of(run)
    assert [(r["step"], r["sublayer"]) for r in rows] == [(s, i) for s in (0, 8, 12) for i in range(4)]
    assert all(row["tokens"] == 512 * row["step"] and row["attempt"] == 1 for row in rows)
    assert rows[0]["output_rms"] != rows[4]["output_rms"]


@pytest.mark.parametrize("residual", SCHEMES[1:], ids=lambda r: r.scheme)
def test_weights_start_uniform(tiny_run, change, residual):
    run = change(replace(tiny_run, residual=residual, variant=residual.scheme), "execution", dynamics_every=12)
    result_of(run)
    start, end = rows_of(run)[:4], rows_of(run)[4:]
    for row in start:
        sources = len(row["weights"])
        assert row["weights"] == pytest.approx([1 / sources] * sources, rel=1e-6)
        assert row["entropy"] == pytest.approx(math.log(sources), abs=1e-6)
    sources = {"block": [1, 2, 2, 3], "full": [1, 2, 3, 4]}
    assert [len(row["weights"]) for row in start] == sources[residual.scheme]
    for row in end[1:]:
        assert sum(row["weights"]) == pytest.approx(1, rel=1e-6)
        assert row["entropy"] < math.log(len(row["weights"])) - 1e-6


def test_tokens_and_numbers_do_not_depend_on_the_micro_batch(tiny_run, change, tmp_path):
    runs = [
        change(tiny_run, "execution", micro_batch=m, runs_folder=str(tmp_path / str(m)), dynamics_every=2)
        for m in (8, 1)
    ]
    for run in runs:
        result_of(run)
    one, other = (rows_of(run) for run in runs)
    assert one[:4] == other[:4]  # equal weights, equal bits
    for a, b in zip(one, other, strict=True):
        for column in MEASURED:
            assert a[column] == pytest.approx(b[column], rel=1e-3), (a["step"], column)


def test_tokens_are_whole_sequences_and_at_least_one(corpus):
    index = load_index(corpus[0], corpus[1])
    for seq_len, validation, expected in ((64, 1280, 16), (64, 640, 10), (600, 6000, 1), (2048, 4096, 1)):
        reader = TokenReader(index, "validation", seq_len)
        inputs, targets = dynamics.probe_tokens(reader, validation)
        assert inputs.shape == targets.shape == (expected, seq_len)
        assert torch.equal(inputs[0, 1:], targets[0, :-1])
        assert torch.equal(inputs, torch.from_numpy(reader.windows(range(expected)))[:, :-1])


@pytest.mark.parametrize("step", [4, 12])
def test_resumed_it_has_the_rows_of_a_run_never_killed(tiny_run, change, tmp_path, monkeypatch, step):
    """T1 to T3; after the last checkpoint nothing could be measured any more."""
    tiny_run = change(tiny_run, "execution", dynamics_every=2)
    whole = change(tiny_run, "execution", runs_folder=str(tmp_path / "whole"))
    result_of(whole)
    killed_after(step, tiny_run, monkeypatch)
    result_of(tiny_run)
    assert without_attempt(rows_of(tiny_run)) == without_attempt(rows_of(whole))
    assert {r["step"]: r["attempt"] for r in rows_of(tiny_run)} == {s: 1 + (s > step) for s in range(0, 13, 2)}


def test_rows_measured_again_count_once(tiny_run, change, tmp_path, monkeypatch):
    """T2: killed two steps after a checkpoint, with rows of them."""
    tiny_run = change(tiny_run, "execution", dynamics_every=2)
    whole = change(tiny_run, "execution", runs_folder=str(tmp_path / "whole"))
    result_of(whole)
    append = RunDirectory.append_dynamics

    def append_and_die(self, rows):
        append(self, rows)
        if rows[0]["step"] == 6:
            raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_dynamics", append_and_die)
        with pytest.raises(SystemExit):
            result_of(tiny_run)
    assert rows_of(tiny_run)[-1]["step"] == 6
    result_of(tiny_run)
    assert without_attempt(rows_of(tiny_run)) == without_attempt(rows_of(whole))
    assert {r["attempt"] for r in rows_of(tiny_run) if r["step"] == 6} == {2}


def test_a_damaged_file_is_set_aside_and_the_run_goes_on(tiny_run, change, monkeypatch):
    run = change(tiny_run, "execution", dynamics_every=2)
    killed_after(4, run, monkeypatch)
    path = run.directory.path / "dynamics.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    result_of(run)
    assert {row["step"] for row in rows_of(run)} == {6, 8, 10, 12}
    assert (run.directory.path / "dynamics.damaged").exists()


def test_its_seconds_are_not_those_of_training(tiny_run, change, monkeypatch):
    """By a clock that a measurement moves by a thousand seconds and everything else by a thousandth a look."""
    now, measure = [0.0], dynamics.measure

    def look():
        now[0] += 1e-3
        return now[0]

    def slow(*arguments):
        now[0] += 1000.0
        return measure(*arguments)

    monkeypatch.setattr("scaling.training.clock.time", SimpleNamespace(perf_counter=look))
    monkeypatch.setattr(dynamics, "measure", slow)
    run = change(tiny_run, "execution", dynamics_every=4)
    result_of(run)
    assert now[0] > 4000
    assert 0 < run.directory.read_metrics().device_seconds < 1


def test_shares_of_weights_are_refused_before_anything_starts(tiny_run, change):
    with pytest.raises(ConfigError, match=r"fsdp leaves it a share; take ddp, or leave dynamics_every out"):
        change(tiny_run, "execution", devices=2, strategy="fsdp", dynamics_every=4)
    change(tiny_run, "execution", strategy="fsdp", dynamics_every=4)  # on one device there is nothing to share
