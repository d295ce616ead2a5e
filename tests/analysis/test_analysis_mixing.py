"""`python -m analysis mixing RUN`, on real runs."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from analysis.cli import main
from analysis.mixing import mixing_of_run
from scaling.config import ResidualConfig
from scaling.training.run import train


@pytest.fixture
def trained(tiny_run):
    def run(scheme, **options):
        config = replace(tiny_run, residual=ResidualConfig(scheme, options), variant=scheme)
        train(config, Console(quiet=True))
        return config.directory.path

    return run


def test_the_residual_stream_is_all_ones_of_rank_1(trained, capsys):
    path = trained("baseline")
    assert main(["mixing", str(path)]) == 0
    assert "semiseparable rank 1 (from 1 to 1 over tokens)" in capsys.readouterr().out
    with open(path / "mixing.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 6 // 2
    assert all(float(row["mean"]) == pytest.approx(1) and float(row["sd"]) < 1e-9 for row in rows)
    assert (path / "mixing.png").stat().st_size > 1000


def test_attention_residuals_depend_on_the_text(trained, tmp_path):
    path = trained("full")
    validation, words = mixing_of_run(path), mixing_of_run(path, "import os\nprint(os.getcwd())\n")
    assert validation.mean == pytest.approx(np.tril(validation.mean))
    assert validation.mean.sum(1) == pytest.approx(np.ones(5))
    assert validation.mean[4] != pytest.approx(words.mean[4], rel=1e-6)
    assert validation.sd[4].max() > 0


def test_a_run_without_a_checkpoint_is_one_line(tiny_run, capsys):
    tiny_run.directory.write_config({})
    assert main(["mixing", str(tiny_run.directory.path)]) == 2
    assert "is missing" in capsys.readouterr().err
    assert main(["mixing", "nowhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
