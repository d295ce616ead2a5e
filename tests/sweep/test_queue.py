"""The local queue with real processes: failures, retries, packing, stopping, two sweeps at once (rows T5, T8)."""

import json
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import wait_until

from scaling.config import ResidualConfig
from scaling.errors import Busy, Diverged, OutOfMemory
from scaling.records import RunDirectory
from scaling.sweep.devices import Device
from scaling.sweep.queue import LocalQueue

DEVICES = [Device(threads=1)] * 2

# Stands where `python` would in the queue's command: plays the training process, to the contract of its exit status.
PLAYER = """#!{python}
import json, os, pathlib, re, sys, time
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
seen = [time.time(), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","), os.environ.get("OMP_NUM_THREADS")]
if set(seen[1]) & set(os.environ.get("BROKEN", "none").split(",")):
    sys.exit(1)
time.sleep(float(os.environ.get("PLAY_SECONDS", "0")))
(folder / "seen").write_text(json.dumps([*seen, time.time()]))
if code == 0:
    (folder / "result.json").write_text(json.dumps({{"val_loss": 1.0}}))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """`play(baseline=[1, 0])`: exit statuses of the arm's attempts, in order."""
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


def work(runs, devices=DEVICES, say=print):
    events = []
    queue = LocalQueue(runs, devices, lambda what, config: events.append((what, config.variant)), say)
    wait_until(lambda: not queue.advance(), seconds=300)
    return queue.failures, events


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
    launch = LocalQueue._launch

    def launch_and_write(self, job):
        launch(self, job)
        if len(calls) == 0:
            job.run.write_status("failed", error="OutOfMemory")
        calls.append(job)

    calls = []
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
    threads = [threading.Thread(target=lambda: outcomes.append(work(runs, DEVICES[:1]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [failures for failures, _ in outcomes] == [[], []]
    for run in runs:
        assert run.directory.read_result() is not None
        assert len(run.directory.read_run()["attempts"]) == 1


def test_a_killed_process_is_a_failure_with_its_signal(runs, play):
    play(baseline=[-9])
    failures, _ = work(runs[:1])
    assert failures[0].reason == "killed by SIGKILL"


# --- packing


def test_no_device_is_given_to_two_runs_at_once_and_larger_runs_go_first(runs, play, change, monkeypatch):
    play()
    monkeypatch.setenv("PLAY_SECONDS", "0.3")
    demands = [1, 2, 1, 4, 1, 2]
    runs = [change(replace(runs[0], seed=i), "execution", devices=n) for i, n in enumerate(demands)]
    began = []
    queue = LocalQueue(
        runs,
        [Device(gpu=str(i)) for i in range(4)],
        lambda what, c: began.append(c.seed) if what == "started" else None,
    )
    wait_until(lambda: not queue.advance())
    assert queue.failures == []
    assert began == [3, 1, 5, 0, 2, 4]
    seen = [json.loads((run.directory.path / "seen").read_text()) for run in runs]
    assert [len(gpus) for _, gpus, _, _ in seen] == demands
    for i, (start, gpus, _, end) in enumerate(seen):
        for other_start, other_gpus, _, other_end in seen[:i]:
            assert end <= other_start or other_end <= start or not set(gpus) & set(other_gpus)
    starts = sorted((start, end) for start, _, _, end in seen)
    assert any(end > start for (_, end), (start, _) in pairwise(starts))  # some do overlap


def play_in_ticks(size, demands, broken=frozenset()):
    """What fails, and when the queue starts runs of the given (devices, duration), in ticks; processes are played.

    A run on a device of `broken` ends with status 1 at once.
    """
    tick, starts = 0, {}

    class Queue(LocalQueue):
        def _launch(self, job):
            bad = not broken.isdisjoint(job.devices)
            end, code = tick + (0 if bad else job.config.duration), int(bad)
            starts[job.config.number] = tick
            busy = [place for other in self._running for place in other.devices]
            assert len(set(busy)) == len(busy)
            job.process = SimpleNamespace(poll=lambda: code if tick >= end else None)

    runs = [
        SimpleNamespace(
            number=i, duration=d, run_name=str(i), directory=RunDirectory("none"),
            execution=SimpleNamespace(devices=n, retries=2),
        )
        for i, (n, d) in enumerate(demands)
    ]  # fmt: skip
    queue = Queue(runs, [Device(gpu=str(i)) for i in range(size)], lambda *_: None, lambda _: None)
    while queue.advance():
        tick += 1
    return queue.failures, starts


@given(st.data(), st.integers(1, 8))
def test_nobody_starves_because_the_first_in_line_takes_what_the_next_larger_run_leaves(data, size):
    """Whoever fits starts; a run that all larger ones have gone before waits for the end of one of those at most."""
    demands = data.draw(st.lists(st.tuples(st.integers(1, size), st.integers(1, 6)), min_size=1, max_size=12))
    demands.sort(key=lambda demand: -demand[0])
    _, starts = play_in_ticks(size, demands)
    assert starts.keys() == set(range(len(demands)))
    ends = {i: start + demands[i][1] for i, start in starts.items()}
    for i in range(1, len(demands)):
        first_in_line = max(starts[j] for j in range(i))
        assert starts[i] <= min(ends[j] for j in range(i) if ends[j] > first_in_line)


def test_a_process_has_as_many_threads_with_one_run_left_as_with_many(runs, play):
    play(full=[1, 1, 0])
    work(runs, [Device(threads=3)] * 2)
    assert {json.loads((run.directory.path / "seen").read_text())[2] for run in runs} == {"3"}


# --- broken devices


@pytest.fixture
def many(runs):
    """`many(15)`: as many runs of one arm."""
    return lambda n: [replace(runs[0], seed=seed) for seed in range(n)]


def test_a_broken_gpu_is_set_aside_after_two_runs_and_costs_no_run(many, play, monkeypatch):
    """T5."""
    play()
    monkeypatch.setenv("BROKEN", "0")
    monkeypatch.setenv("PLAY_SECONDS", "0.3")
    runs, said = many(15), []
    failures, events = work(runs, [Device(gpu=str(i)) for i in range(8)], said.append)
    assert failures == []
    assert [what for what, _ in events].count("retried") == 2
    (line,) = said
    one, other = (run for run in runs if len(calls_of(run)) == 2)
    assert line.startswith("GPU 0 is set aside: two runs failed on it: ")
    assert one.run_name in line
    assert other.run_name in line
    assert "log.txt" in line


def test_a_retry_waits_for_another_gpu_and_goes_back_where_there_is_none(many, play, monkeypatch):
    play()
    monkeypatch.setenv("BROKEN", "0")
    monkeypatch.setenv("PLAY_SECONDS", "1")
    one, other = many(2)
    assert work([one, other], [Device(gpu="0"), Device(gpu="1")])[0] == []
    assert len(calls_of(one)) == 2  # not tried on GPU 0 again while the other run had GPU 1
    monkeypatch.setenv("BROKEN", "0,1")
    (last,) = many(3)[2:]
    failures, _ = work([last], [Device(gpu="0")])
    assert [f.reason for f in failures] == ["ended with status 1"]
    assert len(calls_of(last)) == 1 + 2


def test_where_every_gpu_is_broken_the_sweep_ends_and_names_what_never_started(many, play, monkeypatch):
    play()
    monkeypatch.setenv("BROKEN", "0,1")
    runs, said = many(6), []
    failures, _ = work(runs, [Device(gpu="0"), Device(gpu="1")], said.append)
    assert {f.run for f in failures} == {run.run_name for run in runs}
    assert sorted(line.partition(":")[0] for line in said) == ["GPU 0 is set aside", "GPU 1 is set aside"]
    reasons = {f.run: f.reason for f in failures}
    assert reasons[runs[5].run_name] == "not started: it needs 1 of the 0 GPUs that are left"
    assert not runs[5].directory.path.exists()
    tried = [run for run in runs if run.directory.path.exists()]
    assert all(reasons[run.run_name].startswith("ended with status 1") for run in tried)


def test_a_finished_run_is_no_failure_where_no_gpu_is_left(many, play, monkeypatch):
    play()
    monkeypatch.setenv("BROKEN", "0")
    *broken, finished = many(3)
    finished.directory.write_result({"val_loss": 1.0})
    failures, _ = work([*broken, finished], [Device(gpu="0")], lambda _: None)
    assert {f.run for f in failures} == {run.run_name for run in broken}


def test_a_success_in_between_clears_a_gpu(runs, play, change):
    """Two runs that fail by themselves do not make a GPU a broken one."""
    play(baseline=[1], block=[0], full=[1])
    runs, said = [change(run, "execution", retries=0) for run in runs], []
    failures, _ = work(runs, [Device(gpu="0")], said.append)
    assert len(failures) == 2
    assert said == []


def test_parts_of_a_cpu_are_never_set_aside(many, play):
    """They are one machine: another part would not help."""
    play(baseline=[1])
    said = []
    failures, _ = work(many(5), DEVICES, said.append)
    assert [f.reason for f in failures] == ["ended with status 1"] * 5
    assert said == []


@given(st.data(), st.integers(2, 8))
def test_one_broken_gpu_costs_no_run_that_fits_twice(data, size):
    """Whatever runs ask for and however long they take: they are all trained, no device by two at once."""
    demands = data.draw(st.lists(st.tuples(st.integers(1, size // 2), st.integers(1, 6)), min_size=1, max_size=12))
    broken = data.draw(st.integers(0, size - 1))
    failed, starts = play_in_ticks(size, demands, {broken})
    assert failed == []
    assert starts.keys() == set(range(len(demands)))


# --- stopping


@pytest.fixture
def sleepers(runs, tmp_path, monkeypatch):
    """A queue of three runs on two devices; each ends with status 130, half a second after SIGTERM."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(f"""#!{sys.executable}
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[4]).parent
def end(number, frame):
    time.sleep(0.5)
    (folder / "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
(folder / "ready").touch()
time.sleep(60)
""")
    sleeper.chmod(0o755)
    monkeypatch.setattr("scaling.sweep.queue.sys.executable", str(sleeper))
    events = []
    queue = LocalQueue(runs, DEVICES, lambda what, config: events.append((what, config.variant)))
    queue.advance()
    wait_until(lambda: all((run.directory.path / "ready").exists() for run in runs[:2]))
    yield queue, events
    queue.kill()
    wait_until(lambda: not queue.advance())


def test_stopped_runs_save_are_no_failures_and_are_not_retried(sleepers, runs):
    queue, events = sleepers
    queue.stop()
    wait_until(lambda: not queue.advance())
    assert queue.failures == []
    assert events[:2] == [("started", "baseline"), ("started", "block")]
    assert sorted(events[2:]) == [("stopped", "baseline"), ("stopped", "block")]  # in whichever order they save
    assert [(run.directory.path / "saved").exists() for run in runs] == [True, True, False]


def test_killed_runs_end_at_once(sleepers, runs):
    queue, events = sleepers
    queue.stop()
    queue.kill()
    wait_until(lambda: not queue.advance())
    assert queue.failures == []
    assert sorted(e for e in events if e[0] == "stopped") == [("stopped", "baseline"), ("stopped", "block")]
    assert not any((run.directory.path / "saved").exists() for run in runs)
