import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import TableError
from analysis.multiplier import estimates
from analysis.runs import load
from scaling.compute import PFLOPS_DAY


def kinds(runs):
    return [finding.kind for finding in runs.hygiene.findings]


def test_bom_crlf_spaces_other_columns_and_scientific_notation_are_fine(tmp_path):
    lines = ["size, variant ,params,tokens,val_loss,remark"]
    for place, params in enumerate(("1e6", "2.0E+06", "4000000")):
        lines += [
            f"s{place},baseline,{params},2e8,{3 - place / 10},a",
            f"s{place},block,{params},2e8,{2.9 - place / 10},",
        ]
    path = tmp_path / "elsewhere.csv"
    path.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n")
    runs = load(path)
    assert runs.ledgers == ["6nd"]
    assert list(runs.table["flops_6nd"][:2]) == [6 * 1e6 * 2e8] * 2
    assert list(runs.table["line"]) == [2, 3, 4, 5, 6, 7]
    assert runs.hygiene.pairs_used == 3


def test_compute_in_pflops_days_is_the_papers_ledger(planted, table):
    rows = planted({"block": 1.2})
    for row in rows:
        row["compute_pfs_days"] = row.pop("flops_model") / PFLOPS_DAY
    runs = load(table(rows))
    assert runs.ledgers == ["paper"]
    assert estimates(runs, "paper")[0].multiplier == pytest.approx(1.2)


def test_ledgers_are_never_mixed(planted, table):
    """The arm's compute in another ledger than the baseline's is no pair in either."""
    rows = planted({"block": 1.2, "full": 1.3})
    for row in rows:
        if row["variant"] == "full":
            row["flops_paper"] = row.pop("flops_model")
    block, full = estimates(load(table(rows)), "model")
    assert block.multiplier == pytest.approx(1.2)
    assert full.multiplier is None
    assert "no pair of runs has compute in this ledger" in full.reason


@pytest.mark.parametrize("status", ["running", "lost", "diverged", "failed", "pending", ""])
def test_a_run_that_did_not_finish_takes_its_pair_with_it_and_is_named(planted, table, status):
    rows = planted({"block": 1.2, "full": 1.3}, compute=(1e18, 2e18, 4e18, 8e18, 16e18))
    for row in rows:
        row["status"] = "finished"
        row["run"] = f"{row['variant']}-{row['size']}"
    lost = next(row for row in rows if row["run"] == "block-s1")
    lost["status"] = status
    lost["val_loss"] = ""
    runs = load(table(rows))
    assert [m.pairs[1].size for m in estimates(runs, "model")] == ["s2", "s1"]
    (dropped,) = runs.hygiene.of("pair dropped")
    assert dropped.subject == "block, size s1, seed 0"
    assert "block-s1" in dropped.reason
    assert (status or "without status") in dropped.reason
    assert runs.hygiene.rows_read == 15
    assert runs.hygiene.rows_finished == 14


def test_a_lost_baseline_takes_every_arms_pair_with_it(planted, table):
    rows = planted({"block": 1.2, "full": 1.3})
    for row in rows:
        row["status"] = "lost" if row["variant"] == "baseline" and row["size"] == "s0" else "finished"
    runs = load(table(rows))
    assert len(runs.hygiene.of("pair dropped")) == 2
    assert all(len(m.pairs) == 3 for m in estimates(runs, "model"))


@pytest.mark.parametrize("column", ["data_hash", "tokens", "schedule", "batches_hash"])
def test_runs_that_were_not_trained_alike_are_not_paired(planted, table, column):
    rows = planted({"block": 1.2})
    for row in rows:
        row[column] = 1000 if column == "tokens" else "same"
    rows[-1][column] = 2000 if column == "tokens" else "other"
    runs = load(table(rows))
    (refused,) = runs.hygiene.of("pair refused")
    assert refused.subject == "block, size s3, seed 0"
    assert column in refused.reason
    assert "block" in refused.reason
    assert runs.hygiene.pairs_used == 3


def test_a_mark_that_one_run_lacks_is_said_and_the_pair_is_used(planted, table):
    rows = planted({"block": 1.2})
    rows[0]["data_hash"] = "da7a"
    runs = load(table(rows))
    assert kinds(runs) == ["unchecked"]
    assert runs.hygiene.pairs_used == 4


def test_unequal_tuning_and_machines_are_warned_about_by_what_differs(planted, table):
    rows = planted({"block": 1.2})
    for row in rows:
        row["tuning"], row["machine"] = '{"lr":0.001,"optimizer":"adamw"}', "one"
    rows[-1]["tuning"], rows[-1]["machine"] = '{"lr":0.002,"optimizer":"adamw"}', "two"
    runs = load(table(rows))
    assert kinds(runs) == ["unequal tuning", "unequal machines"]
    assert runs.hygiene.of("unequal tuning")[0].reason == "lr 0.001 (baseline) and lr 0.002 (block)"
    assert runs.hygiene.pairs_used == 4


def test_exact_copies_are_dropped_and_counted(planted, table):
    rows = planted({"block": 1.2})
    once = estimates(load(table(rows, "once")), "model")
    runs = load(table([*rows, rows[2], rows[2]], "twice"))
    assert kinds(runs) == ["duplicate", "duplicate"]
    assert runs.hygiene.rows_read == 10
    assert runs.hygiene.rows_finished == 8
    assert estimates(runs, "model") == once


def test_a_finished_run_stands_for_an_unfinished_one_of_the_same_name(planted, table):
    rows = planted({"block": 1.2})
    runs = load(
        table([{**rows[-1], "status": "failed", "val_loss": ""}, *({**row, "status": "finished"} for row in rows)])
    )
    assert kinds(runs) == ["unfinished"]
    assert runs.hygiene.pairs_used == 4


def bad(rows, **change):
    return [*rows[:-1], {**rows[-1], **change}]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda rows: bad(rows, val_loss="nan"), "line 9: val_loss is nan"),
        (lambda rows: bad(rows, val_loss=""), "line 9: val_loss is empty"),
        (lambda rows: bad(rows, val_loss="-1.5"), "line 9: val_loss is -1.5"),
        (lambda rows: bad(rows, val_loss="0"), "line 9: val_loss is 0"),
        (lambda rows: bad(rows, val_loss="inf"), "line 9: val_loss is inf"),
        (lambda rows: bad(rows, val_loss="1,9"), "line 9: val_loss is 1,9"),
        (lambda rows: bad(rows, flops_model="-3"), "line 9: flops_model is -3"),
        (lambda rows: bad(rows, flops_model=""), "line 9: a finished run has no compute; fill in one of flops_model"),
        (lambda rows: bad(rows, seed="one"), "line 9: seed is one"),
        (
            lambda rows: [
                {**row, "flops_model": "", "seconds": 5} if row["variant"] == "block" else row for row in rows
            ],
            "no pair with both runs' compute in one ledger",
        ),
        (lambda rows: bad(rows, size=""), "line 9: size is empty"),
        (lambda rows: bad(rows, variant=""), "line 9: variant is empty"),
        (lambda rows: bad(rows, steps=10, batch_tokens=100, tokens=999), "10 steps of 100 tokens are not 999"),
        (
            lambda rows: [*rows, {**rows[-1], "val_loss": 1.0}],
            "both block, size s3, seed 0, with losses 1.7461",
        ),
        (lambda rows: [*rows, {**rows[-1], "flops_model": 1e20}], "lines 9 and 10 are both block, size s3, seed 0"),
        (lambda rows: [row for row in rows if row["variant"] == "baseline"], "one arm only"),
        (lambda rows: [row for row in rows if row["variant"] == "block"], "no variant 'baseline', only block"),
        (lambda rows: [row for row in rows if row["size"] in ("s0", "s1")], "2 paired sizes and a fit needs 3"),
        (lambda rows: [row for row in rows if row["size"] == "s9"], "no column size"),
        (
            lambda rows: [{k: v for k, v in row.items() if k != "val_loss"} for row in rows],
            "no column val_loss: add it",
        ),
        (lambda rows: [{k: v for k, v in row.items() if k != "variant"} for row in rows], "no column variant"),
        (lambda rows: [{k: v for k, v in row.items() if k != "flops_model"} for row in rows], "no compute: add one of"),
    ],
)
def test_a_bad_table_is_one_clear_line_and_status_2(planted, table, analysis, spoil, says):
    folder = table(spoil(planted({"block": 1.2})))
    with pytest.raises(TableError) as raised:
        load(folder)
    assert says in str(raised.value)
    for verb in ("fit", "multiplier", "plots", "report"):
        status, _, err = analysis(verb, folder)
        assert status == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert says in err
    assert [path.name for path in folder.iterdir()] == ["runs.csv"]


def test_too_few_sizes_name_what_was_left_out(planted, table):
    rows = [
        {**row, "status": "diverged" if row["size"] in ("s1", "s2") else "finished"} for row in planted({"block": 1.2})
    ]
    with pytest.raises(TableError, match=r"2 paired sizes.*line 3 \(baseline, size s1, seed 0\): diverged"):
        load(table(rows))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no column size"),
        (b"size,variant,val_loss,flops_model\n", "no runs"),
        (b"size,variant,val_loss,flops_model\na,baseline,1\n", "line 2 has 3 cells and the header has 4"),
        (b"size,variant,val_loss,val_loss,flops_model\na,b,1,1,1\n", "val_loss twice"),
        ("size,variant,val_löss".encode("latin-1"), "not UTF-8"),
        (b"\xff\xfe\x00\x01", "not UTF-8"),
        (b"PK\x03\x04\x00\x00", "holds a control character"),
    ],
)
def test_a_file_that_is_no_table_is_one_clear_line(tmp_path, analysis, content, says):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    status, _, err = analysis("multiplier", path)
    assert status == 2
    assert says in err
    assert err.count("\n") == 1


@given(st.binary(max_size=200))
def test_no_file_at_all_causes_anything_but_a_table_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "table.csv"
    path.write_bytes(b"size,variant,val_loss,flops_model\n" + content)
    with pytest.raises(TableError) as raised:
        load(path)
    assert "\n" not in str(raised.value).strip()


def test_a_folder_gives_its_runs_csv_or_its_only_table(planted, table, tmp_path):
    folder = table(planted({"block": 1.2}))
    assert load(folder).path == folder / "runs.csv"
    (folder / "runs.csv").rename(folder / "paper.csv")
    (folder / "curves.csv").write_text("run\n")
    assert load(folder).path == folder / "paper.csv"
    (folder / "other.csv").write_text("x\n")
    with pytest.raises(TableError, match="holds no runs"):
        load(folder)
    with pytest.raises(TableError, match="does not exist"):
        load(tmp_path / "nowhere.csv")
