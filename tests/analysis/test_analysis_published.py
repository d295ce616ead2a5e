import csv
import hashlib
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
# Every cell of every file was compared with the paper digit by digit; these are the SHA-256 of the cells that were.
CHECKED = {
    "ablations": "5e3858e0883d232695520f19039ec2619ae214a6a1637d4871fe0154d5ab1711",
    "attnres_table2": "792b49b177f7b4a2b50eda8cb26b5a3ce8f04fd08572fcc002491a73a0192062",
    "block_size": "65665b98775ea506c51956be811c064df96b71c6fb26214b14701510fe2472e0",
    "depth": "718aaa3c4c35d20f5a566b82c39f01f63571091397ae5725658272d7e4109f1d",
    "depth_weights": "ce183051b4a0f79ebf31c3d32b34958bc45cfea7af2d7108020c48b461b872f3",
    "shape_grid": "2ebf0f42a069f6ea07bec3a299abc664a2cc6a1785803b2707dbce07d2717be9",
    "training": "24b169bb185ddf5aceb242863dbf0237e7f52d1eb5853bb288cce18b46bf738c",
}


def cells_hash(path):
    """SHA-256 of a table's cells; numbers count by their value, however they are written."""

    def normal(cell):
        try:
            return repr(float(cell))
        except ValueError:
            return cell

    with open(path, newline="") as file:
        rows = [[normal(cell) for cell in row] for row in csv.reader(file)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def test_every_retyped_digit_is_the_one_that_was_checked():
    assert {path.stem: cells_hash(path) for path in PUBLISHED.glob("*.csv")} == CHECKED


@pytest.mark.parametrize(
    ("name", "digits", "typo"),
    [
        ("training", "1.3594", "1.3549"),
        ("depth", ",0.66,0.1444e-5", ",0.99,0.1999e-5"),
        ("ablations", "1.741", "1.761"),
        ("shape_grid", "1.862", "1.866"),
        ("depth_weights", "0.052", "0.053"),
        ("attnres_table2", "2.99e-3", "2.98e-3"),
    ],
)
def test_a_mistyped_digit_is_seen_and_another_notation_is_not(tmp_path, name, digits, typo):
    text, copy = (PUBLISHED / f"{name}.csv").read_text(), tmp_path / "copy.csv"
    assert digits in text
    copy.write_text(text.replace(digits, typo, 1))
    assert cells_hash(copy) != CHECKED[name]
    copy.write_text(text.replace("e-", "E-0"))
    assert cells_hash(copy) == CHECKED[name]


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


def published(name):
    return pd.read_csv(PUBLISHED / f"{name}.csv")


def test_the_readme_names_every_file_and_column():
    text = (PUBLISHED / "README.md").read_text()
    files = sorted(PUBLISHED.glob("*.csv"))
    assert len(files) == 7
    for path in files:
        assert f"`{path.name}`" in text
        assert [column for column in pd.read_csv(path).columns if f"`{column}`" not in text] == []


def test_the_arms_of_table_4_are_table_2s_where_both_have_them():
    ours, table_2 = published("ablations"), published("attnres_table2")
    assert (len(ours), ours["val_loss"].min(), ours["val_loss"].max()) == (12, 1.731, 1.767)
    same = ours.merge(table_2, on=["size", "variant"])
    assert sorted(same["variant"]) == ["baseline", "block", "full"]
    for column in ("val_loss", "params", "tokens"):
        assert (same[f"{column}_x"] == same[f"{column}_y"]).all()


def test_block_sizes_agree_with_table_4_and_loss_rises_with_them():
    losses = published("block_size").set_index("variant")["val_loss"]
    table_4 = published("ablations").set_index("variant")["val_loss"]
    assert (losses["baseline"], losses["full"], losses["block_size_4"]) == tuple(table_4[["baseline", "full", "block"]])
    by_size = losses[["full", *(f"block_size_{2**i}" for i in range(1, 6))]]
    assert by_size.is_monotonic_increasing
    assert losses["baseline"] - losses["block_size_32"] == pytest.approx(0.009)


def test_every_shape_gains_what_the_paper_says_and_the_optimum_moves():
    grid = published("shape_grid").pivot(index="size", columns="variant", values="val_loss")
    gains = grid["baseline"] - grid["attnres"]
    assert len(gains) == 25
    assert (gains.min(), gains.max()) == (pytest.approx(0.019), pytest.approx(0.063))
    assert gains.mean() == pytest.approx(0.041, abs=0.0005)
    assert (grid["baseline"].idxmin(), grid["attnres"].idxmin()) == ("d60-h0.3", "d45-h0.3")


def test_the_gap_over_training_grows_as_the_paper_says():
    losses = published("training").pivot(index="step", columns="variant", values="val_loss")
    gap = losses["baseline"] - losses["block"]
    assert (len(gap), round(gap.iloc[0], 3), round(gap.iloc[-1], 3)) == (12, 0.009, 0.018)
    assert published("training")["tokens"].max() == pytest.approx(1e12, rel=1e-5)


def test_gradients_span_what_the_paper_says():
    depth = published("depth")
    by_arm = depth.groupby("variant")["gradient_norm"]
    spans = by_arm.max() / by_arm.min()
    assert (round(spans["baseline"]), round(spans["block"], 1)) == (36, 8.3)
    output = depth.pivot(index="transformer_block", columns="variant", values="output_rms")
    assert len(output) == 27
    assert output["baseline"].is_monotonic_increasing
    assert output["block"].max() < 2


def test_weights_of_a_read_sum_to_1_over_the_sources_it_has():
    weights = published("depth_weights")
    block = weights[weights["variant"] == "block"].groupby(["before", "layer"])["weight"]
    assert len(block) == 32
    assert (abs(block.sum() - 1) <= 0.0005 * block.count() + 1e-9).all()
    # Blocks of 2 Transformer layers: layer l has ended (l - 1) // 2 of them; within one, its own sum is a source too.
    for (before, layer), count in block.count().items():
        inside = before == "mlp" or layer % 2 == 0
        assert count == 1 + (layer - 1) // 2 + inside
    full = weights[(weights["variant"] == "full") & (weights["layer"] <= 3)].groupby(["before", "layer"])["weight"]
    assert full.sum().to_numpy() == pytest.approx(1, abs=0.002)
