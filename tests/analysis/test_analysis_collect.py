import csv
import json

import pytest

from analysis.collect import CURVE_COLUMNS, DYNAMICS_COLUMNS, RUN_COLUMNS, collect
from analysis.multiplier import estimates
from analysis.runs import load
from scaling.compute import ledgers, non_embedding_parameters, parameters, shape_of_record
from scaling.records import METRICS


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def only(folder):
    (row,) = collect(folder).runs
    return row


def test_a_finished_run_is_one_row_in_full_precision(tmp_path, one_run, analysis):
    run = one_run(tmp_path / "runs", "block", 96, seed=3, loss=2.1234567890123457)
    status, out, _ = analysis("collect", tmp_path / "runs", tmp_path / "out")
    assert status == 0
    assert "runs.csv" in out
    (row,) = read(tmp_path / "out" / "runs.csv")
    assert tuple(row) == RUN_COLUMNS
    shape = shape_of_record(run.read_run()["shape"])
    assert float(row["val_loss"]) == 2.1234567890123457
    assert (row["run"], row["variant"], row["size"], row["seed"]) == (run.name, "block", "w96", "3")
    assert row["status"] == "finished"
    assert int(row["params"]) == non_embedding_parameters(shape)
    assert int(row["params_total"]) == sum(parameters(shape).values())
    assert int(row["tokens"]) == int(row["steps"]) * int(row["batch_tokens"]) == 40 * 1024
    for ledger, per_token in ledgers(shape).items():
        assert float(row[f"flops_{ledger}"]) == per_token * 40 * 1024
    assert float(row["seconds"]) == 20 * 0.75
    assert (row["data"], row["data_hash"], row["batches_hash"]) == ("python", "da7a", "ba7c3")
    assert json.loads(row["tuning"]) == {"lr": 0.003, "optimizer": "adamw"}
    assert row["machine"] == "processor CPU, threads 2"
    assert row["note"] == ""
    curve = read(tmp_path / "out" / "curves.csv")
    assert tuple(curve[0]) == CURVE_COLUMNS
    assert len(curve) == 20
    assert curve[0]["val_loss"] == ""
    assert curve[1]["val_loss"] != ""
    assert [int(point["tokens"]) for point in curve] == [1024 * step for step in range(2, 41, 2)]


def test_collected_runs_are_a_table_that_loads(sweep, tmp_path, analysis):
    assert analysis("collect", sweep, tmp_path / "out")[0] == 0
    runs = load(tmp_path / "out")
    assert runs.hygiene.findings == ()
    assert runs.ledgers == ["model", "6nd", "paper", "seconds"]
    assert all(m.interval is not None for ledger in runs.ledgers for m in estimates(runs, ledger))


@pytest.mark.parametrize("state", ["running", "diverged", "failed", "pending"])
def test_an_unfinished_run_is_a_row_without_a_loss(tmp_path, one_run, state):
    run = one_run(tmp_path, state=state)
    run.write_status(state, message="what\nhappened")
    row = only(tmp_path)
    assert row["status"] == ("lost" if state == "running" else state)
    assert row.get("val_loss") is None
    assert row["note"] == "what happened"
    assert row["flops_model"] > 0


def test_a_planned_run_is_a_row_named_by_its_folder(tmp_path):
    folder = tmp_path / "block-cpu-small-s2-0a1b2c"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 2\n")
    row = only(tmp_path)
    assert (row["status"], row["variant"], row["size"], row["seed"]) == ("pending", "block", "cpu-small", 2)


def spoil_json(name):
    return lambda run: (run.path / name).write_text('{"cut')


def without(name):
    return lambda run: (run.path / name).unlink()


def edit(name, change):
    def spoil(run):
        value = json.loads((run.path / name).read_text())
        change(value)
        (run.path / name).write_text(json.dumps(value))

    return spoil


def test_a_finished_run_without_its_result_is_lost(sweep, tmp_path, one_run, analysis):
    broken = one_run(sweep, "block", 64, seed=7)
    without("result.json")(broken)
    assert analysis("collect", sweep, tmp_path / "out")[0] == 0
    [row] = [row for row in read(tmp_path / "out" / "runs.csv") if row["run"] == broken.name]
    assert (row["status"], row["val_loss"]) == ("lost", "")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_json("run.json"), "run.json is not JSON"),
        (spoil_json("status.json"), "status.json is not JSON"),
        (spoil_json("result.json"), "result.json is not JSON"),
        (without("run.json"), "run.json is missing"),
        (edit("run.json", lambda v: v["shape"].pop("d_model")), "d_model"),
        (edit("run.json", lambda v: v.pop("training")), "no 'training'"),
        (edit("run.json", lambda v: v.update(data="python")), "run.json holds a bad value of data"),
        (edit("run.json", lambda v: v.update(attempts=[1])), "do not fit this version"),
        (edit("result.json", lambda v: v.update(run="another")), "another run's file"),
        (edit("result.json", lambda v: v.update(tokens=5)), "result.json has tokens 5, this run has 40960"),
        (edit("result.json", lambda v: v.pop("val_loss")), "result.json holds no val_loss"),
        (lambda run: (run.path / "metrics.csv").write_text("a,b\n1,2\n"), "metrics.csv has columns"),
        (
            lambda run: (run.path / "metrics.csv").write_text(
                ",".join(METRICS) + "\n1,1,7" + "," * (len(METRICS) - 3) + "\n"
            ),
            "7 tokens at step 1",
        ),
    ],
)
def test_a_broken_run_is_named_and_does_not_stop_the_others(sweep, tmp_path, one_run, analysis, spoil, says):
    broken = one_run(sweep, "block", 64, seed=7)
    spoil(broken)
    status, out, _ = analysis("collect", sweep, tmp_path / "out")
    assert status == 0
    rows = {row["run"]: row for row in read(tmp_path / "out" / "runs.csv")}
    assert len(rows) == 9
    row = rows[broken.name]
    assert row["status"] == "failed"
    assert row["val_loss"] == ""
    assert says in row["note"]
    assert str(tmp_path) not in row["note"]
    assert broken.name in out
    assert says in " ".join(out.split())


def test_stale_compute_is_recounted_and_said(tmp_path, one_run):
    run = one_run(tmp_path, flops_per_token={"model": 1.0, "6nd": 5.0})
    row = only(tmp_path)
    counted = ledgers(shape_of_record(run.read_run()["shape"]))
    assert row["flops_model"] == counted["model"] * row["tokens"]
    assert "counts 1 FLOPs per token in ledger model" in row["note"]
    assert "ledger 6nd" in row["note"]


def test_rows_of_a_resumed_run_are_counted_once(tmp_path, one_run):
    run = one_run(tmp_path)
    again = run.open_metrics(2)
    again.append(step=40, tokens=40 * 1024, train_loss=9.0, seconds=0.25)
    again.close()
    with open(run.path / "metrics.csv", "a") as file:
        file.write("2,42,43")
    collected = collect(tmp_path)
    (row,) = collected.runs
    assert (row["superseded_rows"], row["damaged_rows"]) == (1, 1)
    assert row["seconds"] == pytest.approx(19 * 0.5 + 0.25)
    assert collected.curves[-1]["train_loss"] == 9.0
    assert "1 rows of metrics.csv trained again" in collected.problems[0]


def measured(run, steps, sublayers=4):
    for step in steps:
        kinds = ("attention", "mlp")
        at = {"attempt": 1, "step": step, "tokens": step * 1024}
        numbers = {"output_rms": 1 / 3, "hidden_rms": 2.0, "gradient_norm": 1e-7 / 3, "entropy": 0.5}
        numbers |= {"embedding_share": 0.25, "predecessor_share": 0.75, "weights": [0.25, 1 / 3]}
        run.append_dynamics([at | {"sublayer": i, "kind": kinds[i % 2]} | numbers for i in range(sublayers)])


def test_dynamics_of_a_few_steps_are_a_table_of_their_own(tmp_path, one_run, analysis):
    """First, last and evenly between; a run without them has no rows."""
    one_run(tmp_path / "runs")
    run = one_run(tmp_path / "runs", "block")
    measured(run, [*range(0, 41, 2)])
    assert analysis("collect", tmp_path / "runs", tmp_path / "out")[0] == 0
    rows = read(tmp_path / "out" / "dynamics.csv")
    assert tuple(rows[0]) == DYNAMICS_COLUMNS
    expected = [(str(1024 * step), str(i)) for step in (0, 10, 20, 30, 40) for i in range(4)]
    assert [(row["tokens"], row["sublayer"]) for row in rows] == expected
    assert {(row["run"], row["variant"], row["size"], row["seed"]) for row in rows} == {(run.name, "block", "w64", "0")}
    assert (rows[1]["kind"], rows[1]["output_rms"], rows[1]["gradient_norm"]) == ("mlp", "0.333333", "3.33333e-08")
    assert json.loads(rows[1]["weights"]) == [0.25, 0.333333]


@pytest.mark.parametrize("steps", [[], [40], [0, 40]])
def test_fewer_steps_of_dynamics_are_all_there(tmp_path, one_run, steps):
    measured(one_run(tmp_path), steps, sublayers=1)
    assert [row["tokens"] for row in collect(tmp_path).dynamics] == [1024 * step for step in steps]


def test_what_a_scheme_does_not_have_is_an_empty_cell(tmp_path, one_run, analysis):
    run = one_run(tmp_path / "runs")
    at = {"attempt": 1, "step": 40, "tokens": 40960, "sublayer": 0, "kind": "attention"}
    run.append_dynamics([at | {"output_rms": 1.0, "hidden_rms": 1.0, "gradient_norm": 1.0}])
    assert analysis("collect", tmp_path / "runs", tmp_path / "out")[0] == 0
    [row] = read(tmp_path / "out" / "dynamics.csv")
    assert [row[c] for c in ("entropy", "embedding_share", "predecessor_share", "weights")] == [""] * 4


def test_damaged_dynamics_are_noted_and_cost_nothing_else(tmp_path, one_run, analysis):
    run = one_run(tmp_path / "runs")
    (run.path / "dynamics.parquet").write_bytes(b"PAR1")
    status, out, _ = analysis("collect", tmp_path / "runs", tmp_path / "out")
    assert status == 0
    assert "dynamics.parquet is damaged" in " ".join(out.split())
    [row] = read(tmp_path / "out" / "runs.csv")
    assert (row["status"], float(row["val_loss"])) == ("finished", 3.0)
    assert not (tmp_path / "out" / "dynamics.csv").exists()


def test_missing_seconds_stay_missing(tmp_path, one_run):
    run = one_run(tmp_path)
    (run.path / "metrics.csv").unlink()
    assert "seconds" not in only(tmp_path)


def test_a_folder_without_runs_is_one_clear_line(tmp_path, analysis):
    for folder, says in ((tmp_path, "holds no run directories"), (tmp_path / "nowhere", "is not a folder")):
        status, _, err = analysis("collect", folder, tmp_path / "out")
        assert status == 2
        assert says in err
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
