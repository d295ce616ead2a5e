"""Every command of the README runs, in a copy of the project whose demo is made small."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from library_corpus import write_corpus

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.M | re.S)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
RUN_BY_CI = ("make demo", "make test")


def shell(command, folder, **environment):
    return subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what git tracks or would, with this environment, tiny models and the corpus of the tests."""
    folder = tmp_path_factory.mktemp("project")
    listing = shell("git ls-files --cached --others --exclude-standard", ROOT).stdout.split()
    for name in (n for n in listing if (ROOT / n).is_file()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    bin_folder = folder / ".venv/bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH=. exec {sys.executable} "$@"\n')
    (bin_folder / "python").chmod(0o755)
    (folder / ".venv/ready").touch()

    text = write_corpus(folder / "TRAIN.jsonl")
    write_corpus(folder / "VALIDATION.jsonl", packages=("html",))
    corpus = {"name": "python", "source": "files", "train_files": [str(text)], "vocab_size": 512,
              "validation_fraction": 0.2}  # fmt: skip
    (folder / "configs/data/python.yaml").write_text(yaml.safe_dump(corpus))
    files = yaml.safe_load((folder / "configs/data/files.yaml").read_text()) | {"vocab_size": 512}
    (folder / "configs/data/files.yaml").write_text(yaml.safe_dump(files))
    for path in (*folder.glob("configs/model/cpu-*.yaml"),):
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"n_layers": 2}))
    tiny = {"seq_len": 32, "batch_tokens": 256, "validation_tokens": 320, "tokens": 2560, "lr": 1e-3}
    sweep = yaml.safe_load((folder / "sweeps/demo.yaml").read_text())
    sweep["train"], sweep["execution"] = tiny, {}
    sweep["sizes"] = [{"model": size["model"]} for size in sweep["sizes"]]
    sweep["variants"]["block"]["options"] = {"n_blocks": 2}
    (folder / "sweeps/demo.yaml").write_text(yaml.safe_dump(sweep))
    quick = yaml.safe_load((folder / "configs/run/quick.yaml").read_text())
    quick["train"], quick["residual"]["options"] = tiny, {"n_blocks": 2}
    (folder / "configs/run/quick.yaml").write_text(yaml.safe_dump(quick))
    return folder


def test_commands_are_found():
    assert len(COMMANDS) > 10
    assert all(c.split()[0] in ("make", ".venv/bin/python") for c in COMMANDS)


def test_ci_runs_the_first_two_commands():
    ci = (ROOT / ".ci/run").read_text()
    assert all(command.split()[1] in re.search(r"for target in (.*); do", ci).group(1).split() for command in RUN_BY_CI)


def test_every_other_command_runs(project):
    for command in COMMANDS:
        if command in RUN_BY_CI:
            continue
        here = command.replace(" DEVICES=0,1,2,3", "")  # there may be no four GPUs
        done = shell(here, project)
        assert done.returncode == 0, f"{here}\n{done.stdout}\n{done.stderr}"
    assert (project / "results/demo/report.html").exists()
    assert (project / "results/demo/figures/loss_compute_model.png").stat().st_size > 1000


def test_the_residual_scheme_of_the_readme_trains(project):
    [code] = [block for language, block in BLOCKS if language == "python"]
    place = re.match(r"# (\S+)\n", code).group(1)
    (project / place).write_text(code)
    (project / "run.yaml").write_text((project / "configs/run/quick.yaml").read_text())
    done = shell(
        ".venv/bin/python -m scaling train configs/run/quick.yaml --residual.scheme layer_scale "
        "--residual.options '{initial: 0.2}' --execution.runs_folder own",
        project,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validation loss" in done.stdout


def test_help_lists_every_target():
    done = shell("make help", ROOT)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.M).group(1).split()
    assert all(re.search(rf"^  make {target} +\S", done.stdout, flags=re.M) for target in targets)


def test_the_readme_names_files_that_exist():
    for name in re.findall(r"`([\w./-]+/)`|\(((?:results|configs)/[^)]+)\)", README):
        path = next(filter(None, name))
        assert (ROOT / path).exists() or path.startswith("runs/"), path


def test_the_table_of_faults_names_tests_that_exist():
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = re.findall(r"(test_\w+)`", (ROOT / "tests/README.md").read_text())
    assert len(named) > 40
    assert [name for name in named if f"def {name}(" not in sources] == []
