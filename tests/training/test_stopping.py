"""Runs that are asked to stop, by real signals: in this process, where the moment can be chosen, and in others (T3)."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from processes import children_of, lives, wait_until
from rich.console import Console

from scaling.errors import Stopped
from scaling.model.language_model import LanguageModel
from scaling.training.run import train

QUIET = Console(quiet=True)


@pytest.fixture
def signalled(monkeypatch):
    """`signalled(run, call, times)`: train, with a signal sent to this process in the forward pass of that number."""
    forward = LanguageModel.forward

    def _train(run, call, times=1):
        calls = []

        def signalling(self, tokens, targets):
            calls.append(1)
            if len(calls) == call:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGTERM)
            return forward(self, tokens, targets)

        with monkeypatch.context() as patch:
            patch.setattr(LanguageModel, "forward", signalling)
            return train(run, QUIET)

    return _train


@pytest.fixture
def whole(tiny_run, change, tmp_path):
    """The same run, never stopped."""
    run = change(tiny_run, "execution", runs_folder=str(tmp_path / "whole"))
    train(run, QUIET)
    return run


def rows_of(run):
    rows = run.directory.read_metrics(run.train.batch_tokens).rows
    return [{k: v for k, v in row.items() if k not in ("seconds", "attempt")} for row in rows]


def assert_same(run, other):
    files = [(r.directory.path / "result.json").read_bytes() for r in (run, other)]
    assert files[0] == files[1]
    assert rows_of(run) == rows_of(other)


# Forward passes: steps 1 to 4, three of validation, steps 5 to 8, three of validation, steps 9 to 12, three more.
@pytest.mark.parametrize(("call", "step"), [(2, 2), (10, 7), (13, 8), (16, 10)])
def test_stopped_equals_never_stopped_bit_for_bit(tiny_run, whole, signalled, call, step):
    """Within rows and between checkpoints (steps 7 and 10 of 4, 8, 12), at a row, and during a validation (step 8)."""
    with pytest.raises(Stopped, match=f"was stopped after step {step}: the same command goes on from there"):
        signalled(tiny_run, call)
    status = tiny_run.directory.read_status()
    assert (status["state"], status["step"]) == ("stopped", step)
    assert torch.load(tiny_run.directory.last_checkpoint, weights_only=True)["global_step"] == step
    train(tiny_run, QUIET)
    assert tiny_run.directory.read_status()["state"] == "finished"
    assert_same(tiny_run, whole)
    assert all(row["seconds"] > 0 for row in tiny_run.directory.read_metrics().rows)


def test_stopped_several_times_between_two_rows(tiny_run, change, whole, signalled):
    often = change(tiny_run, "execution", log_every=12, validate_every=12, checkpoint_every=12)
    for _ in range(3):
        with pytest.raises(Stopped):
            signalled(often, 2)
    train(often, QUIET)
    assert (often.directory.path / "result.json").read_bytes() == (whole.directory.path / "result.json").read_bytes()
    row = often.directory.read_metrics().rows[0]
    assert row["train_loss"] == pytest.approx(sum(r["train_loss"] for r in rows_of(whole)) / 6, rel=1e-8)


def test_a_second_signal_ends_the_run_at_once(tiny_run, whole, signalled, monkeypatch):
    monkeypatch.setattr("scaling.training.stopping.SAME_REQUEST_SECONDS", -1.0)
    with pytest.raises(Stopped, match="goes on from its last checkpoint"):
        signalled(tiny_run, 10, times=2)
    assert torch.load(tiny_run.directory.last_checkpoint, weights_only=True)["global_step"] == 4
    assert tiny_run.directory.read_status()["state"] == "stopped"
    train(tiny_run, QUIET)
    assert_same(tiny_run, whole)


def test_signals_close_together_are_one_request(tiny_run, whole, signalled):
    """As a cluster sends them: to each process, and to the group."""
    with pytest.raises(Stopped, match="goes on from there"):
        signalled(tiny_run, 10, times=2)
    train(tiny_run, QUIET)
    assert_same(tiny_run, whole)


def test_before_the_first_step_one_signal_ends_the_run_at_once(tiny_run, whole, signalled):
    with pytest.raises(Stopped, match="starts it again"):
        signalled(tiny_run, 1)
    assert tiny_run.directory.read_status()["state"] == "stopped"
    assert not tiny_run.directory.last_checkpoint.exists()
    train(tiny_run, QUIET)
    assert_same(tiny_run, whole)


def test_a_run_asked_to_stop_in_its_last_step_is_finished(tiny_run, whole, signalled):
    signalled(tiny_run, 18)
    assert_same(tiny_run, whole)


def test_the_signals_are_the_callers_again_afterwards(tiny_run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(tiny_run, QUIET)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# --- processes


@pytest.fixture
def start(tmp_path):
    """`start(run)`: the command line trains it, in a process group of its own."""
    processes = []

    def _start(run, **environment):
        file = tmp_path / f"run{len(processes)}.yaml"
        file.write_text(yaml.safe_dump(asdict(run)))
        process = subprocess.Popen(
            [sys.executable, "-m", "scaling", "train", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        processes.append(process)
        return process

    yield _start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def long_run(tiny_run, change):
    """Some seconds of training, and a row every ten steps."""
    run = change(tiny_run, "train", tokens=512 * 600, allow_repeat=True)
    return change(run, "execution", log_every=10, validate_every=100, checkpoint_every=100)


def trains(run):
    return lambda: len(run.directory.read_metrics().rows) >= 2


def others_of(process):
    """The processes that it started to train with it."""
    return [pid for pid, words in children_of(process.pid).items() if any(Path(w).name == "config.yaml" for w in words)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_process_says_so_in_one_line_and_ends_with_130(long_run, start, number):
    process = start(long_run)
    wait_until(trains(long_run))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(said.splitlines()) == 1
    assert "was stopped after step" in said
    assert long_run.directory.read_status()["state"] == "stopped"


@pytest.mark.parametrize("moment", ["importing", "recorded"])
def test_a_process_that_is_starting_stops_soon(long_run, start, moment):
    process = start(long_run)
    if moment == "importing":
        wait_until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
    else:
        wait_until(lambda: long_run.directory.path.joinpath("run.json").exists())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert long_run.directory.read_status()["state"] in ("pending", "stopped")


def test_a_killed_process_is_lost_and_never_runs(long_run, start):
    process = start(long_run)
    wait_until(trains(long_run))
    assert long_run.directory.read_status()["state"] == "running"
    process.kill()
    process.wait()
    assert long_run.directory.read_status()["state"] == "lost"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("whom", ["first", "other", "all"])
def test_all_processes_of_a_run_stop_after_the_same_step(long_run, change, start, tmp_path, whom, strategy):
    long_run = change(long_run, "execution", devices=2, strategy=strategy)
    process = start(long_run)
    wait_until(trains(long_run))
    (other,) = others_of(process)
    if whom == "all":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        os.kill(process.pid if whom == "first" else other, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert len(said.splitlines()) == 1, said
    assert not lives(other)
    status = long_run.directory.read_status()
    assert status["state"] == "stopped"
    assert torch.load(long_run.directory.last_checkpoint, weights_only=True)["global_step"] == status["step"]
    resumed = start(long_run)
    assert resumed.communicate(timeout=120) == (None, "")
    undisturbed = change(long_run, "execution", runs_folder=str(tmp_path / "whole"))
    assert start(undisturbed).communicate(timeout=120) == (None, "")
    assert_same(long_run, undisturbed)


def test_the_others_end_with_a_killed_first_process(long_run, change, start):
    long_run = change(long_run, "execution", devices=2)
    process = start(long_run)
    wait_until(trains(long_run))
    (other,) = others_of(process)
    process.kill()
    process.wait()
    wait_until(lambda: not lives(other), 5.0)
    assert long_run.directory.read_status()["state"] == "lost"


@pytest.mark.parametrize("moment", ["training", pytest.param("starting", marks=pytest.mark.slow)])
def test_the_first_process_ends_with_a_killed_other_and_says_so(long_run, change, start, moment):
    long_run = change(long_run, "execution", devices=2)
    process = start(long_run)
    if moment == "training":
        wait_until(trains(long_run))
    (other,) = wait_until(lambda: others_of(process))
    os.kill(other, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert len(said.splitlines()) == 1, said
    assert "process 1 of the 2" in said
    assert "was killed by SIGKILL" in said
    status = long_run.directory.read_status()
    assert (status["state"], status["error"]) == ("failed", "ProcessLost")


def test_out_of_memory_on_one_device_is_out_of_memory_of_the_run(long_run, change, start, tmp_path):
    """T8: the second process asks the real allocator for more than there is."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('LOCAL_RANK') == '1':\n"
        "    import torch\n"
        "    from scaling.model.language_model import LanguageModel\n"
        "    LanguageModel.forward = lambda *_: torch.empty(1 << 60, dtype=torch.uint8)\n"
    )
    long_run = change(long_run, "execution", devices=2)
    process = start(long_run, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 4, said
    assert len(said.splitlines()) == 1, said
    assert "--execution.micro_batch 2; the result is the same" in said
    assert long_run.directory.read_status()["error"] == "OutOfMemory"
