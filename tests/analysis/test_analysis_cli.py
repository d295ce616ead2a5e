import hashlib
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.errors import OutputError
from analysis.store import write

ROOT = Path(__file__).parents[2]
VERBS = ("collect", "fit", "multiplier", "plots", "report", "compare", "power", "calibrate")


def test_help_is_quick_and_names_every_verb():
    """Processor time, which a busy machine does not change much."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "analysis", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5
    assert all(verb in done.stdout for verb in VERBS)


def imported(code):
    """Which of the slow packages are loaded after some code, in a fresh process."""
    code += "; import sys; print(*({'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_slow_is_imported_before_a_verb_and_torch_never():
    assert imported("import analysis.cli; analysis.cli._parser()") == set()
    assert "torch" not in imported("import analysis.report, analysis.collect, analysis.compare, analysis.tables")


def test_a_lone_table_is_only_printed_unless_out_is_given(planted, table, tmp_path, analysis):
    folder = table(planted({"block": 1.25}, noise=0.001))
    lone = folder / "runs.csv"
    for verb in ("fit", "multiplier"):
        status, out, _ = analysis(verb, lone)
        assert status == 0
        assert "wrote" not in out
    assert list(folder.iterdir()) == [lone]
    assert analysis("multiplier", lone, "--out", tmp_path / "new")[0] == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["multiplier.json"]
    status, _, err = analysis("plots", lone)
    assert status == 2
    assert "--out FOLDER" in err
    assert analysis("plots", lone, "--out", tmp_path / "drawn")[0] == 0
    assert (tmp_path / "drawn" / "loss_compute_model.svg").is_file()


def test_results_are_written_in_full_precision_with_the_inputs_hash(planted, table, analysis):
    folder = table(planted({"block": 1.25, "full": 1.1}, noise=0.001))
    for verb in ("fit", "multiplier"):
        assert analysis(verb, folder)[0] == 0
    laws = json.loads((folder / "fit.json").read_text())
    record = json.loads((folder / "multiplier.json").read_text())
    digest = hashlib.sha256((folder / "runs.csv").read_bytes()).hexdigest()
    for written in (laws, record):
        assert written["input"] == {"file": "runs.csv", "sha256": digest}
        assert written["version"]
        assert written["choices"]["confidence"] == 0.95
        assert written["hygiene"]["rows_read"] == 12
    block = record["ledgers"]["model"]["block"]
    assert record["headline_ledger"] == "model"
    assert block["multiplier"] == math.exp(block["ln_multiplier"])
    assert len(repr(block["multiplier"])) > 12
    low, high = block["interval"]
    assert low < block["multiplier"] < high
    mean = sum(math.log(size["multiplier"]) for size in block["sizes"]) / 4
    assert block["ln_multiplier"] == pytest.approx(mean, rel=1e-12)
    assert laws["ledgers"]["model"]["baseline"]["alpha"] == pytest.approx(0.06, abs=0.003)
    assert laws["ledgers"]["model"]["baseline"]["compute_unit"] == "PFLOP/s-days"


def test_the_same_table_gives_the_same_bytes(planted, table, analysis):
    rows = planted({"block": 1.25}, noise=0.001)
    one, two = table(rows, "one"), table(rows, "two")
    for folder in (one, two):
        analysis("fit", folder)
        analysis("multiplier", folder)
    for name in ("fit.json", "multiplier.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_the_headline_is_in_the_ledger_that_leads_or_is_asked_for(planted, table, analysis):
    rows = planted({"block": 1.25}, noise=0.001)
    for row in rows:
        row["seconds"] = row["flops_model"] / 1e15 * (2 if row["variant"] == "block" else 1)
    folder = table(rows)
    assert "ledger model, 4 sizes" in analysis("multiplier", folder)[1]
    status, out, _ = analysis("multiplier", folder, "--ledger", "seconds")
    assert status == 0
    assert "ledger seconds, 4 sizes" in out
    assert json.loads((folder / "multiplier.json").read_text())["headline_ledger"] == "seconds"
    for ledger, says in (("6nd", "it has model, seconds"), ("flops", "there is no ledger 'flops'")):
        status, _, err = analysis("multiplier", folder, "--ledger", ledger)
        assert status == 2
        assert says in err


ODD = {
    "loss that rises with compute": lambda row: {**row, "val_loss": 4 - row["val_loss"]},
    "loss that does not change": lambda row: {**row, "val_loss": 2.0},
    "one compute": lambda row: {**row, "flops_model": 1e18},
    "equal arms": lambda row: {**row, "val_loss": row["flops_model"] ** -0.05},
    "noise that hides the exponent": lambda row: {**row, "val_loss": 2 + int(row["size"][1:]) * 3 % 4 / 5},
    "compute in one pair only": lambda row: {**row, "seconds": 5 if row["size"] == "s1" else ""},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_table_that_cannot_answer_says_why_and_does_not_fail(planted, table, analysis, odd):
    folder = table([ODD[odd](row) for row in planted({"block": 1.25, "full": 1.1}, noise=0.001)])
    for verb in ("fit", "multiplier", "report"):
        status, out, err = analysis(verb, folder)
        assert (status, err) == (0, "")
        assert "nan" not in out
    record = json.loads((folder / "multiplier.json").read_text())
    for ledger in record["ledgers"].values():
        for m in ledger.values():
            assert (m["interval"] is None) == (m["reason"] is not None)
    assert analysis("compare", folder, folder)[0] == 0


def test_golden_table_is_printed_as_known(golden, analysis):
    status, out, _ = analysis("multiplier", golden("attnres_table2.csv"))
    assert status == 0
    for arm, m, low, high in (
        ("Block AttnRes", "1.239", "1.189", "1.291"),
        ("Full AttnRes", "1.306", "1.240", "1.377"),
        ("mHC-lite", "1.264", "1.222", "1.308"),
    ):
        assert (
            f"{arm} is worth {m}x the baseline's compute (95 % interval {low} to {high}; ledger 6nd, 5 sizes)." in out
        )


def test_a_claim_is_answered_in_words_and_in_full(golden, analysis, tmp_path):
    status, out, _ = analysis(
        "multiplier", golden("attnres_table2.csv"), "--claim", "1.25", "--ledger", "6nd", "--out", tmp_path
    )
    assert status == 0
    assert "Block AttnRes and the claim of 1.25x: consistent; the 90 % interval, 1.199 to 1.280, lies within" in out
    assert "Full AttnRes and the claim of 1.25x: cannot tell; the 95 % interval holds the claim" in out
    record = json.loads((tmp_path / "multiplier.json").read_text())
    assert (record["choices"]["claim"], record["choices"]["margin"], record["choices"]["loss_step"]) == (
        1.25,
        0.05,
        1e-3,
    )
    block = record["ledgers"]["6nd"]["block"]
    assert block["claim"]["verdict"] == "consistent"
    assert block["fieller"]["ends"] == pytest.approx([1.178, 1.308], abs=5e-4)
    assert block["separate_slopes"]["unpaired"]["interval"] == pytest.approx([1.138, 1.357], abs=5e-4)
    assert block["simultaneous"]["arms"] == 3
    assert [x["law_free"] is None for x in block["sizes"]] == [False] * 4 + [True]
    far = analysis("multiplier", golden("attnres_table2.csv"), "--claim", "2")[1]
    assert "not consistent; the claim lies outside the 95 % interval, 1.189 to 1.291." in far


def test_the_printed_checks_say_what_the_answer_leans_on(golden, analysis):
    out = analysis("multiplier", golden("attnres_table2.csv"))[1]
    for title in (
        "Intervals by other ways, ledger 6nd",
        "Other choices, ledger 6nd",
        "Exponents, ledger 6nd",
        "M by an exponent for each arm, ledger 6nd",
        "M with a floor E pinned under the loss, ledger 6nd",
    ):
        assert title in out
    for text in ("1.187 to 1.294", "1.178 to 1.308", "1.14 to 1.36", "not reached: 528M", "+0.0016", "0.0036"):
        assert text in out
    assert "claim" not in out
    assert out.rstrip().splitlines()[-1].startswith("mHC-lite is worth")


def test_a_weak_exponent_says_what_the_runs_still_allow(planted, table, analysis):
    rows = planted({"block": 1.25}, noise=0.1, alpha=0.03)
    folder = table(rows)
    out = analysis("multiplier", folder, "--claim", "1.25")[1]
    assert "without an interval" in out
    assert "Block AttnRes: what these runs allow, by Fieller's method, is unbounded: any M." in out
    assert "cannot tell; there is no interval to hold against it." in out
    record = json.loads((folder / "multiplier.json").read_text())["ledgers"]["model"]["block"]
    assert record["fieller"]["bounded"] is False
    assert record["interval"] is None
    assert record["claim"]["verdict"] == "cannot tell"


def test_a_wide_interval_that_holds_one_says_so(planted, table, analysis):
    out = analysis("multiplier", table(planted({"block": 1.01}, noise=0.01, compute=(1e17, 1e18, 1e19, 1e20))))[1]
    assert "that includes 1, no difference" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit",),
        ("multiplier", "x.csv", "--nope"),
        ("multiplier", "x.csv", "--claim", "0"),
        ("multiplier", "x.csv", "--claim", "much"),
        ("multiplier", "x.csv", "--claim", "1.25", "--margin", "-1"),
        ("report", "nowhere", "--claim", "1.25"),
        ("power",),
        ("power", "--table", "nowhere"),
        ("calibrate", "--tables", "0"),
        ("nothing",),
        (),
        ("fit", "nowhere"),
        ("multiplier", "nowhere"),
        ("plots", "nowhere"),
        ("report", "nowhere"),
        ("compare", "nowhere", "nowhere"),
        ("collect", "nowhere", "out"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(analysis, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    status, out, err = analysis(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [PermissionError(13, "Permission denied"), OSError(28, "No space left on device")])
def test_a_folder_that_cannot_be_written_is_one_line_and_loses_nothing(
    sweep, planted, table, tmp_path, analysis, monkeypatch, failure
):
    folder = table(planted({"block": 1.25}, noise=0.001))
    write(folder / "fit.json", "earlier\n")

    def refuse(*_):
        raise failure

    monkeypatch.setattr(Path, "write_bytes", refuse)
    for arguments in (
        *(("fit", folder), ("multiplier", folder), ("plots", folder), ("report", folder)),
        ("collect", sweep, tmp_path / "out"),
    ):
        status, _, err = analysis(*arguments)
        assert status == 2
        assert "cannot write" in err
        assert failure.strerror in err
        assert err.count("\n") == 1
    assert (folder / "fit.json").read_text() == "earlier\n"


def test_a_file_in_the_place_of_a_folder_is_one_line(planted, table, tmp_path, analysis):
    (tmp_path / "file").write_text("")
    status, _, err = analysis("fit", table(planted({"block": 1.25})), "--out", tmp_path / "file" / "below")
    assert status == 2
    assert "cannot write" in err


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    write(tmp_path / "a.json", "old")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError):
        write(tmp_path / "a.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"
