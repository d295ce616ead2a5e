"""Run files: nothing lost, the last attempt counts, contradictions are errors."""

import errno
import json
import math
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import wait_until

from scaling.errors import RecordError
from scaling.records import HEARTBEAT_SECONDS, HEARTBEATS_MISSED, METRICS, RunDirectory, find_runs


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "baseline-m-s0-00000000")
    run.write_config({"a": 1})
    return run


def write_rows(run, attempt, steps, **values):
    writer = run.open_metrics(attempt)
    for step in steps:
        writer.append(step=step, tokens=step * 100, seconds=1.0, **values)
    writer.close()


def test_rows_of_earlier_attempts_are_kept_in_the_file_and_superseded_in_the_reading(run):
    """T1, T2."""
    write_rows(run, 1, [1, 2, 3], train_loss=1.0)
    write_rows(run, 2, [3, 4], train_loss=2.0)
    metrics = run.read_metrics(100)
    assert [(r["step"], r["train_loss"]) for r in metrics.rows] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert (metrics.superseded, metrics.damaged) == (1, 0)
    assert len((run.path / "metrics.csv").read_text().splitlines()) == 1 + 5
    assert metrics.device_seconds == 4.0


@given(st.integers(1, 60))
def test_a_row_cut_short_by_a_kill_costs_that_row_only(tmp_path_factory, cut):
    run = RunDirectory(tmp_path_factory.mktemp("run") / "r")
    run.path.mkdir()
    write_rows(run, 1, [1, 2], train_loss=1.25)
    path = run.path / "metrics.csv"
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    path.write_bytes(whole[: max(header, len(whole) - cut)])
    write_rows(run, 2, [2, 3], train_loss=1.5)
    metrics = run.read_metrics()
    assert [r["step"] for r in metrics.rows][-2:] == [2, 3]
    assert {r["train_loss"] for r in metrics.rows} <= {1.25, 1.5}


def test_missing_is_missing(run):
    """T10."""
    write_rows(run, 1, [1], train_loss=0.5, val_loss=None, grad_norm=math.nan)
    row = run.read_metrics().rows[0]
    assert row["val_loss"] is None
    assert row["grad_norm"] is None
    assert row["train_loss"] == 0.5


def test_losses_are_stored_with_at_least_six_digits(run):
    """F11."""
    write_rows(run, 1, [1], train_loss=math.pi)
    assert run.read_metrics().rows[0]["train_loss"] == pytest.approx(math.pi, rel=1e-8)


def test_tokens_that_contradict_steps_are_an_error(run):
    """T9."""
    write_rows(run, 1, [1, 2])
    with pytest.raises(RecordError, match="100 tokens at step 1, but a step is 64"):
        run.read_metrics(64)


def test_a_foreign_table_is_an_error(run):
    (run.path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(RecordError, match=r"metrics\.csv has columns"):
        run.read_metrics()


def test_a_running_run_whose_process_died_is_lost(run):
    run.write_status("running", step=3)
    assert run.read_status()["state"] == "lost"
    with run.lock() as held:
        assert held
        assert run.read_status()["state"] == "running"
        with run.lock() as second:
            assert not second
    assert not run.is_locked()


def test_a_run_with_a_result_is_finished_whatever_its_status_could_still_say(run):
    run.write_status("running", step=12)
    run.write_result({"val_loss": 1.0})
    assert run.read_status()["state"] == "finished"
    run.write_status("finished", step=12)
    (run.path / "result.json").unlink()
    assert run.read_status()["state"] == "lost"


def test_on_another_host_a_run_runs_while_its_heart_beats(run, monkeypatch):
    """Where a shared folder does not share locks."""
    with monkeypatch.context() as patch:
        patch.setattr("scaling.records.socket.gethostname", lambda: "elsewhere")
        run.write_status("running", step=3)
    assert run.read_status()["state"] == "running"
    later = time.time() + HEARTBEATS_MISSED * HEARTBEAT_SECONDS
    monkeypatch.setattr("scaling.records.time.time", lambda: later)
    assert run.read_status()["state"] == "lost"
    with run.lock():
        assert run.read_status()["state"] == "running"


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def no_locks(request, monkeypatch):
    """A file system without locks, such as Lustre mounted without them."""

    def flock(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("scaling.records.fcntl.flock", flock)


def test_where_there_are_no_locks_a_run_is_not_trained_and_the_folder_is_named(run, no_locks):
    with (
        pytest.raises(RecordError, match=rf"{run.path} .* no locks: choose another execution\.runs_folder"),
        run.lock(),
    ):
        pass


def test_where_there_are_no_locks_a_heartbeat_is_believed(run, no_locks, monkeypatch):
    (run.path / "lock").touch()
    assert not run.is_locked()
    run.write_status("running", step=3)
    assert run.read_status()["state"] == "running"
    assert run.is_locked()
    later = time.time() + HEARTBEATS_MISSED * HEARTBEAT_SECONDS
    monkeypatch.setattr("scaling.records.time.time", lambda: later)
    assert run.read_status()["state"] == "lost"
    (run.path / "status.json").write_text("{")
    assert not run.is_locked()  # its own process will say what is wrong


def test_any_other_trouble_with_a_lock_is_not_hidden(run, monkeypatch):
    def flock(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("scaling.records.fcntl.flock", flock)
    with pytest.raises(OSError, match="Input/output"), run.lock():
        pass
    with pytest.raises(OSError, match="Input/output"):
        run.is_locked()


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"state": None},
        {"state": "[/x]"},
        {"state": ["running"]},
        {"state": "running", "updated": "abc"},
        {"state": "running", "updated": float("nan")},
        {"state": "running", "updated": True},
        {"state": "failed", "steps": "7"},
        {"state": "failed", "step": None},
        {"state": "failed", "step": 10**400},
        {"state": "failed", "step": 1.5},
        {"state": "stopped", "loss": -1},
        {"state": "stopped", "tokens_per_second": {}},
        {"state": "failed", "message": ["x"]},
        {"state": "failed", "error": {}},
    ],
)
def test_a_status_that_no_run_writes_is_named(run, status):
    (run.path / "status.json").write_text(json.dumps(status))
    with pytest.raises(RecordError, match=r"status\.json holds (no|a bad value of) \w+, which no run") as caught:
        run.read_status()
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("result", [{}, {"val_loss": "low"}, {"val_loss": None}, {"val_loss": 3.0, "data_hash": []}])
def test_a_result_that_no_run_writes_is_named(run, result):
    (run.path / "result.json").write_text(json.dumps(result))
    with pytest.raises(RecordError, match=r"result\.json holds (no|a bad value of) \w+, which no run writes"):
        run.read_result()


def test_a_report_is_renewed_while_nothing_is_said_and_not_after_its_end(run, monkeypatch):
    monkeypatch.setattr("scaling.records.HEARTBEAT_SECONDS", 0.02)
    with run.lock(), run.report() as report:
        time.sleep(0.1)
        assert run.read_status() == {"state": "pending"}  # until something is said
        report.say(step=3)
        said = run.read_status()
        wait_until(lambda: run.read_status()["updated"] > said["updated"])
        assert {**run.read_status(), "updated": 0} == {**said, "updated": 0}
    run.write_status("diverged", step=4)
    final = run.read_status()
    time.sleep(0.2)
    assert run.read_status() == final


def test_reports_never_cross_and_never_overwrite_a_final_state(run, monkeypatch):
    """Heartbeats as fast as they go, beside a run that says something at every step."""
    monkeypatch.setattr("scaling.records.HEARTBEAT_SECONDS", 0.0)
    with run.lock():
        for last in range(20):
            with run.report() as report:
                for step in range(10):
                    report.say(step=step)
                    assert run.read_status()["step"] == step
            run.write_status("failed", step=last)
            assert (run.read_status()["state"], run.read_status()["step"]) == ("failed", last)
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "lock", "status.json"]


def test_a_full_disk_stops_no_heart(run, monkeypatch):
    monkeypatch.setattr("scaling.records.HEARTBEAT_SECONDS", 0.02)
    with run.report() as report:
        report.say(step=3)
        before = run.read_status()["updated"]
        with monkeypatch.context() as patch:
            failed = []

            def full_disk(_):
                failed.append(1)
                raise OSError(28, "No space left on device")

            patch.setattr("scaling.records.os.fsync", full_disk)
            wait_until(lambda: len(failed) >= 2)
            with pytest.raises(OSError, match="No space left"):
                report.say(step=4)
        wait_until(lambda: run.read_status()["updated"] > before)


def test_somebody_who_looks_does_not_keep_a_run_from_starting(run):
    import threading

    done = threading.Event()
    looker = threading.Thread(target=lambda: [run.is_locked() for _ in iter(done.is_set, True)])
    looker.start()
    try:
        for _ in range(100):
            with run.lock() as held:
                assert held
    finally:
        done.set()
        looker.join()


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_header_cut_short_is_written_again(run, cut):
    path = run.path / "metrics.csv"
    path.write_text(",".join(METRICS)[:cut])
    assert run.read_metrics().rows == []
    write_rows(run, 2, [1], train_loss=1.0)
    assert [r["step"] for r in run.read_metrics().rows] == [1]


def test_bytes_that_are_no_text_cost_their_row_only(run):
    write_rows(run, 1, [1, 2])
    with open(run.path / "metrics.csv", "ab") as file:
        file.write(b"1,\xff\xfe,3\n")
    metrics = run.read_metrics()
    assert ([r["step"] for r in metrics.rows], metrics.damaged) == ([1, 2], 1)


def test_a_run_without_files_is_pending(tmp_path):
    run = RunDirectory(tmp_path / "r")
    assert run.read_status() == {"state": "pending"}
    assert run.read_result() is None
    assert run.read_metrics().rows == []
    with pytest.raises(RecordError, match="never started"):
        run.read_config()


def test_a_damaged_file_is_named(run):
    (run.path / "result.json").write_text('{"val_loss": 1')
    with pytest.raises(RecordError, match=r"result\.json is not JSON"):
        run.read_result()


def test_whole_or_not_at_all(run, monkeypatch):
    run.write_result({"val_loss": 1.0})

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scaling.records.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run.write_result({"val_loss": 2.0})
    assert json.loads((run.path / "result.json").read_text()) == {"val_loss": 1.0}
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "result.json"]


def test_not_a_number_is_never_written_as_a_result(run):
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_result({"val_loss": math.nan})
    assert run.read_result() is None


def test_find_runs(run, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    assert [r.name for r in find_runs(tmp_path)] == [run.name]
    with pytest.raises(RecordError, match="is not a folder"):
        find_runs(tmp_path / "none")


def test_every_column_is_in_the_dictionary():
    from pathlib import Path

    text = Path(__file__).parents[1].joinpath("results/README.md").read_text()
    assert all(f"`{column}`" in text for column in METRICS)


# --- dynamics


def depth_row(attempt, step, sublayer, **values):
    row = {"attempt": attempt, "step": step, "tokens": step * 100, "sublayer": sublayer, "kind": "attention"}
    return row | {"output_rms": 1.0, "hidden_rms": 0.1, "gradient_norm": 1e-5} | values


def test_dynamics_are_those_of_the_last_attempt_in_full_precision(run):
    """T1, T2, T10."""
    assert run.read_dynamics() == []
    run.append_dynamics([depth_row(1, 20, i) for i in (0, 1)])
    run.append_dynamics([depth_row(2, 10, 0, weights=[1 / 3, math.pi], entropy=math.nan)])
    run.append_dynamics([depth_row(2, 20, 1, weights=[0.5, math.inf])])
    rows = run.read_dynamics()
    assert [(r["attempt"], r["step"], r["sublayer"]) for r in rows] == [(2, 10, 0), (1, 20, 0), (2, 20, 1)]
    assert (rows[0]["weights"], rows[0]["entropy"], rows[2]["weights"]) == ([1 / 3, math.pi], None, None)
    assert (rows[1]["hidden_rms"], rows[1]["tokens"], rows[1]["embedding_share"]) == (0.1, 2000, None)
    assert [path.name for path in run.path.iterdir() if "dynamics" in path.name] == ["dynamics.parquet"]


@given(st.floats(0, 0.999))
def test_a_torn_file_of_dynamics_is_said_by_a_reader_and_set_aside_by_the_writer(tmp_path_factory, share):
    run = RunDirectory(tmp_path_factory.mktemp("run") / "r")
    run.append_dynamics([depth_row(1, 10, 0)])
    path = run.path / "dynamics.parquet"
    torn = path.read_bytes()[: int(share * path.stat().st_size)]
    path.write_bytes(torn)
    with pytest.raises(RecordError, match=r"dynamics\.parquet is damaged: delete it; the run and its losses do not"):
        run.read_dynamics()
    run.append_dynamics([depth_row(2, 20, 0)])
    assert [row["step"] for row in run.read_dynamics()] == [20]
    assert (run.path / "dynamics.damaged").read_bytes() == torn


def test_another_table_is_not_taken_for_dynamics(run):
    import pyarrow
    from pyarrow import parquet

    path = run.path / "dynamics.parquet"
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(RecordError, match=r"dynamics\.parquet has columns \['a'\], not \['attempt'"):
        run.read_dynamics()
    path.unlink()
    run.append_dynamics([depth_row(1, 10, 0, kind="\x1b[31m")])
    with pytest.raises(RecordError, match="a kind of sublayer that is none of attention, mlp"):
        run.read_dynamics()
