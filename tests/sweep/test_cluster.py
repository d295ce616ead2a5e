"""Settings of a cluster: what is wrong is named, and nothing of them can be more than a value of a batch script."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scaling.errors import ConfigError
from scaling.loading import build, docstrings
from scaling.sweep.cluster import ClusterConfig, read_cluster, shares
from scaling.sweep.plan import Plan
from scaling.sweep.slurm import Jobs

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_is_found_by_its_name_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read_cluster("slurm", ROOT / "sweeps/demo.yaml") == ClusterConfig()
    file = tmp_path / "mine.yaml"
    file.write_text("partition: gpu")
    assert read_cluster(str(file), ROOT / "sweeps/demo.yaml").partition == "gpu"
    with pytest.raises(ConfigError, match=r"configs/cluster/none\.yaml does not exist"):
        read_cluster("none", ROOT / "sweeps/demo.yaml")


def test_every_setting_is_explained_and_shown_in_the_shipped_file():
    text = (ROOT / "configs/cluster/slurm.yaml").read_text()
    settings = docstrings(ClusterConfig)
    assert all(settings.values())
    assert [name for name in settings if f"\n{name}: " not in text and f"\n# {name}: " not in text] == []


@pytest.mark.parametrize(
    "bad",
    [
        {"partition": ""},
        {"partition": "gpu\ntouch x"},
        {"account": "a b"},
        {"constraint": "'; touch x; '"},
        {"qos": "$(touch x)"},
        {"time_minutes": 0},
        {"cpus_per_device": 0},
        {"memory_gb_per_device": 0},
        {"max_parallel": 0},
        {"signal_delay_s": 5},
        {"signal_delay_s": 120, "time_minutes": 5},
        {"additional": {"exclude\n": "node7"}},
        {"additional": {"exclude=x y": "node7"}},
        {"additional": {"output": "/etc/passwd"}},
        {"additional": {"comment": "one\nrm -rf x"}},
        {"additional": {"comment": "`touch x`"}},
        {"additional": {"exclusive": False}},
        {"additional": {"exclude": ["node7"]}},
        {"nodes": 2},
    ],
)
def test_a_bad_setting_is_named(bad):
    with pytest.raises(ConfigError) as error:
        build(ClusterConfig, bad)
    assert len(error.value.problems) == 1
    assert next(iter(bad)) in error.value.problems[0]


def test_good_settings():
    additional = {"exclude": "node7,node[9-11]", "exclusive": True, "nice": 100, "comment": "AttnRes ladder"}
    config = build(ClusterConfig, {"constraint": "a100|h100", "time_minutes": 90, "additional": additional})
    assert config.additional == additional


@given(st.integers(1, 40), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_a_limit_holds_over_all_arrays_and_is_used_up(limit, runs):
    given = shares(limit, runs)
    assert all(1 <= share <= n for share, n in zip(given, runs, strict=True))
    assert sum(given) == min(sum(runs), max(limit, len(runs)))


@pytest.fixture
def submitted(monkeypatch, tmp_path, tiny_run, change):
    """`submitted(limit, *devices)`: how many of each array may go at a time, and what is printed."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'attnres-scaling[slurm]'")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("srun", "squeue", "sbatch"):
        (commands / name).write_text("#!/bin/sh\necho Submitted batch job $$\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/bin:/usr/bin")

    def _submitted(limit, *devices):
        runs = [change(replace(tiny_run, seed=i), "execution", devices=n) for i, n in enumerate(devices)]
        console = Console(file=io.StringIO(), width=200)
        Jobs(Plan("tiny", runs)).submit(runs, ClusterConfig(max_parallel=limit), "tiny", console)
        scripts = (Path(tiny_run.execution.runs_folder) / "slurm").glob("*.sh")
        arrays = [re.findall(r"--array=0-(\d+)%(\d+)", script.read_text()) for script in scripts]
        arrays = [found[0] if found else (0, 1) for found in arrays]  # a single run needs none
        return {int(last) + 1: int(most) for last, most in arrays}, console.file.getvalue()

    return _submitted


def test_runs_of_all_sizes_together_keep_to_the_limit(submitted):
    """There is an array for each number of devices."""
    assert submitted(4, 4, 2, 2, 1, 1, 1) == ({1: 1, 2: 1, 3: 2}, "")


def test_a_limit_below_the_number_of_arrays_is_said(submitted):
    arrays, said = submitted(2, 4, 2, 2, 1, 1, 1)
    assert arrays == {1: 1, 2: 1, 3: 1}
    assert "max_parallel is 2" in said
    assert said.count("\n") == 1


@pytest.fixture
def refused(capsys, monkeypatch, tmp_path, tiny_run):
    """`refused(file, *options)`: the error lines of a sweep on a cluster whose commands are not there."""
    from dataclasses import asdict

    from scaling.cli import main

    values = asdict(tiny_run)
    sweep = {key: values[key] for key in ("data", "train", "execution")}
    file = tmp_path / "tiny.yaml"
    sweep |= {"name": "tiny", "sizes": [{"model": values["model"]}], "variants": {"block": values["residual"]}}
    file.write_text(yaml.safe_dump(sweep))
    settings = tmp_path / "here.yaml"
    settings.write_text("partition: low")
    monkeypatch.setenv("PATH", str(tmp_path))

    def _refused(*options):
        assert main(["sweep", str(file), "--cluster", str(settings), *options]) == 2
        return capsys.readouterr().err.splitlines()

    return _refused


def test_without_slurm_it_is_said_in_one_line_and_nothing_is_written(refused, tiny_run):
    [line] = refused()
    assert "there is no sbatch here: give --cluster on a login node" in line
    assert not Path(tiny_run.execution.runs_folder).exists()


def test_a_clusters_plan_does_not_have_this_machines_speed(refused, capsys, tmp_path):
    from scaling.cli import main

    plan = ["sweep", str(tmp_path / "tiny.yaml"), "--cluster", str(tmp_path / "here.yaml"), "--dry-run"]
    assert main(plan) == 0
    out = capsys.readouterr().out
    assert "1 of 1 runs to do on the cluster; the time is not known: set execution.peak_tflops" in out
    assert " time ┃" not in out
    assert main([*plan, "--execution.peak_tflops", "1e-6"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 runs to do on the cluster at 0.4 of a peak of 1e-06 TFLOP/s a device" in " ".join(out.split())
    assert " time ┃" in out


def test_this_machines_devices_are_not_the_clusters(refused):
    [line] = refused("--devices", "1")
    assert "--devices is of this machine" in line


def test_a_folder_whose_name_could_be_more_than_a_value_is_refused(refused, tmp_path):
    [line] = refused("--execution.runs_folder", str(tmp_path / "$(touch x)"))
    assert "choose an execution.runs_folder without quotes" in line
    assert not (tmp_path / "$(touch x)").exists()
