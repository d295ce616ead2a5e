"""One run on several devices, by either strategy: the same run, and checkpoints that are nobody's own (rows C4, M9)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interruption import killed_after
from processes import train_by_command_line
from rich.console import Console

from scaling.compute import parameters
from scaling.config import ResidualConfig
from scaling.errors import ConfigError, TrainingError
from scaling.training.run import train

QUIET = Console(quiet=True)
STRATEGIES = ("ddp", "fsdp")


@pytest.fixture
def on_two(tiny_run, change, tmp_path):
    """`on_two(strategy, ...)`: the tiny run on two devices in a folder of its own."""

    def _run(strategy, run=tiny_run, **execution):
        return change(run, "execution", runs_folder=str(tmp_path / strategy), devices=2, strategy=strategy, **execution)

    return _run


def losses_of(run, column="train_loss"):
    return [row[column] for row in run.directory.read_metrics(run.train.batch_tokens).rows]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_train_the_same_model(tiny_run, on_two, tmp_path, strategy):
    """M9, A1 to A3, C4: all parameters used; batches, losses, norms and compute as of one process."""
    two, one = on_two(strategy), tiny_run
    results = [train_by_command_line(two, tmp_path), train(one, QUIET)]
    for key in ("batches_hash", "data_hash", "tokens", "val_tokens"):
        assert results[0][key] == results[1][key], key
    assert results[0]["val_loss"] == pytest.approx(results[1]["val_loss"], rel=1e-6)
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-6)
    assert losses_of(two, "grad_norm") == pytest.approx(losses_of(one, "grad_norm"), rel=1e-5)
    facts = [run.directory.read_run() for run in (two, one)]
    for key in ("training", "flops_per_token", "parameters", "shape"):
        assert facts[0][key] == facts[1][key], key
    assert [row["tokens"] for row in two.directory.read_metrics(512).rows] == [1024 * i for i in range(1, 7)]


@pytest.mark.parametrize(("before", "after"), [("ddp", None), ("fsdp", None), (None, "fsdp")])
def test_a_run_goes_on_with_another_number_of_devices(tiny_run, on_two, change, tmp_path, monkeypatch, before, after):
    """Weights, moments and schedule from a checkpoint of the other kind: the losses are those of one device.

    Killed within a number of micro-batches that is no whole number of steps of the other kind.
    """
    whole = change(tiny_run, "execution", runs_folder=str(tmp_path / "whole"))
    train(whole, QUIET)
    first, then = (
        change(
            on_two(strategy) if strategy else tiny_run,
            "execution",
            runs_folder=str(tmp_path / "moved"),
            micro_batch=micro_batch,
            checkpoint_every=2,
        )
        for strategy, micro_batch in ((before, 4), (after, 1))
    )
    killed_after(10, first, monkeypatch)
    if after is None:
        train(then, QUIET)
    else:
        train_by_command_line(then, tmp_path)
    assert losses_of(then) == pytest.approx(losses_of(whole), rel=1e-6)
    assert [row["attempt"] for row in then.directory.read_metrics().rows] == [1, 1, 1, 1, 1, 2]


def test_equal_weights_have_one_hash_whoever_holds_them(tiny_run, on_two, change, tmp_path, monkeypatch):
    """Also the records: what is left to do after the last checkpoint is only to say what there is."""
    whole = change(tiny_run, "execution", runs_folder=str(tmp_path / "whole"))
    train(whole, QUIET)
    killed_after(12, tiny_run, monkeypatch)
    shared = on_two("fsdp")
    Path(shared.execution.runs_folder).symlink_to(tiny_run.execution.runs_folder)
    assert train_by_command_line(shared, tmp_path) == whole.directory.read_result()


def test_a_checkpoint_of_shares_holds_what_one_device_writes(tiny_run, on_two, change, tmp_path):
    """Every entry, shape and number of the optimiser's state."""
    runs = on_two("fsdp"), tiny_run
    train_by_command_line(runs[0], tmp_path)
    train(runs[1], QUIET)
    shared, alone = (torch.load(run.directory.last_checkpoint, weights_only=True) for run in runs)
    assert shared["state_dict"].keys() == alone["state_dict"].keys()
    for name, value in alone["state_dict"].items():
        torch.testing.assert_close(shared["state_dict"][name], value, rtol=1e-3, atol=1e-4)
    (ours,), (theirs,) = shared["optimizer_states"], alone["optimizer_states"]
    assert ours["param_groups"] == theirs["param_groups"]
    for number, moments in theirs["state"].items():
        for key, value in moments.items():
            torch.testing.assert_close(ours["state"][number][key], value, rtol=1e-2, atol=1e-4, check_stride=False)


def test_dynamics_are_measured_by_one_process_and_change_nothing(tiny_run, on_two, change, tmp_path):
    with_and_without = [on_two("ddp", dynamics_every=every) for every in (4, None)]
    with_and_without[1] = change(with_and_without[1], "execution", runs_folder=str(tmp_path / "without"))
    results = [train_by_command_line(run, tmp_path) for run in with_and_without]
    assert results[0] == results[1]
    one = change(tiny_run, "execution", dynamics_every=4)
    train(one, QUIET)
    tables = [run.directory.read_dynamics() for run in (with_and_without[0], one)]
    for ours, alone in zip(*tables, strict=True):
        assert (ours["step"], ours["sublayer"]) == (alone["step"], alone["sublayer"])
        for column in ("output_rms", "hidden_rms", "gradient_norm", "entropy", "weights"):
            assert ours[column] == pytest.approx(alone[column], rel=1e-3, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_in_bf16_with_compiled_checkpointed_micro_batches(tiny_run, on_two, change, tmp_path, strategy):
    """With more than the first bucket of DDP's reducer, 1 MiB, at which torch.compile may split the graph."""
    wide = change(
        change(tiny_run, "model", d_model=128, d_ff=256, n_layers=4), "train", precision="bf16", tokens=512 * 4
    )
    bf16 = replace(wide, residual=ResidualConfig("block", {"block_size": 4}))
    assert sum(parameters(bf16.shape).values()) * 4 > 2**20
    everything = {"compile": True, "checkpoint_activations": True, "micro_batch": 2}
    two = on_two(strategy, bf16, **everything)
    train_by_command_line(two, tmp_path)
    train(bf16, QUIET)
    assert losses_of(two) == pytest.approx(losses_of(bf16), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["baseline", "block", "full"])
def test_twenty_steps_are_the_same_in_every_way(tiny_run, change, monkeypatch, scheme):
    """As `benchmarks/equality.py` prints, with its bounds: 1e-6 at the first step, 1e-5 at the twentieth."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import equality

    folder = tiny_run.execution.data_folder
    ways = equality.modes(tiny_run)
    reference = equality.losses(tiny_run, scheme, ways.pop(equality.REFERENCE), folder)
    assert set(reference) == set(range(1, equality.STEPS + 1))
    for name, execution in ways.items():
        off = equality.differences(equality.losses(tiny_run, scheme, execution, folder), reference)
        assert equality.within(name, off), (name, off)


def test_muon_in_shares_is_refused_before_anything_starts(on_two, tiny_run, change):
    refused = r"execution\.strategy is 'fsdp', train\.optimizer is 'muon'.*take ddp, or adamw"
    with pytest.raises(ConfigError, match=refused):
        on_two("fsdp", change(tiny_run, "train", optimizer="muon"))
    on_two("ddp", change(tiny_run, "train", optimizer="muon"))


def test_a_scalar_cannot_be_shared_and_is_named(tiny_run):
    from scaling.model.language_model import LanguageModel
    from scaling.training.sharding import shard

    model = LanguageModel(tiny_run.model, tiny_run.residual, 512, 64)
    model.residual.scale = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(TrainingError, match=r"cannot divide the scalar residual\.scale"):
        shard(model, None)
