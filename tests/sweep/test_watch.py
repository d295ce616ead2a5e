"""What a person sees of a sweep, from real run directories: states, bars, what is left, and when the watch ends."""

import io
import json
import re
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from rich.console import Console

from scaling.cli import main
from scaling.compute import flops_per_token
from scaling.records import STATES, RunDirectory, find_runs
from scaling.sweep import watch
from scaling.sweep.standing import Roster, Standing, seconds_left
from scaling.sweep.watch import Watch, follow, standing_table

STEPS, BATCH = 12, 512


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def run_in(folder, name, state=None, step=0, *, validation=None, **fields):
    """A run directory as a training process leaves it: with run.json if it has started."""
    run = RunDirectory(folder / name)
    run.write_config({"variant": name})
    if state is None:
        return run
    run.write_run({"training": {"steps": STEPS, "batch_tokens": BATCH}, "flops_per_token": {"model": 1e6}})
    with run.lock():
        run.write_status(state, step=step, steps=STEPS, tokens=step * BATCH, **fields)
    if validation is not None:
        metrics = run.open_metrics(1)
        metrics.append(step=step, tokens=step * BATCH, train_loss=2.0, val_loss=validation)
        metrics.append(step=step + 1, tokens=(step + 1) * BATCH, train_loss=2.0)
        metrics.close()
    return run


def finish(run, validation=3.25):
    run.write_result({"run": run.name, "steps": STEPS, "val_loss": validation})
    run.write_status("finished", step=STEPS, steps=STEPS, tokens=STEPS * BATCH)


def drawn(folder, width=160, lines=None):
    console = Console(width=width, file=io.StringIO(), legacy_windows=False)
    console.print(standing_table(Roster(lambda: find_runs(folder)).standings(), width, lines))
    return console.file.getvalue()


def row(text, name):
    (line,) = [line for line in text.splitlines() if name in line and "│" in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def numbers(cells):
    """Without name, state, and the bar where there is one."""
    return cells[-6:]


@pytest.mark.parametrize("width", [120, 160])
def test_every_number_of_a_run_is_in_its_row(folder, width):
    name = "block-dense-17x1264-s0-2b7cf90c"
    run = run_in(folder, name, "running", 3, loss=2.5, tokens_per_second=1024.0, validation=2.75)
    finish(run_in(folder, "baseline", "running"))
    with run.lock():
        text = drawn(folder, width)
    assert max(len(line) for line in text.splitlines()) <= width
    cells = row(text, name if width == 160 else name[:20])
    assert cells[1] == "running"
    assert numbers(cells) == ["3/12", "2.5000", "2.7500", "1.02k", "4 s", "0 s"]  # 9 steps of 512 tokens left
    assert row(text, "baseline")[1] == "finished"
    assert numbers(row(text, "baseline"))[:3] == ["12/12", "", "3.2500"]
    assert row(text, "in all")[1] == "1/2"
    assert numbers(row(text, "in all"))[0] == "15/24"
    assert numbers(row(text, "in all"))[-2] == "4 s"


def test_at_a_narrow_terminal_names_lose_their_hash_and_no_number_is_cut(folder):
    name = "baseline-dense-17x1264-s0-24eb890e"
    run = run_in(folder, name, "running", 3, loss=2.5, tokens_per_second=1.2e6, validation=2.75, utilisation=0.4)
    with run.lock():
        text = drawn(folder, 100)
    assert max(len(line) for line in text.splitlines()) <= 100
    (line,) = [line for line in text.splitlines() if "baseline" in line]
    cut, *cells = line.split()
    assert cut.startswith(name.rpartition("-")[0])
    assert cells == ["running", "3/12", "2.5000", "2.7500", "1.2M", "0", "s", "0", "s"]


def test_what_is_not_known_is_a_question_mark_or_nothing(folder):
    run_in(folder, "waiting")
    running = run_in(folder, "young", "running")
    with running.lock():
        text = drawn(folder)
    assert row(text, "young")[3:] == ["0/12", "", "", "", "?", "0 s"]
    assert row(text, "waiting")[1:] == ["pending", *[""] * 7]
    assert row(text, "in all")[3] == ""  # steps of a run that never started
    assert row(text, "in all")[-2] == "?"


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_drawn_with_its_message(folder, state):
    run = run_in(folder, "run", state, 3, message="[what] it says")
    finish(run) if state == "finished" else None
    with ExitStack() as held:
        if state == "running":
            held.enter_context(run.lock())
        text = drawn(folder)
    assert row(text, "│ run ")[1] == state
    assert ("run: [what] it says" in text) == (state != "finished")


def test_a_damaged_run_hides_no_other(folder):
    finish(run_in(folder, "good", "running"))
    (run_in(folder, "bad", "running").path / "result.json").write_text("{")
    text = drawn(folder)
    assert row(text, "bad ")[1] == "damaged"
    assert row(text, "good")[1] == "finished"
    assert "is not JSON" in " ".join(text.split())


STRANGE = [
    ("status.json", {}),
    ("status.json", {"state": "[/x]"}),
    ("status.json", {"state": "running", "updated": "abc"}),
    ("status.json", {"state": "failed", "step": 3, "steps": "7"}),
    ("result.json", {"val_loss": "[/x]"}),
    ("run.json", {}),
    ("run.json", {"training": []}),
    ("run.json", {"training": {"steps": "12", "batch_tokens": None}, "flops_per_token": {"model": 1}}),
    ("run.json", {"training": {"steps": float("inf"), "batch_tokens": 1}, "flops_per_token": {"model": 1}}),
    ("run.json", {"training": {"steps": 10**400, "batch_tokens": 1}, "flops_per_token": {"model": 1}}),
]


@pytest.mark.parametrize(("name", "content"), STRANGE)
def test_a_strangers_file_is_damage_of_that_run_alone(folder, capsys, name, content):
    finish(run_in(folder, "good", "running"))
    (run_in(folder, "bad", "failed").path / name).write_text(json.dumps(content))
    assert main(["status", str(folder)]) == 0
    text = capsys.readouterr().out
    assert row(text, "│ bad ")[1] == "damaged"
    assert row(text, "│ good ")[1] == "finished"
    assert f"bad/{name}" in "".join(text.split())


def test_names_and_texts_are_printed_as_they_are(folder, capsys):
    """None of them is markup."""
    for name in ("[red]one", "two[", "x"):
        run_in(folder, name, "failed", message="[/nothing] [bold]is open\\")
    (folder / "[").mkdir()
    (folder / "x").rename(folder / "[" / "x]")  # what would be a folder of its own closes a tag
    assert main(["status", str(folder)]) == 0
    text = capsys.readouterr().out
    for name in ("[red]one", "two["):
        assert row(text, f"│ {name} ")[1] == "failed"
        assert f"{name}: [/nothing] [bold]is open\\" in text
    assert main(["status", str(folder / "[")]) == 0
    assert row(capsys.readouterr().out, "│ x] ")[1] == "failed"


def test_where_lines_are_few_what_runs_is_shown_and_the_rest_counted(folder):
    for i in range(30):
        finish(run_in(folder, f"done{i:02}", "running"))
    running = run_in(folder, "zz", "running", 3)
    with running.lock():
        text = drawn(folder, lines=20)
    assert len(text.splitlines()) <= 20
    assert row(text, "zz")[1] == "running"
    assert row(text, "in all, 20 not shown")[1] == "30/31"


def standing(state, step=0, speed=None, flops=1.0):
    return Standing("run", state, step, 10, tokens_per_second=speed, flops_per_step=flops, tokens_per_step=1.0)


def test_what_is_left_is_the_work_at_the_speed_of_what_runs():
    assert seconds_left([standing("finished"), standing("failed")]) == 0
    assert seconds_left([standing("pending")]) is None
    one, two = standing("running", 5, speed=1.0), standing("running", 5, speed=2.0)
    assert seconds_left([one]) == 5
    assert seconds_left([one, two]) == 5  # the slower one
    assert seconds_left([one, two, standing("pending"), standing("finished")]) == pytest.approx(20 / 3)
    assert seconds_left([one, standing("running")]) == pytest.approx(15 / 2)  # as fast as the one that is measured
    assert seconds_left([one, standing("pending", flops=100.0)]) == pytest.approx(1005)  # work, not steps
    assert seconds_left([one, replace(standing("pending"), flops_per_step=None)]) is None


def test_a_sweep_file_tells_of_runs_that_have_not_started(tiny_run):
    (of,) = Roster(lambda: [tiny_run.directory], [tiny_run]).standings()
    assert (of.state, of.step, of.steps) == ("pending", 0, 12)
    assert of.flops_left == pytest.approx(flops_per_token(tiny_run.shape, "model") * tiny_run.tokens)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(watch, "REFRESH_SECONDS", 0.01)


def work_through(runs):
    """A thread that trains runs one after the other, as far as files tell."""

    def work():
        for run in runs:
            with run.lock():
                for step in range(0, STEPS + 1, 4):
                    run.write_status("running", step=step, steps=STEPS, tokens=step * BATCH, tokens_per_second=9e3)
                    time.sleep(0.05)
                finish(run)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def follow_while_working(folder, terminal, **kwargs):
    runs = [run_in(folder, name) for name in ("one", "two")]
    console = Console(file=io.StringIO(), width=120, height=30, force_terminal=terminal, _environ={"TERM": "xterm"})
    thread = work_through(runs)
    follow(Roster(lambda: find_runs(folder)), console, **kwargs)
    thread.join()
    return console.file.getvalue()


def test_without_a_terminal_a_table_at_every_change_of_state_and_no_escape_codes(folder, fast):
    text = follow_while_working(folder, terminal=False)
    assert "\x1b" not in text
    tables = text.split("┏")[1:]
    seen = [(row(t, "│ one ")[1], row(t, "│ two ")[1]) for t in tables]
    assert len(set(seen)) == len(seen)
    assert seen[-1] == ("finished", "finished")
    assert ("running", "pending") in seen
    assert ("finished", "running") in seen


def test_on_a_terminal_the_table_moves_on_and_the_last_stays(folder, fast):
    text = follow_while_working(folder, terminal=True)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden, and shown again
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "4/12" in plain or "8/12" in plain
    last = plain[plain.rindex("┏") :]
    assert row(last, "│ one ")[1] == row(last, "│ two ")[1] == "finished"


def test_ctrl_c_leaves_the_table_and_the_cursor(folder, fast):
    run_in(folder, "never")

    class Leaving(Roster):
        def standings(self):
            self.looks = getattr(self, "looks", 0) + 1
            if self.looks == 3:
                raise KeyboardInterrupt
            return super().standings()

    console = Console(file=io.StringIO(), width=120, force_terminal=True, _environ={"TERM": "xterm"})
    follow(Leaving(lambda: find_runs(folder)), console)
    text = console.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "pending" in text[text.rindex("┏") :]


def test_a_failed_run_is_waited_for_while_it_could_be_tried_again(folder, fast):
    run = run_in(folder, "run", "failed", 3)
    thread = threading.Timer(0.2, finish, [run])
    thread.start()
    console = Console(file=io.StringIO(), width=120)
    follow(Roster(lambda: find_runs(folder)), console, quiet_seconds=20)
    assert "finished" in console.file.getvalue()
    run_in(folder, "other", "diverged", 3)
    began = time.monotonic()
    follow(Roster(lambda: find_runs(folder)), console, quiet_seconds=0.1)
    assert 0.1 <= time.monotonic() - began < 5


def test_a_folder_is_looked_through_again_and_again(folder, fast):
    finish(run_in(folder, "one", "running"))
    roster = Roster(lambda: find_runs(folder))
    assert len(roster.standings()) == 1
    run_in(folder, "two")
    assert [s.state for s in roster.standings()] == ["finished", "pending"]


def test_watch_from_the_command_line(folder, capsys):
    finish(run_in(folder, "one", "running"))
    assert main(["status", str(folder), "--watch"]) == 0
    assert row(capsys.readouterr().out, "│ one ")[1] == "finished"


def test_three_hundred_runs_are_read_in_less_than_a_second(folder):
    for i in range(300):
        run = run_in(folder, f"run{i:03}", "running", 100, loss=2.5, tokens_per_second=1e4)
        metrics = run.open_metrics(1)
        for step in range(200):
            metrics.append(step=step, tokens=step * BATCH, train_loss=2.0, val_loss=2.0 if step % 20 == 0 else None)
        metrics.close()
    began = time.process_time()
    text = drawn(folder)
    assert time.process_time() - began < 1
    assert text.count("lost") == 301


def test_a_sweeps_own_display_is_the_same_table_below_its_events(tiny_run):
    console = Console(file=io.StringIO(), width=120, height=30, force_terminal=True, _environ={"TERM": "xterm"})
    with Watch([tiny_run], [tiny_run.directory], console) as shown:
        shown.event("started", tiny_run)
        tiny_run.directory.write_result({"val_loss": 3.25})
        shown.event("finished", tiny_run)
    text = console.file.getvalue()
    assert f"finished  {tiny_run.run_name}, validation loss 3.2500" in text
    assert "pending" in text
    assert "in all" in text
