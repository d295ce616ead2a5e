import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from analysis.cli import main
from analysis.ledgers import leading
from analysis.page import escape, table, to_html
from analysis.report import page
from analysis.runs import load
from analysis.wording import arm_name, count_text, interval_text, seconds_text, times

EVIL = "<script>alert(1)</script>|**`[x](javascript:alert(1))![y](http://evil/z.png)&amp;\n# h"
ALLOWED = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "strong",
    "em",
    "ul",
    "li",
    "code",
    "img",
} | {*("table", "thead", "tbody", "tr", "th", "td")}


class Tags(HTMLParser):
    """What a browser would see: tags, addresses and text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.addresses, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def reported(finished_sweep):
    """The report of a sweep: folder, Markdown, HTML."""
    out = finished_sweep.parent / "demo"
    assert main(["collect", str(finished_sweep), str(out)]) == 0
    assert main(["report", str(out)]) == 0
    return out, (out / "report.md").read_text(), (out / "report.html").read_text()


def page_of(folder):
    """The page of a results folder, without drawing its figures."""
    runs = load(folder)
    headline = leading(runs.ledgers)
    names = [*(f"loss_compute_{ledger}" for ledger in runs.ledgers), "paired_losses"]
    return page(runs, headline, [Path(f"{name}.png") for name in names], "title")


def test_the_page_answers_with_interval_and_ledger_and_says_what_was_run(reported, analysis):
    out, text, _ = reported
    answer = re.search(
        r"\*\*Block AttnRes is worth (\S+)x the baseline's compute \(95 % interval (.+?); ledger model", text
    )
    assert answer
    printed = analysis("multiplier", out)[1]
    assert f"worth {answer[1]}x" in printed
    assert answer[2] in printed
    for fact in (
        "corpus: python",
        "sizes: w64, w96, w128, w160",
        "seeds: 0",
        "machine: processor CPU",
        "tokens a run: 41k",
    ):
        assert fact in text, fact
    for run in ("baseline-w64-s0-abc123", "block-w160-s0-abc123"):
        assert run in text
    rows = [line for line in text.splitlines() if line.startswith("| Block AttnRes | ")]
    assert {row.split(" | ")[1] for row in rows} >= {"model", "6nd", "paper", "seconds"}
    assert "8 rows were read, 8 of them finished runs; 4 pairs were used" in text


def test_short_runs_are_said_to_exaggerate(reported, planted, table):
    _, text, _ = reported
    assert "which is low (under 20): short runs exaggerate the effect" in text
    assert "Short runs exaggerate the effect: expect a smaller multiplier" in text
    rows = [{**row, "params": 1e6, "tokens": 3e7} for row in planted({"block": 1.2}, noise=0.001)]
    long = page_of(table(rows))
    assert "exaggerate" not in long
    assert "30 tokens a parameter" in long


def test_what_would_change_the_answer_follows_from_the_table(planted, table):
    rows = planted({"block": 1.25}, noise=0.001)
    text = page_of(table(rows))
    assert "There is one seed a size" in text
    assert "rests on 4 sizes" in text
    assert "No baseline run reached the arm's loss at 1 of 4 sizes" in text
    assert "span a factor of 8 in compute" in text
    assert "one seed" not in page_of(table(planted({"block": 1.25}, noise=0.001, seeds=2), "seeded"))


def test_the_page_says_how_far_the_answer_leans_on_the_method(planted, table, golden):
    text = page_of(table(planted({"block": 1.25, "full": 1.3}, noise=0.001, seeds=2)))
    for words in (
        "## How far the answer leans on the method",
        "| profile likelihood |",
        "| smallest that could be seen |",
        "| sd of ln L, one run |",
        "| one size left out |",
        "| E |",
    ):
        assert words in text
    assert "Noise of seeds" not in text
    runs = load(golden("attnres_table2.csv"))
    names = [*(f"loss_compute_{ledger}" for ledger in runs.ledgers), "paired_losses"]
    claimed = page(runs, "6nd", [Path(f"{name}.png") for name in names], "title", claim=1.25)
    assert "**Block AttnRes and the claim of 1.25x: consistent;" in claimed
    assert "Losses were rounded to steps of 0.001, which alone scatters a size's multiplier by 0.4% " in claimed


def test_a_multiplier_that_changes_with_size_is_a_caveat(planted, table):
    rows = planted({"block": 1.2}, noise=0.0005, seeds=3)
    assert "does not fit every size" not in page_of(table(rows, "same"))
    for row in rows:
        if row["variant"] == "block" and row["size"] in ("s2", "s3"):
            row["val_loss"] *= 0.98
    assert "One multiplier does not fit every size of Block AttnRes (p " in page_of(table(rows, "changing"))


def test_a_multiplier_that_changes_with_compute_is_a_caveat_without_seeds_too(planted, table):
    rows = planted({"block": 1.2}, noise=0.0005, compute=(1e18, 2e18, 4e18, 8e18))
    assert "multiplier changes with compute" not in page_of(table(rows, "same"))
    for place, size in enumerate(("s0", "s1", "s2", "s3")):
        for row in rows:
            if row["variant"] == "block" and row["size"] == size:
                row["val_loss"] *= 1 - 0.005 * place
    said = page_of(table(rows, "changing"))
    assert re.search(
        r"Block AttnRes's multiplier changes with compute: .* from 1\.\d+ at .* to 1\.\d+ at the largest", said
    )


def test_hygiene_is_on_the_page(planted, table):
    rows = planted({"block": 1.25}, noise=0.001, compute=(1e18, 2e18, 4e18, 8e18, 16e18))
    for row in rows:
        row["status"] = "finished"
    rows[0]["status"] = "diverged"
    text = page_of(table([*rows, rows[-1]]))
    assert "11 rows were read, 9 of them finished runs; 4 pairs were used" in text
    for kind in ("unfinished", "pair dropped", "duplicate"):
        assert f"| {kind} | " in text
    assert "pairs were left out" in text
    assert "Found: 1 duplicate, 1 unfinished (1 diverged), 1 pair dropped." in text


def test_the_html_page_is_one_file_with_its_figures_inside(reported):
    out, text, whole = reported
    seen = Tags(whole)
    figures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(figures) == 11
    assert all((out / figure).is_file() for figure in figures)
    assert len(seen.addresses) == len(figures)
    assert all(address.startswith("data:image/png;base64,") for address in seen.addresses)
    assert set(seen.tags) <= ALLOWED
    assert "Compute multiplier: demo" in seen.words


@pytest.mark.parametrize("column", ["size", "variant", "run", "data", "machine", "tuning", "note", "status"])
def test_names_from_the_data_are_harmless_on_the_page(planted, table, column):
    rows = planted({"block": 1.25, "full": 1.3}, noise=0.001, compute=(1e18, 2e18, 4e18, 8e18, 16e18))
    for row in rows:
        row["status"] = "finished"
        if column == "variant":
            row[column] = row[column].replace("full", EVIL)
        elif column == "status":
            row[column] = EVIL if row["size"] == "s1" else "finished"
        elif column == "size":
            row[column] = row[column].replace("s1", EVIL)
        else:
            row[column] = EVIL + (row["variant"] if column == "tuning" else "")
    folder = table(rows)
    for name in ("loss_compute_model.png", "paired_losses.png"):
        (folder / name).write_bytes(b"picture")
    seen = Tags(to_html(page_of(folder), "title", folder))
    assert set(seen.tags) <= ALLOWED
    assert all(address.startswith("data:image/png;base64,") for address in seen.addresses)
    shown = "".join(seen.words)
    assert "<script>" in shown
    if column != "variant":
        assert " ".join(EVIL.split()) in " ".join(shown.split())


@given(st.text(max_size=60))
def test_any_text_is_shown_as_it_is(text):
    cell = MarkdownIt("commonmark", {"html": False}).enable("table").render(table(("a", "b"), [(text, "x")]))
    row = re.search(r"<tbody>\s*<tr>(.*?)</tr>", cell, re.DOTALL)[1]
    cells = re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
    expected = " ".join(text.split())
    assert cells[-1] == "x"
    if expected:
        assert len(cells) == 2
        assert html.unescape(cells[0]).replace("\ufffd", "\0") == expected.replace("\ufffd", "\0")


def test_markdown_in_the_page_cannot_hold_html(tmp_path):
    assert "<b>" not in to_html("<b>x</b>\n\n<i>\n", "title", tmp_path).partition("<body>")[2]
    assert not re.search(r"(?<!\\)<", table(("a",), [(EVIL,)]))


def test_the_title_is_escaped(tmp_path):
    assert "<title>&lt;b&gt;</title>" in to_html("# x", "<b>", tmp_path)
    assert escape("a|b\nc") == "a\\|b c"


def test_numbers_are_rounded_to_what_the_interval_supports():
    assert times(1.23896, 0.051) == "1.239"
    assert times(1.23896, 0.6) == "1.24"
    assert times(12.3, 7) == "12.3"
    assert times(1.23896) == "1.24"
    assert times(None) == "none"
    assert interval_text((1.18884, 1.29120)) == "1.189 to 1.291"
    assert interval_text(None) == "none"
    assert interval_text((2.2e-5, 4.006e42)) == "2.2e-05 to 4e+42"
    assert interval_text((0.4, 26.0)) == "0.4 to 26.0"
    assert [count_text(x) for x in (950, 999.6e3, 1.234e6, 45.4e9, 2e12)] == ["950", "1M", "1.23M", "45.4B", "2T"]
    assert count_text(float("nan")) == ""
    assert [seconds_text(x) for x in (3.14159, 300, 9000)] == ["3.1 s", "5.0 min", "2.5 h"]
    assert arm_name("block") == "Block AttnRes"
    assert [arm_name(arm) for arm in ("full_window", "full_window_8")] == ["Full (window)", "Full (window 8)"]
    assert [arm_name(arm) for arm in ("block_heads", "block_heads_4")] == ["Block (heads)", "Block (4 heads)"]
    assert [arm_name(arm) for arm in ("block_size_4", "seed_4")] == ["Block (size 4)", "seed_4"]
    assert arm_name("x" * 99) == "x" * 23 + "\u2026"


def test_the_page_shows_the_law_of_parameters_and_tokens_where_there_is_one(planted, table):
    runs = load(table(planted({"block": 1.25})))
    names = ["loss_compute_model.png", "paired_losses.png"]
    section = "## Loss against parameters and tokens"
    assert section not in page(runs, "model", [Path(name) for name in names], "title")
    shown = page(runs, "model", [Path(name) for name in [*names, "size_tokens_block.png"]], "title")
    assert "(size_tokens_block.png)" in shown.partition(section)[2]
