"""The local queue with real processes: failures, retries, two sweeps at once (rows T5, T8)."""

import sys
import threading
import time
from dataclasses import replace

import pytest

from scaling.config import ResidualConfig
from scaling.errors import Busy, ConfigError, Diverged, OutOfMemory
from scaling.sweep.queue import LocalQueue
from scaling.sweep.slots import Slot, find_slots

SLOTS = [Slot("one"), Slot("two")]

# Stands where `python` would in the queue's command: plays the training process, to the contract of its exit status.
PLAYER = """#!{python}
import json, os, pathlib, re, sys
arguments = sys.argv[1:]
assert arguments[:3] == ["-m", "scaling", "train"], arguments
folder = pathlib.Path(arguments[3]).parent
micro = re.search(r"micro_batch: (\\w+)", pathlib.Path(arguments[3]).read_text()).group(1)
with open(folder / "calls", "a") as calls:
    calls.write(micro + "\\n")
script = json.loads(os.environ["SCRIPT"])
codes = script.get(folder.name.split("-")[0], [0])
code = codes[min(len((folder / "calls").read_text().splitlines()), len(codes)) - 1]
print("playing", code)
if code == 0:
    (folder / "result.json").write_text(json.dumps({{"val_loss": 1.0}}))
sys.exit(code)
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """`play(baseline=[1, 0])`: exit statuses of the arm's attempts, in order."""
    import json

    player = tmp_path / "player"
    player.write_text(PLAYER.format(python=sys.executable))
    player.chmod(0o755)
    monkeypatch.setattr("scaling.sweep.queue.sys.executable", str(player))

    def script(**codes):
        monkeypatch.setenv("SCRIPT", json.dumps(codes))

    return script


@pytest.fixture
def runs(tiny_run, change):
    tiny_run = change(tiny_run, "execution", retries=2)
    return [
        replace(tiny_run, residual=ResidualConfig(), variant="baseline"),
        replace(tiny_run, variant="block"),
        replace(tiny_run, residual=ResidualConfig("full"), variant="full"),
    ]


def work(runs, slots=SLOTS):
    events = []
    failures = LocalQueue(runs, slots, lambda what, config: events.append((what, config.variant))).work()
    return failures, events


def calls_of(run):
    return (run.directory.path / "calls").read_text().splitlines()


def test_a_failed_run_does_not_stop_the_others_and_is_named_with_its_log(runs, play):
    """T5."""
    play(block=[1])
    failures, events = work(runs)
    assert [(f.run, f.reason, f.log) for f in failures] == [
        (runs[1].run_name, "ended with status 1", runs[1].directory.log)
    ]
    assert len(calls_of(runs[1])) == 1 + 2  # capped
    assert b"playing 1" in runs[1].directory.log.read_bytes()
    assert {e for e in events if e[0] in ("finished", "failed")} == {
        ("finished", "baseline"), ("failed", "block"), ("finished", "full")
    }  # fmt: skip


def test_a_run_that_fails_once_is_tried_again(runs, play):
    play(full=[1, 0])
    failures, _ = work(runs)
    assert failures == []
    assert len(calls_of(runs[2])) == 2


@pytest.mark.parametrize("code", [2, Diverged.exit_status])
def test_what_would_fail_again_is_not_tried_again(runs, play, code):
    play(block=[code])
    failures, _ = work(runs)
    assert len(failures) == 1
    assert len(calls_of(runs[1])) == 1


def test_out_of_memory_halves_the_micro_batch_under_the_same_identity(runs, play):
    """T8."""
    play(block=[OutOfMemory.exit_status, OutOfMemory.exit_status, 0])
    failures, _ = work(runs)
    assert failures == []
    assert calls_of(runs[1]) == ["null", "4", "2"]


def test_out_of_memory_takes_the_next_divisor_of_any_batch_and_gives_up_at_one(runs, play, change):
    """T8: 12 sequences in micro-batches of 6, 3, 1, and then it is a failure at once."""
    runs = [change(change(r, "train", batch_tokens=12 * 64), "execution", micro_batch=6) for r in runs[1:2]]
    play(block=[OutOfMemory.exit_status])
    failures, _ = work(runs)
    assert calls_of(runs[0]) == ["6", "3", "1"]
    assert len(failures) == 1


def test_out_of_memory_found_by_another_devices_process_counts(runs, play, monkeypatch):
    """T8: the first process may end with any status when it loses the one that ran out."""
    play(block=[1, 0])
    directory = runs[1].directory
    launch = LocalQueue._launch

    def launch_and_write(self, config, run, slot):
        code = launch(self, config, run, slot)
        if code == 1:
            directory.write_status("failed", error="OutOfMemory")
        return code

    monkeypatch.setattr(LocalQueue, "_launch", launch_and_write)
    assert work(runs[1:2])[0] == []
    assert calls_of(runs[1]) == ["null", "4"]


def test_a_run_whose_files_cannot_be_written_is_a_failure_of_that_run(runs, play):
    """T5."""
    play()
    (runs[1].directory.path / "log.txt").mkdir(parents=True)
    failures, _ = work(runs)
    assert [f.run for f in failures] == [runs[1].run_name]
    assert "log.txt" in failures[0].reason
    assert all(r.directory.read_result() for r in (runs[0], runs[2]))


def test_stopping_ends_a_run_that_is_just_starting(runs, play, monkeypatch):
    import subprocess

    play()
    queue = LocalQueue(runs[:1], SLOTS[:1], lambda *_: None)
    popen = subprocess.Popen

    def stop_first(*arguments, **options):
        process = popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        threading.Thread(target=queue.stop).start()
        return process

    monkeypatch.setattr("scaling.sweep.queue.subprocess.Popen", stop_first)
    began = time.monotonic()
    queue.work()
    assert time.monotonic() - began < 30


def test_finished_runs_are_skipped(runs, play):
    play()
    work(runs)
    before = [calls_of(r) for r in runs]
    assert work(runs) == ([], [])
    assert [calls_of(r) for r in runs] == before


def test_a_run_trained_elsewhere_is_waited_for_and_not_started(runs, play):
    play()
    directory = runs[0].directory

    def elsewhere():
        with directory.lock():
            locked.set()
            time.sleep(1.5)
            directory.write_result({"val_loss": 2.0})

    locked = threading.Event()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    locked.wait()
    failures, events = work(runs)
    thread.join()
    assert failures == []
    assert ("started", "baseline") not in events
    assert not (directory.path / "calls").exists()


def test_a_run_taken_by_another_sweep_in_between_goes_back(runs, play):
    play(block=[Busy.exit_status, 0])
    failures, _ = work(runs)
    assert failures == []
    assert len(calls_of(runs[1])) == 2


def test_two_real_sweeps_at_once_train_no_run_twice(tiny_run, change):
    runs = [replace(tiny_run, residual=ResidualConfig(), variant="baseline", seed=seed) for seed in (0, 1)]
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(work(runs, SLOTS[:1]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [failures for failures, _ in outcomes] == [[], []]
    for run in runs:
        assert run.directory.read_result() is not None
        assert len(run.directory.read_run()["attempts"]) == 1


def test_a_killed_process_is_a_failure_with_its_signal(runs, play, monkeypatch):
    monkeypatch.setattr("scaling.sweep.queue.LocalQueue._launch", lambda *_: -9)
    failures, _ = work(runs[:1])
    assert failures[0].reason == "killed by SIGKILL"


# --- slots


def test_cpu_slots_divide_the_cores(monkeypatch):
    monkeypatch.setattr("scaling.sweep.slots._usable_cores", lambda: list(range(8)))
    slots = find_slots("cpu", 1, n_runs=6, devices=None)
    assert len(slots) == 6
    assert len(find_slots("cpu", 4, n_runs=6, devices=None)) == 2
    slots = find_slots("cpu", 1, n_runs=6, devices="3")
    assert [s.cores for s in slots] == [(0, 1), (2, 3), (4, 5)]
    assert {s.environment["OMP_NUM_THREADS"] for s in slots} == {"2"}


def test_gpu_slots_take_as_many_as_a_run_asks(monkeypatch):
    monkeypatch.setattr("scaling.sweep.slots._gpus", lambda: ["0", "1", "2", "3", "4"])
    visible = [s.environment["CUDA_VISIBLE_DEVICES"] for s in find_slots("auto", 2, 6, None)]
    assert visible == ["0,1", "2,3"]
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in find_slots("auto", 1, 6, "4,1,4")] == ["4", "1"]
    with pytest.raises(ConfigError, match="names GPU '7': there are 0, 1, 2, 3, 4"):
        find_slots("auto", 1, 6, "0,7")
    with pytest.raises(ConfigError, match="the sweep may use 1 GPUs"):
        find_slots("auto", 2, 6, "0")


@pytest.mark.parametrize("devices", ["0", "x", "999", "-1"])
def test_a_bad_number_of_runs_at_a_time_is_named(devices):
    with pytest.raises(ConfigError, match="--devices is"):
        find_slots("cpu", 1, 6, devices)
