import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.calibrate import calibrate
from analysis.calibration_tables import coverage_record
from analysis.collect import CURVE_COLUMNS, RUN_COLUMNS
from analysis.multiplier import estimates
from analysis.pairing import KINDS
from analysis.runs import load
from analysis.simulate import Setting

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


def test_the_retyped_table_is_the_golden_one(golden):
    ours = pd.read_csv(PUBLISHED / "attnres_table2.csv")
    pd.testing.assert_frame_equal(ours, pd.read_csv(golden("attnres_table2.csv")))


def test_every_column_is_in_the_readme():
    text = (PUBLISHED / "README.md").read_text()
    for column in pd.read_csv(PUBLISHED / "attnres_table2.csv").columns:
        assert f"`{column}`" in text


def test_plots_draw_the_papers_own_figure(tmp_path, analysis):
    status, _, _ = analysis("plots", PUBLISHED, "--out", tmp_path)
    assert status == 0
    names = {path.name for path in tmp_path.iterdir()}
    figures = ["loss_compute_6nd", "loss_compute_paper", "paired_losses", "forest", "multiplier_curve"]
    figures += ["pinned_floors", "power", "loss_gap", "depth", "depth_weights_block", "ablations", "block_size"]
    figures += ["shape_grid"]
    assert names == {f"{n}.{k}" for n in figures for k in ("png", "svg")}


@pytest.mark.parametrize(("ledger", "m"), [("6nd", 1.239), ("paper", 1.231)])
def test_the_papers_multiplier_names_its_ledger(ledger, m):
    assert estimates(load(PUBLISHED), ledger)[0].multiplier == pytest.approx(m, abs=0.0005)


def keys(record):
    """Every key of a record, at any depth."""
    if isinstance(record, dict):
        return set(record).union(*map(keys, record.values()))
    return set().union(*map(keys, record)) if isinstance(record, list) else set()


def test_the_dictionary_names_every_column_and_key_that_an_analysis_writes(planted, table, analysis):
    text = (PUBLISHED.parent / "README.md").read_text()
    folder = table(planted({"block": 1.25, "full": 1.3}, noise=0.001, seeds=2))
    analysis("fit", folder)
    analysis("multiplier", folder, "--claim", "1.25")
    analysis("power", "--table", folder, "--multiplier", "1.1", "--sizes", "5", "--seeds", "1", "--out", folder)
    written = {*RUN_COLUMNS, *CURVE_COLUMNS, *KINDS}
    for name in ("fit.json", "multiplier.json"):
        record = json.loads((folder / name).read_text())
        written |= {*record, *record["hygiene"], *keys(record["ledgers"]["model"]["block"])}
    written |= keys(json.loads((folder / "power.json").read_text()))
    written |= keys(coverage_record(calibrate([("plain", Setting(3, 0.0, 0.002, 1.1))], 9), 0))
    missing = [name for name in written if f"`{name}`" not in text]
    assert missing == []
