import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis import size_tokens as size_tokens_module
from analysis.errors import TableError
from analysis.law_tables import _interval_text, _rounded
from analysis.loss_laws import floors, growths, is_mixed, size_tokens
from analysis.losses import ALL, is_bare, load_losses, of_runs
from analysis.runs import load
from analysis.size_tokens import loss_at, starts_of_the_replication

TRUE = np.array([math.log(480), math.log(2100), math.log(1.8), 0.35, 0.37])


@pytest.fixture(autouse=True)
def few_starts(monkeypatch):
    """A hundred starts of the 4,500, to be quick."""
    few = starts_of_the_replication()[::45]
    monkeypatch.setattr(size_tokens_module, "starts_of_the_replication", lambda: few)


def bare_rows(names=("N", "D", "loss"), sd=0.01):
    generator = np.random.default_rng(0)
    rows = []
    for size in np.geomspace(3e7, 1e10, 5):
        for tokens in np.geomspace(1e9, 1e12, 4):
            loss = loss_at(TRUE, size, tokens) * math.exp(generator.normal(0, sd))
            values = {"N": size, "D": tokens, "loss": loss, "params": size, "tokens": tokens, "val_loss": loss}
            values["C"] = 6 * size * tokens
            rows.append({name: float(values[name]) for name in names})
    return rows


@pytest.mark.parametrize(
    ("names", "ledger"),
    [
        (("N", "D", "loss"), "6nd"),
        (("params", "tokens", "val_loss"), "6nd"),
        (("C", "N", "loss"), "given"),
        (("C", "D", "val_loss"), "given"),
        (("C", "N", "D", "loss"), "given"),
    ],
)
def test_a_bare_table_is_read_whatever_two_of_n_d_and_c_it_has(table, names, ledger):
    folder = table(bare_rows(names))
    assert is_bare(folder)
    losses = load_losses(folder)
    size, tokens, loss = losses.over_size[ALL]
    expected = bare_rows()
    for values, name in ((size, "N"), (tokens, "D"), (loss, "loss")):
        np.testing.assert_allclose(values, [row[name] for row in expected])
    (of_compute,) = losses.over_compute[ledger].values()
    assert list(of_compute[0]) == sorted(of_compute[0])
    np.testing.assert_allclose(of_compute[0], np.sort(np.log(6 * size * tokens)))
    assert losses.lowest == pytest.approx(min(row["loss"] for row in expected))


def test_compute_alone_gives_l_of_c_alone(table):
    losses = load_losses(table(bare_rows(("C", "loss"))))
    assert losses.over_size == {}
    assert len(losses.over_compute["given"][ALL][0]) == 20


def test_bom_crlf_and_other_columns_are_fine(tmp_path):
    path = tmp_path / "t.csv"
    lines = ["remark, N ,D,loss", *(f"x,{row['N']:.17e},{row['D']!r},{row['loss']!r}" for row in bare_rows())]
    path.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n")
    losses = load_losses(path)
    assert losses.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert losses.rows_read == len(losses.over_size[ALL][0]) == 20


def test_reruns_are_kept_and_copies_and_unfinished_rows_are_named(table):
    rows = [{**row, "status": "finished"} for row in bare_rows()]
    rows += [{**rows[0], "loss": 3.3}, rows[1], {**rows[2], "status": "diverged", "loss": ""}]
    losses = load_losses(table(rows))
    assert losses.rows_read == 23
    assert len(losses.over_size[ALL][0]) == 21
    assert [(f.kind, f.subject, f.reason) for f in losses.findings] == [
        ("duplicate", "line 23", "repeats line 3; dropped"),
        ("unfinished", "line 24", "diverged"),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loss": "nan"}, "line 21: loss is nan"),
        ({"loss": ""}, "line 21: loss is empty"),
        ({"N": "-1"}, "line 21: N is -1"),
        ({"D": "0"}, "line 21: D is 0"),
        ({"D": "inf"}, "line 21: D is inf"),
        ({"N": "many"}, "line 21: N is many"),
    ],
)
def test_a_bad_cell_is_one_line_and_status_2(table, analysis, change, says):
    rows = bare_rows()
    folder = table([*rows[:-1], {**rows[-1], **change}])
    with pytest.raises(TableError, match=says):
        load_losses(folder)
    for verb in ("fit", "plots"):
        status, _, err = analysis(verb, folder)
        assert (status, err.count("\n")) == (2, 1)
        assert says in err
    assert [path.name for path in folder.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize("content", ["N,D,loss\n", "N,D,loss,status\n1e8,1e9,3,failed\n"])
def test_a_table_without_finished_rows_says_so(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(TableError, match="no finished rows"):
        load_losses(tmp_path)


def test_a_table_of_arms_is_not_bare(planted, table):
    assert not is_bare(table([{**row, "N": 1, "D": 1, "loss": 1} for row in planted({"block": 1.2})]))


def test_fit_writes_every_law_of_a_bare_table_and_plots_draws_it(table, analysis):
    folder = table(bare_rows())
    status, out, err = analysis("fit", folder, "--replicates", "100")
    assert (status, err) == (0, "")
    assert "sizes differ at equal compute" in out
    assert "100 bootstrap replicates, 0 failed" in out
    assert "extrapolated" in out
    record = json.loads((folder / "fit.json").read_text())
    assert record["hygiene"] == {"rows_read": 20, "rows_used": 20, "findings": []}
    law = record["size_and_tokens"][ALL]
    for name, true in zip(("alpha", "beta"), TRUE[3:]):
        low, high = law[f"{name}_interval"]
        assert low < law[name] < high
        assert law[name] == pytest.approx(true, abs=0.05)
        assert len(repr(law[name])) > 12
    assert law["certificate"]["starts"] == 100
    assert law["optimal_exponents"]["a"]["value"] == pytest.approx(law["beta"] / (law["alpha"] + law["beta"]))
    assert record["floors"]["6nd"][ALL]["pinned"][0]["E"] == 0
    assert record["floors"]["6nd"][ALL]["free"]["exploratory"] is True
    first = (folder / "fit.json").read_bytes()
    analysis("fit", folder, "--replicates", "100")
    assert (folder / "fit.json").read_bytes() == first
    assert analysis("plots", folder)[0] == 0
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "size_tokens_all_rows.png",
        "size_tokens_all_rows.svg",
    }


def test_the_dictionary_names_every_key_of_a_law(table, analysis):
    folder = table(bare_rows())
    analysis("fit", folder, "--replicates", "50")
    analysis("fit", folder)
    record = json.loads((folder / "fit.json").read_text())
    law, under = record["size_and_tokens"][ALL], record["floors"]["6nd"][ALL]
    named = {*record, *record["hygiene"], *under, *under["pinned"][0], *under["free"]}
    named |= {*law, *law["certificate"], *law["bootstrap"], *law["optimal_exponents"], *law["optimal"][0]}
    named |= {*law["optimal_exponents"]["a"], "exponent", "weighted"}
    text = (Path(__file__).parents[2] / "results" / "README.md").read_text()
    assert [key for key in named if f"`{key}`" not in text and not key.endswith("_interval")] == []


def test_sizes_that_follow_from_compute_have_an_exponent_weighted_where_the_table_says_so(table, analysis):
    compute = np.geomspace(1e18, 1e21, 7)
    size = 0.1 * compute**0.5 * np.exp([0.3, 0, 0.01, 0, -0.02, 0, 0.01])
    rows = [{"C": c, "N": n, "loss": 3 * c**-0.05, "N_sd": 0.01} for c, n in zip(compute.tolist(), size.tolist())]
    rows[0]["N_sd"] = 10.0
    for weighted in (True, False):
        folder = table([row if weighted else {k: row[k] for k in ("C", "N", "loss")} for row in rows], f"{weighted}")
        losses = load_losses(folder)
        assert not is_mixed(losses, ALL)
        assert growths(losses)[ALL].weighted == weighted
        assert growths(losses)[ALL].exponent == pytest.approx(0.5, abs=0.005) or not weighted
        out = analysis("fit", folder)[1]
        assert ("weighted by N_sd" in out) == weighted
        record = json.loads((folder / "fit.json").read_text())
        assert set(record["size_over_compute"][ALL]) == {"exponent", "interval", "weighted"}
        assert record["ledgers"]["given"][ALL]["alpha"] == pytest.approx(0.05)
    assert abs(growths(losses)[ALL].exponent - 0.5) > 0.01


def test_a_wide_interval_does_not_round_a_number_away():
    assert _rounded(60.4, (0.3, 292.0)) == "60"
    assert _interval_text((0.3121, 292.4)) == "0.31 to 292"
    assert _interval_text((1.7401, 1.8351)) == "1.740 to 1.835"
    assert _interval_text((613.67, 2540.5)) == "610 to 2540"
    assert _rounded(0.0, (0.0, 0.0)) == "0"
    assert _interval_text(None) == "none"


def test_tokens_in_proportion_are_not_identifiable_and_l_of_c_still_works(planted, table, analysis):
    rows = [
        {**row, "params": row["flops_model"] ** 0.5, "tokens": 20 * row["flops_model"] ** 0.5}
        for row in planted({"block": 1.25}, compute=tuple(1e18 * 2**i for i in range(8)), noise=0.001)
    ]
    folder = table(rows)
    status, out, err = analysis("fit", folder)
    assert (status, err) == (0, "")
    assert "not identifiable: tokens go with parameters (100.0 %" in " ".join(out.replace("\u2502", " ").split())
    record = json.loads((folder / "fit.json").read_text())
    for arm in ("baseline", "block"):
        assert record["size_and_tokens"][arm]["refusal"] == "not identifiable"
        assert record["ledgers"]["model"][arm]["alpha"] == pytest.approx(0.06, abs=0.003)
        assert len(record["floors"]["model"][arm]["pinned"]) == 5
    assert not is_mixed(of_runs(load(folder)), "block")
    assert analysis("plots", folder)[0] == 0


def test_arms_that_vary_both_have_a_law_each(table):
    rows = []
    for variant, gain in (("baseline", 1.0), ("block", 0.97)):
        for place, row in enumerate(bare_rows(("params", "tokens", "val_loss"))):
            rows.append({**row, "size": f"s{place}", "variant": variant, "val_loss": row["val_loss"] * gain})
    losses = of_runs(load(table(rows)))
    laws = size_tokens(losses, replicates=0)
    assert laws["block"].law.named["E"] == pytest.approx(0.97 * laws["baseline"].law.named["E"], rel=1e-4)
    assert is_mixed(losses, "block")
    assert growths(losses) == {}
    assert [law.floor for law in floors(losses)["6nd"]["baseline"].pinned] == [
        law.floor for law in floors(losses)["6nd"]["block"].pinned
    ]


def test_a_table_that_shows_no_law_says_why_and_does_not_fail(table, analysis):
    folder = table([{"N": n, "D": d, "loss": 3.0} for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11)])
    status, out, err = analysis("fit", folder)
    assert (status, err) == (0, "")
    assert "nan" not in out
    record = json.loads((folder / "fit.json").read_text())
    assert record["size_and_tokens"][ALL]["refusal"] == "refused"
    status, _, err = analysis("plots", folder)
    assert status == 2
    assert "fit` says why" in err


def test_a_negative_number_of_replicates_is_refused(table, analysis):
    status, _, err = analysis("fit", table(bare_rows()), "--replicates", "-1")
    assert status == 2
    assert "give 0 or more" in err


def test_a_bare_table_under_other_names_is_read_as_ours(tmp_path):
    file = tmp_path / "digitised.csv"
    rows = [(n, 6 * n * d, 1.7 + 400 * n**-0.34 + 410 * d**-0.28) for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10)]
    file.write_text("Model Size,Training FLOP,y\n" + "".join(f"{n},{c},{loss}\n" for n, c, loss in rows))
    assert not is_bare(file)
    columns = {"N": "Model Size", "C": "Training FLOP", "loss": "y"}
    assert is_bare(file, columns)
    size, tokens, loss = load_losses(file, columns).over_size["all rows"]
    assert sorted(set(size)) == [1e7, 1e8, 1e9]
    assert sorted(set(tokens.round())) == [1e9, 1e10]
    assert sorted(loss) == sorted(row[2] for row in rows)
