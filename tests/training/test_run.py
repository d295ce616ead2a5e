"""One run on real text: resume, matched arms, faults (rows A1 to A6, T1 to T8)."""

import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
import yaml
from interruption import killed_after
from rich.console import Console

from scaling.compute import flops_per_token
from scaling.config import ResidualConfig
from scaling.errors import Busy, CheckpointError, DataError, Diverged, OutOfMemory, TrainingError
from scaling.training.checkpoint import is_whole
from scaling.training.optimizer import learning_rate_factor
from scaling.training.run import train

QUIET = Console(quiet=True)


def result_of(run):
    return train(run, QUIET)


def in_folder(run, change, tmp_path, name):
    return change(run, "execution", runs_folder=str(tmp_path / name))


def test_a_run_learns_and_writes_its_records(tiny_run):
    result = result_of(tiny_run)
    directory = tiny_run.directory
    metrics = directory.read_metrics(tiny_run.train.batch_tokens)
    assert [r["step"] for r in metrics.rows] == [2, 4, 6, 8, 10, 12]
    assert [r["step"] for r in metrics.rows if r["val_loss"] is not None] == [4, 8, 12]
    assert metrics.rows[-1]["val_loss"] < metrics.rows[1]["val_loss"]
    assert all(r["seconds"] > 0 for r in metrics.rows)
    assert result == directory.read_result()
    assert result["tokens"] == 512 * 12
    assert directory.read_status()["state"] == "finished"
    facts = directory.read_run()
    assert facts["training"]["tokens"] == 512 * 12
    assert facts["attempts"][0]["machine"]["cores"] >= 1
    assert yaml.safe_load((directory.path / "config.yaml").read_text())["train"]["lr"] == tiny_run.train.lr


def test_the_rate_in_the_table_is_the_one_the_step_used(tiny_run):
    result_of(tiny_run)
    rows = tiny_run.directory.read_metrics().rows
    expected = [
        tiny_run.train.lr * learning_rate_factor(tiny_run.train, tiny_run.steps, row["step"] - 1) for row in rows
    ]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected)
    assert rows[-1]["learning_rate"] == pytest.approx(tiny_run.train.final_lr_fraction * tiny_run.train.lr)


def test_the_result_does_not_depend_on_how_often_rows_are_written(tiny_run, change, tmp_path):
    """T6."""
    often = change(in_folder(tiny_run, change, tmp_path, "often"), "execution", log_every=1)
    assert result_of(often) == result_of(tiny_run)


@pytest.mark.parametrize("limit", [0.01, None])
def test_the_gradient_is_clipped_to_the_norm_given(tiny_run, change, tmp_path, monkeypatch, limit):
    from torch.optim import AdamW

    norms, step = [], AdamW.step

    def spy(self, *arguments, **options):
        result = step(self, *arguments, **options)  # the closure, which computes and clips, runs inside
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norms.append(torch.nn.utils.get_total_norm(grads).item())
        return result

    monkeypatch.setattr(AdamW, "step", spy)
    result_of(change(tiny_run, "train", clip_norm=limit))
    rows = tiny_run.directory.path.parent.glob("*/metrics.csv")
    assert len(list(rows)) == 1
    assert norms
    assert all(n == pytest.approx(0.01, rel=1e-3) for n in norms) == (limit is not None)


def test_a_scheme_with_a_scalar_parameter_trains_to_its_end(tiny_run, monkeypatch):
    from scaling.model.residual import SCHEMES
    from scaling.model.residual.baseline import Baseline

    class ReZero(Baseline):
        def __init__(self, n_sublayers, d_model, eps):
            super().__init__(n_sublayers, d_model, eps)
            self.scale = torch.nn.Parameter(torch.tensor(0.5))

        def write(self, state, sublayer, output):
            return state + self.scale * output

    monkeypatch.setitem(SCHEMES, "rezero", ReZero)
    assert result_of(replace(tiny_run, residual=ResidualConfig("rezero"), variant="rezero"))["val_loss"] > 0


def test_the_same_command_again_is_a_no_op(tiny_run):
    result_of(tiny_run)
    before = {p.name: p.stat().st_mtime_ns for p in tiny_run.directory.path.iterdir() if p.name != "lock"}
    result_of(tiny_run)
    assert {p.name: p.stat().st_mtime_ns for p in tiny_run.directory.path.iterdir() if p.name != "lock"} == before


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_equals_never_stopped_bit_for_bit(tiny_run, change, tmp_path, monkeypatch, optimizer):
    """T1, T3: killed after a checkpoint in the middle of the only epoch."""
    tiny_run = change(change(tiny_run, "train", optimizer=optimizer), "execution", micro_batch=2)
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    killed_after(4, tiny_run, monkeypatch)
    assert tiny_run.directory.read_status()["state"] == "lost"
    result_of(tiny_run)
    files = [(r.directory.path / "result.json").read_bytes() for r in (whole, tiny_run)]
    assert files[0] == files[1]
    tables = [r.directory.read_metrics().rows for r in (whole, tiny_run)]
    assert [r["attempt"] for r in tables[1]] == [1, 1, 2, 2, 2, 2]
    without_time = [[{k: v for k, v in r.items() if k not in ("seconds", "attempt")} for r in t] for t in tables]
    assert without_time[0] == without_time[1]


@pytest.mark.parametrize(("before", "after"), [(4, 1), (2, 8), (1, 8), (8, 2)])
@pytest.mark.parametrize("step", [3, 6])
def test_a_run_goes_on_with_another_micro_batch(tiny_run, change, tmp_path, monkeypatch, before, after, step):
    """T8: what a step is does not change, whatever step the run goes on from."""
    tiny_run = change(tiny_run, "execution", log_every=1, checkpoint_every=3, micro_batch=before)
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    killed_after(step, tiny_run, monkeypatch)
    result_of(change(tiny_run, "execution", micro_batch=after))
    ours, expected = (run.directory.read_metrics(512).rows for run in (tiny_run, whole))
    assert [row["attempt"] for row in ours] == [1] * step + [2] * (12 - step)
    for key in ("train_loss", "val_loss", "grad_norm"):
        values = [[row[key] for row in rows if row[key] is not None] for rows in (ours, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-5), key


def test_killed_after_the_last_checkpoint_still_gives_the_result(tiny_run, change, tmp_path, monkeypatch):
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    killed_after(12, tiny_run, monkeypatch)
    assert result_of(tiny_run) == whole.directory.read_result()


@pytest.mark.slow
def test_sigkill_at_any_moment(tiny_run, change, tmp_path):
    """T3: a real process killed at five moments of its life."""
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(asdict(tiny_run)))
    for seconds in (5.0, 6.0, 7.0, 8.0, 9.0):
        process = subprocess.Popen([sys.executable, "-m", "scaling", "train", str(config)])
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    result_of(tiny_run)
    files = [(r.directory.path / "result.json").read_bytes() for r in (whole, tiny_run)]
    assert files[0] == files[1]


@pytest.mark.parametrize("damage", [["last.ckpt"], ["last.ckpt", "previous.ckpt"]])
def test_a_truncated_checkpoint_is_said_and_passed_over(tiny_run, change, tmp_path, monkeypatch, capsys, damage):
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    killed_after(8, tiny_run, monkeypatch)
    for name in damage:
        path = tiny_run.directory.path / name
        path.write_bytes(path.read_bytes()[:-1000])
        assert not is_whole(path)
    train(tiny_run, Console())
    said = capsys.readouterr().out
    start = "goes on from previous.ckpt" if len(damage) == 1 else "starts from its beginning"
    assert "last.ckpt" in said
    assert start in said
    assert all(is_whole(p) for p in tiny_run.directory.path.glob("*.ckpt"))
    assert len(list(tiny_run.directory.path.glob("*.damaged"))) == len(damage)
    assert start in tiny_run.directory.read_status()["message"]
    assert tiny_run.directory.read_result() == whole.directory.read_result()


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(tiny_run, change, tmp_path, monkeypatch):
    """As of a network's file system that lost a server for a moment."""
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    result_of(whole)
    killed_after(8, tiny_run, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("zipfile.ZipFile.testzip", lambda _: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale file")))
        with pytest.raises(TrainingError, match=r"cannot read or write its files \(Stale file\): .* from the last"):
            result_of(tiny_run)
    assert list(tiny_run.directory.path.glob("*.damaged")) == []
    assert result_of(tiny_run) == whole.directory.read_result()
    assert tiny_run.directory.read_metrics().rows[4]["attempt"] > 1


def test_a_checkpoint_with_flipped_bits_is_not_whole(tiny_run):
    result_of(tiny_run)
    path = tiny_run.directory.last_checkpoint
    assert is_whole(path)
    whole = path.read_bytes()
    generator = random.Random(0)
    places = [len(whole) // 2, *(generator.randrange(len(whole) - 3000, len(whole)) for _ in range(60))]
    for place in places:  # most of them in the directory at the end, where damage takes many forms
        content = bytearray(whole)
        content[place] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        is_whole(path)  # whatever it says, it says it
    content = bytearray(whole)
    content[len(whole) // 2] ^= 1
    path.write_bytes(content)
    assert not is_whole(path)


def test_arms_see_the_same_batches_and_the_same_validation_tokens(tiny_run, change, tmp_path):
    """A1 to A3: whatever the arm and the micro-batch."""
    runs = [
        replace(tiny_run, residual=ResidualConfig(), variant="baseline"),
        tiny_run,
        change(in_folder(tiny_run, change, tmp_path, "micro"), "execution", micro_batch=2),
    ]
    results = [result_of(r) for r in runs]
    for key in ("batches_hash", "data_hash", "tokens", "val_tokens"):
        assert len({r[key] for r in results}) == 1, key
    assert results[1]["val_loss"] == pytest.approx(results[2]["val_loss"], rel=1e-5)
    assert results[0]["val_loss"] != results[1]["val_loss"]
    schedules = {r.directory.read_run()["training"]["schedule"] for r in runs}
    assert len(schedules) == 1
    other_seed = result_of(replace(runs[0], seed=1))
    assert other_seed["batches_hash"] != results[0]["batches_hash"]


def test_accumulation_does_not_change_the_tokens_counted(tiny_run, change, tmp_path):
    """C4."""
    runs = [change(in_folder(tiny_run, change, tmp_path, str(m)), "execution", micro_batch=m) for m in (8, 1)]
    for run in runs:
        result_of(run)
    rows = [r.directory.read_metrics(512).rows for r in runs]
    assert [r["tokens"] for r in rows[0]] == [r["tokens"] for r in rows[1]]
    assert [r["train_loss"] for r in rows[0]] == pytest.approx([r["train_loss"] for r in rows[1]], rel=1e-4)


def test_a_diverged_run_stops_and_is_marked(tiny_run, monkeypatch):
    """T4."""
    from scaling.model.language_model import LanguageModel

    forward = LanguageModel.forward
    calls = []

    def poisoned(self, tokens, targets):
        calls.append(1)
        return forward(self, tokens, targets) * (float("nan") if len(calls) > 4 else 1.0)

    monkeypatch.setattr(LanguageModel, "forward", poisoned)
    with pytest.raises(Diverged, match=r"diverged at step 4 \(validation loss nan\): lower train\.lr"):
        result_of(tiny_run)
    directory = tiny_run.directory
    assert directory.read_status()["state"] == "diverged"
    assert directory.read_result() is None
    assert directory.read_metrics().rows[-1]["val_loss"] is None


def test_a_finished_run_is_not_passed_off_for_other_tokens(tiny_run):
    result_of(tiny_run)
    path = tiny_run.directory.path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_hash": "0" * 64}))
    with pytest.raises(CheckpointError, match="trained on other tokens"):
        result_of(tiny_run)


def test_a_checkpoint_of_another_model_is_named(tiny_run, monkeypatch):
    killed_after(4, tiny_run, monkeypatch)
    saved = torch.load(tiny_run.directory.last_checkpoint, weights_only=True)
    saved["state_dict"].pop("model.residual.queries")
    torch.save(saved, tiny_run.directory.last_checkpoint)
    with pytest.raises(CheckpointError, match="is of another model than the code builds now"):
        result_of(tiny_run)


def test_compiling_needs_a_compiler(tiny_run, change, monkeypatch):
    monkeypatch.setattr("scaling.training.trainer.shutil.which", lambda _: None)
    with pytest.raises(TrainingError, match="needs a C\\+\\+ compiler"):
        result_of(change(tiny_run, "execution", compile=True))


def test_out_of_memory_names_a_smaller_micro_batch(tiny_run, monkeypatch):
    """T8."""
    from scaling.model.language_model import LanguageModel

    def too_large(self, tokens, targets):
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(LanguageModel, "forward", too_large)
    with pytest.raises(OutOfMemory, match=r"--execution\.micro_batch 4; the result is the same"):
        result_of(tiny_run)
    assert tiny_run.directory.read_status()["state"] == "failed"


def test_a_full_disk_is_one_line_and_loses_nothing(tiny_run, change, tmp_path, monkeypatch):
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) > 10:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            TrainingError, match=r"cannot read or write its files \(No space left .* from the last checkpoint"
        ):
            result_of(tiny_run)
    assert is_whole(tiny_run.directory.last_checkpoint)
    whole = in_folder(tiny_run, change, tmp_path, "whole")
    assert result_of(tiny_run) | {"run": ""} == result_of(whole) | {"run": ""}


def test_a_run_being_trained_is_left_alone(tiny_run):
    with tiny_run.directory.lock(), pytest.raises(Busy, match="trained by another process"):
        result_of(tiny_run)
    assert not (tiny_run.directory.path / "run.json").exists()


def test_a_run_does_not_go_on_with_other_tokens(tiny_run, monkeypatch):
    """T6."""
    killed_after(4, tiny_run, monkeypatch)
    path = tiny_run.directory.path / "run.json"
    facts = json.loads(path.read_text())
    facts["data"]["hash"] = "0" * 64
    path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match="trained on other tokens"):
        result_of(tiny_run)


def test_a_corpus_smaller_than_the_run_needs(tiny_run, change):
    with pytest.raises(DataError, match=r"train\.allow_repeat"):
        result_of(change(tiny_run, "train", tokens=1e9))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_compiled_and_eager_checkpoints_are_one(tiny_run, change, tmp_path, monkeypatch):
    """T7: stopped compiled, gone on eager."""
    compiled = change(tiny_run, "execution", compile=True)
    killed_after(4, compiled, monkeypatch)
    eager = change(tiny_run, "execution", compile=False)
    assert eager.directory.path == compiled.directory.path
    resumed = result_of(eager)
    whole = result_of(in_folder(eager, change, tmp_path, "whole"))
    assert resumed["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-4)
    assert resumed["batches_hash"] == whole["batches_hash"]


def test_bf16_autocast_stays_near_float32(tiny_run, change):
    losses = [result_of(change(tiny_run, "train", precision=p))["val_loss"] for p in ("float32", "bf16")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


def test_utilisation_needs_a_peak(tiny_run, change, tmp_path, monkeypatch):
    """C6: no number rather than a wrong one."""
    for peak in (None, 1.0):
        run = in_folder(change(tiny_run, "execution", peak_tflops=peak), change, tmp_path, str(peak))
        killed_after(8, run, monkeypatch)
        status = run.directory.read_status()
        assert ("utilisation" in status) == (peak is not None)
        if peak:
            flops = flops_per_token(run.shape, "model")
            assert status["utilisation"] == pytest.approx(status["tokens_per_second"] * flops / 1e12)


def test_tensorboard_on_request(tiny_run, change):
    run = change(tiny_run, "execution", loggers=["tensorboard"])
    result_of(run)
    assert list(run.directory.path.rglob("events.out.tfevents*"))


def test_wandb_on_request_goes_on_in_the_same_run_after_a_resume(tiny_run, change, monkeypatch):
    """Offline, below the run's directory, with every setting and every row."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = change(tiny_run, "execution", loggers=["wandb"])
    killed_after(4, run, monkeypatch)
    result_of(run)
    attempts = sorted(run.directory.path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.stem for file in attempts] == [f"run-{run.run_name}"] * 2
    for file, steps in zip(attempts, (2, 4), strict=True):
        content = file.read_bytes()
        assert content.count(b"train_loss") >= steps
        assert b"tokens_per_parameter" in content


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="W&B is installed")
def test_a_logger_that_is_not_installed_names_its_extra(tiny_run, change):
    with pytest.raises(TrainingError, match=r"names wandb, which is not installed: pip install .*\[wandb\]"):
        result_of(change(tiny_run, "execution", loggers=["wandb"]))


class Payload:
    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.mark.parametrize("inside", ["state_dict", "callbacks"])
def test_a_checkpoint_that_would_execute_something_is_refused(tiny_run, monkeypatch, tmp_path, inside):
    killed_after(4, tiny_run, monkeypatch)
    path, payload = tiny_run.directory.last_checkpoint, Payload()
    payload.place = str(tmp_path / "executed")
    saved = torch.load(path, weights_only=True)
    saved[inside]["payload"] = payload
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values") as refusal:
        result_of(tiny_run)
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "executed").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "executed").exists()  # which the payload does, where it is let


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_every_kind_of_no_memory_is_recognised(tiny_run, monkeypatch, error):
    """T8: the messages of devices that are not here; `test_out_of_memory_names_a_smaller_micro_batch` has the CPU's."""
    from scaling.model.language_model import LanguageModel

    def fails(*_):
        raise error

    monkeypatch.setattr(LanguageModel, "forward", fails)
    with pytest.raises(OutOfMemory, match=r"--execution\.micro_batch 4"):
        result_of(tiny_run)
    assert tiny_run.directory.read_status()["error"] == "OutOfMemory"
