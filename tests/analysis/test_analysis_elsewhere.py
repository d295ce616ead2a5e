"""Tables from elsewhere: columns under other names, losses that were rounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import TableError
from analysis.loss_rounding import rounding_step
from analysis.multiplier import estimates
from analysis.runs import load


@pytest.fixture
def elsewhere(planted, table):
    """A table with the columns Model, arm, N, D and loss, and a column val_loss that means something else."""
    rows = [
        {
            "Model": row["size"],
            "arm": row["variant"],
            "N": row["flops_model"] / 6e9,
            "D": 1e9,
            "final loss": row["val_loss"],
            "val_loss": "n/a",
        }
        for row in planted({"block": 1.25}, noise=0.001)
    ]
    return table(rows) / "runs.csv"


NAMES = {"size": "Model", "variant": "arm", "params": "N", "tokens": "D", "val_loss": "final loss"}


def test_columns_under_other_names_are_read_as_ours(elsewhere, planted, table):
    (renamed,) = estimates(load(elsewhere, NAMES), "6nd")
    (ours,) = estimates(load(table(planted({"block": 1.25}, noise=0.001), "ours")), "model")
    assert renamed.multiplier == pytest.approx(ours.multiplier, rel=1e-9)
    assert renamed.interval == pytest.approx(ours.interval, rel=1e-9)


def test_the_verbs_take_columns_and_record_them(elsewhere, analysis, tmp_path):
    columns = "{" + ", ".join(f"{ours}: {theirs}" for ours, theirs in NAMES.items()) + "}"
    for verb in ("fit", "multiplier"):
        status, _, err = analysis(verb, elsewhere, "--columns", columns, "--out", tmp_path / verb)
        assert (status, err) == (0, "")
    for verb in ("fit", "multiplier"):
        assert json.loads((tmp_path / verb / f"{verb}.json").read_text())["input"]["columns"] == NAMES
    assert analysis("report", elsewhere.parent, "--columns", columns)[0] == 0
    single = [item for ours, theirs in NAMES.items() for item in (f"--columns.{ours}", theirs)]
    assert analysis("multiplier", elsewhere, *single)[0] == 0


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"sise": "Model"}, "there is no column 'sise'"),
        ({"size": "model"}, "no column 'model' to read size from; the columns are Model, arm"),
        ({"size": "Model", "variant": "Model"}, "given two names"),
        ({"size": "Model", "variant": "arm", "params": "N", "tokens": "D"}, "val_loss is n/a"),
        ({}, "--columns.size NAME"),
    ],
)
def test_a_wrong_name_is_one_clear_line(elsewhere, columns, says):
    with pytest.raises(TableError, match=says.replace(".", r"\.")):
        load(elsewhere, columns)


@pytest.mark.parametrize("text", ["size", "[1, 2]", "{size: [1]}"])
def test_columns_that_are_no_names_are_one_line_and_status_2(elsewhere, analysis, text):
    status, out, err = analysis("multiplier", elsewhere, "--columns", text)
    assert (status, out, err.count("\n")) == (2, "", 1)


@given(st.lists(st.integers(1000, 4000), min_size=3, max_size=9), st.integers(2, 4))
def test_losses_of_a_few_decimals_are_recognised(thousandths, decimals):
    losses = [round(number / 1000, decimals) for number in thousandths]
    step = rounding_step(losses)
    assert step >= 10**-decimals * 0.999
    assert all(abs(loss / step - round(loss / step)) < 1e-9 for loss in losses)


def test_full_precision_is_not_taken_for_rounding():
    assert rounding_step([1.931, 1.8951234]) == 0
    assert rounding_step([1.93112, 1.8]) == 0
    assert rounding_step([12.3456, 11.0]) == 0
    assert rounding_step([]) == 0
    assert rounding_step([2.0, 3.0]) == 1
    assert rounding_step([1.931, 1.9]) == 1e-3


def test_rounding_is_reported_and_carried(planted, table, analysis):
    rows = planted({"block": 1.25}, noise=0.0, compute=tuple(1e18 * 2**i for i in range(6)))
    full = load(table(rows, "full"))
    coarse = load(table([{**row, "val_loss": f"{row['val_loss']:.2f}"} for row in rows], "coarse"))
    assert full.loss_step == 0
    assert full.hygiene.of("rounded losses") == []
    assert coarse.loss_step == 0.01
    (finding,) = coarse.hygiene.of("rounded losses")
    assert "steps of 0.01" in finding.reason
    (m,) = estimates(coarse, "model")
    assert m.interval[0] < 1.25 < m.interval[1]
    assert m.spread_variance >= 0.99 * m.rounding_sd**2 / 6
    out = analysis("multiplier", table(rows, "full"))[1]
    assert "rounded" not in out
