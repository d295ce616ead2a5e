"""The command line as a user meets it: one clear line and exit status 2 for what a user can mend, and nothing lost."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from processes import wait_until

from scaling.cli import main
from scaling.config import KimiConfig
from scaling.records import find_runs


@pytest.fixture
def config_file(tiny_run, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(asdict(tiny_run)))
    return file


@pytest.fixture
def sweep_file(tiny_run, write_sweep):
    """Two sizes x two arms of the tiny run."""
    model = asdict(tiny_run.model)
    return write_sweep(tiny_run, sizes=[{"model": {**model, "name": f"w{d}", "d_model": d}} for d in (16, 32)])


def complaint_of(capsys, *arguments, status=2):
    assert main([str(a) for a in arguments]) == status
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return lines


def test_help_is_fast_because_torch_waits():
    heavy = "any(m in sys.modules for m in ('torch', 'pandas', 'datasets', 'numpy'))"
    code = f"import sys, scaling.cli as c; c._parser(); sys.exit({heavy})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    done = subprocess.run([sys.executable, "-m", "scaling", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("prepare", "train", "sweep", "status", "estimate"))


def test_no_verb_prints_the_help(capsys):
    assert main([]) == 0
    assert "prepare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tain"], "tain"),
        (["train"], "config"),
        (["train", "none.yaml"], "none.yaml does not exist"),
        (["sweep", "none.yaml"], "none.yaml does not exist"),
        (["status", "none.yaml"], "none.yaml does not exist"),
        (["prepare", "none.yaml"], "none.yaml does not exist"),
        (["sweep", "sweeps/demo.yaml", "--train.lr", "fast"], "train.lr is 'fast': must be a finite number"),
        (["sweep", "sweeps/demo.yaml", "--train.colour", "red"], "train.colour"),
        (["sweep", "sweeps/demo.yaml", "--train.lr", "-1"], "train.lr is -1.0: must be greater than 0"),
        (["sweep", "sweeps/demo.yaml", "--execution.micro_batch", "3"], "must divide the 8 sequences"),
        (["sweep", "sweeps/demo.yaml", "--execution.accelerator", "cpu", "--devices", "99"], "--devices is '99'"),
        (
            ["sweep", "sweeps/demo.yaml", "--execution.data_folder", "/none", "--execution.runs_folder", "/none"],
            "python -m scaling prepare",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(capsys, monkeypatch, arguments, expected):
    monkeypatch.chdir(Path(__file__).parents[1])
    lines = complaint_of(capsys, *arguments)
    assert len(lines) == 1
    assert expected in lines[0]


def test_train_reports_the_loss_and_the_place(capsys, config_file, tiny_run):
    assert main(["train", str(config_file)]) == 0
    out = capsys.readouterr().out
    assert "validation loss" in out
    assert str(tiny_run.directory.path) in out


def test_folders_are_printed_as_they_are(capsys, config_file, write_sweep, tiny_run, tmp_path):
    """None of their names is markup."""
    runs = tmp_path / "[red" / "x]"
    assert main(["train", str(config_file), "--execution.runs_folder", str(runs)]) == 0
    assert f"nats per token: {runs}" in capsys.readouterr().out
    sweep_file = write_sweep(tiny_run, variants={"baseline": {}})
    assert main(["sweep", str(sweep_file), "--execution.runs_folder", str(runs)]) == 0
    assert f"all 1 runs are finished: {runs}" in capsys.readouterr().out


def test_tokens_beyond_the_corpus(capsys, config_file):
    lines = complaint_of(capsys, "train", config_file, "--train.tokens", "1e9")
    assert len(lines) == 1
    assert "train.allow_repeat" in lines[0]


def test_a_truncated_shard(capsys, config_file, tiny_run, tmp_path):
    import shutil

    data = tmp_path / "data"
    shutil.copytree(tiny_run.execution.data_folder, data)
    shard = next(data.glob("*/train_*.bin"))
    shard.write_bytes(shard.read_bytes()[:-2])
    lines = complaint_of(capsys, "train", config_file, "--execution.data_folder", data)
    assert len(lines) == 1
    assert shard.name in lines[0]
    assert "prepare again" in lines[0]


def test_a_diverged_run_has_its_own_status(capsys, config_file):
    lines = complaint_of(capsys, "train", config_file, "--train.lr", "1e30", status=3)
    assert len(lines) == 1
    assert "diverged at step" in lines[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/sys is Linux's")
def test_a_folder_without_permission(capsys, config_file):
    """Where not even root may write."""
    lines = complaint_of(capsys, "train", config_file, "--execution.runs_folder", "/sys/runs")
    assert len(lines) == 1
    assert "permit access" in lines[0]


def test_a_place_where_nothing_can_be_written(capsys, config_file, tmp_path):
    (tmp_path / "file").write_text("")
    lines = complaint_of(capsys, "train", config_file, "--execution.runs_folder", tmp_path / "file" / "runs")
    assert len(lines) == 1
    assert "Not a directory" in lines[0]


def test_a_sweep_from_plan_to_status(capsys, sweep_file, tiny_run):
    assert main(["sweep", str(sweep_file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count("pending") == 4
    assert main(["sweep", str(sweep_file)]) == 0
    assert "all 4 runs are finished" in capsys.readouterr().out
    assert main(["status", str(sweep_file)]) == 0
    assert "4 finished" in capsys.readouterr().out
    assert main(["sweep", str(sweep_file)]) == 0
    assert "0 of 4 runs to do" in capsys.readouterr().out
    assert main(["estimate", str(sweep_file)]) == 0
    out = capsys.readouterr().out
    assert "measured over the runs so far" in out
    assert "activations" in out


def test_a_plan_for_a_larger_machine_is_printed_without_time_and_not_started(capsys, sweep_file, tiny_run, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices._usable_cores", lambda: [0, 1])
    larger = [str(sweep_file), "--execution.devices", "4"]
    assert main(["sweep", *larger, "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("pending") == 4
    assert "has execution.devices 4: the sweep may use 2 parts of the CPU's cores" in out
    (line,) = complaint_of(capsys, "sweep", *larger)
    assert "has execution.devices 4" in line
    assert not Path(tiny_run.execution.runs_folder).exists()


def test_a_sweep_that_its_corpus_cannot_serve_is_refused_before_it_starts(capsys, sweep_file, tiny_run):
    lines = complaint_of(capsys, "sweep", sweep_file, "--train.validation_tokens", 64 * 10**6)
    assert len(lines) == 1
    assert "train.validation_tokens" in lines[0]
    assert not Path(tiny_run.execution.runs_folder, "tiny").exists()


@pytest.mark.skipif(find_spec("fla") is not None, reason="flash-linear-attention is installed")
def test_missing_kernels_are_said_once_before_anything_starts(capsys, tiny_run, change, write_sweep, monkeypatch):
    run = change(tiny_run, "model", kimi=KimiConfig(n_experts=4, experts_per_token=2, kv_rank=8))
    sweep_file = write_sweep(run)
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: ["0"])
    monkeypatch.setattr("scaling.sweep.estimate.gpu_facts", lambda _: None)  # a GPU that is only said to be there
    (line,) = complaint_of(capsys, "sweep", sweep_file, "--execution.accelerator", "cuda")
    assert "needs its kernels (ModuleNotFoundError: No module named 'fla'): pip install 'attnres-scaling[kimi]'" in line
    assert not Path(tiny_run.execution.runs_folder, "tiny").exists()


def test_a_sweep_over_runs_of_other_tokens_is_refused(capsys, sweep_file, tiny_run):
    assert main(["sweep", str(sweep_file)]) == 0
    result = next(Path(tiny_run.execution.runs_folder, "tiny").glob("baseline*/result.json"))
    result.write_text(result.read_text().replace('"data_hash": "', '"data_hash": "0'))
    next(Path(tiny_run.execution.runs_folder, "tiny").glob("block*/result.json")).unlink()
    lines = complaint_of(capsys, "sweep", sweep_file)
    assert len(lines) == 1
    assert "trained on other tokens" in lines[0]


def test_a_sweep_with_a_failure_ends_non_zero_and_names_it(capsys, sweep_file):
    """T5: an arm that always diverges; the others finish."""
    values = yaml.safe_load(sweep_file.read_text())
    values["sizes"][1]["train"] = {"lr": 1e30}
    sweep_file.write_text(yaml.safe_dump(values))
    assert main(["sweep", str(sweep_file)]) == 1
    out, err = capsys.readouterr()
    assert "2 of 4 runs did not finish" in err
    assert "diverged at step" in " ".join(out.split())
    assert out.count("log: ") == out.count("log.txt") == 2
    assert len([line for line in out.splitlines() if line.startswith("finished  ")]) == 2


@pytest.fixture
def endless_sweep(sweep_file, tiny_run):
    """A sweep of two runs that go on for minutes, in a process that ignores SIGINT as a shell's background jobs do."""
    values = yaml.safe_load(sweep_file.read_text())
    values["train"] |= {"tokens": 512 * 1e5, "allow_repeat": True}
    values["sizes"] = values["sizes"][:1]
    sweep_file.write_text(yaml.safe_dump(values))
    folder = Path(tiny_run.execution.runs_folder) / "tiny"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling", "sweep", str(sweep_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    yield process, lambda: [r for r in find_runs(folder) if r.read_status()["state"] == "running"]
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_asked_to_end_ends_its_runs_and_says_how_to_go_on(endless_sweep, tiny_run, number):
    process, running = endless_sweep
    wait_until(lambda: Path(tiny_run.execution.runs_folder, "tiny").is_dir() and running())
    process.send_signal(number)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.count("every run finishes its step and saves; a second Ctrl-C stops at once") == 1
    assert complaint == "error: stopped: the same command goes on where this one ended\n"
    assert running() == []


def test_a_sweep_waits_for_its_runs_until_it_is_asked_a_second_time(endless_sweep, tiny_run):
    process, running = endless_sweep
    wait_until(lambda: Path(tiny_run.execution.runs_folder, "tiny").is_dir() and running())
    frozen = {run.name: run.read_status()["pid"] for run in running()}
    for pid in frozen.values():  # so that they cannot answer
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    assert {run.name for run in running()} >= frozen.keys()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.count("\n") == 1
    assert running() == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel")
def test_the_runs_of_a_killed_sweep_end_with_it(endless_sweep, tiny_run):
    process, running = endless_sweep
    wait_until(lambda: Path(tiny_run.execution.runs_folder, "tiny").is_dir() and running())
    process.kill()
    wait_until(lambda: running() == [])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel")
def test_a_closed_terminal_stops_a_sweep_without_losing_a_run(sweep_file, tiny_run):
    import pty

    values = yaml.safe_load(sweep_file.read_text())
    values["train"] |= {"tokens": 512 * 1e5, "allow_repeat": True}
    sweep_file.write_text(yaml.safe_dump(values))
    folder = Path(tiny_run.execution.runs_folder) / "tiny"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "scaling", "sweep", str(sweep_file)])
    wait_until(lambda: folder.is_dir() and any(r.read_status()["state"] == "running" for r in find_runs(folder)))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert all(r.read_status()["state"] != "running" for r in find_runs(folder))
