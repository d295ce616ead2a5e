"""What `estimate` prints, against the same numbers from the configuration, and what it refuses."""

from dataclasses import asdict, replace

import pytest
import torch
import yaml

from scaling.cli import main
from scaling.compute import PFLOPS_DAY, flops_per_token, parameters
from scaling.config import ResidualConfig
from scaling.memory import training_memory
from scaling.sweep.estimate import device_memory
from scaling.sweep.footprint import USABLE, _largest, footprints
from scaling.sweep.plan import read_plan

MIB, GIB = 2**20, 2**30


@pytest.fixture
def sweep_file(tiny_run, change, write_sweep):
    """Two sizes x two arms x two seeds, with names as long as those of a real ladder."""
    model = asdict(tiny_run.model)
    sizes = [{"model": {**model, "name": f"dense-17x12{d}", "d_model": d}} for d in (16, 32)]
    return write_sweep(change(tiny_run, "execution", micro_batch=2), sizes=sizes, seeds=[0, 1])


def printed(capsys, *arguments):
    assert main(["estimate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def rows(text, name):
    """Cells of the rows of one run, one row in each table but two in the one of memory."""
    found = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in found]


def test_every_run_is_in_every_table_and_all_of_them_in_all(capsys, sweep_file):
    text = printed(capsys, sweep_file, "--peak-tflops", 100, "--mfu", 0.5, "--price", 2.5, "--node-devices", 8)
    assert max(len(line) for line in text.splitlines()) <= 160
    runs = read_plan(sweep_file).runs
    assert len(runs) == 8
    hours_in_all = 0.0
    for run in runs:
        of_parameters, compute, cost, memory = rows(text, run.run_name)
        assert len(of_parameters) == len(parameters(run.shape)) + 3
        assert compute[2] == "12"
        flops = flops_per_token(run.shape, "model") * run.tokens
        assert float(compute[3]) == pytest.approx(flops, rel=1e-3)
        assert float(compute[6]) == pytest.approx(flops / PFLOPS_DAY, rel=1e-2)
        hours_in_all += flops / 50e12 / 3600
        assert [float(x) for x in cost[1:4]] == pytest.approx(
            [1, flops / 50e12 / 3600, flops / 50e12 / 3600 / 8], rel=1e-2
        )
        parts = training_memory(run)
        assert [float(x) for x in memory[3:8]] == pytest.approx([n / MIB for n in parts.values()], abs=0.006)
    compute, cost = rows(text, "in all")
    assert compute[2] == "96"
    assert float(cost[2]) == pytest.approx(hours_in_all, rel=1e-2)
    assert "0.5 of a peak of 100 TFLOP/s a device" in text
    assert "--device-memory" in text or torch.cuda.is_available()


def test_money_is_hours_times_price(capsys, sweep_file):
    text = printed(capsys, sweep_file, "--peak-tflops", 1e-6, "--price", 3)
    _, cost = rows(text, "in all")
    assert len(cost) == 4  # no node hours: how many devices a node has is not known
    assert float(cost[-1].replace(",", "")) == pytest.approx(3 * float(cost[-2].replace(",", "")), rel=1e-2)


def test_what_does_not_fit_is_said_in_the_table(capsys, sweep_file):
    values = yaml.safe_load(sweep_file.read_text())
    sweep_file.write_text(yaml.safe_dump({**values, "sizes": values["sizes"][:1]}))
    (run, *_) = read_plan(sweep_file).runs
    needed = sum(training_memory(run).values()) / GIB
    text = printed(capsys, sweep_file, "--peak-tflops", 1, "--device-memory", needed)
    assert rows(text, run.run_name)[-1][-2] == "too large"  # the driver takes some of it
    text = printed(capsys, sweep_file, "--peak-tflops", 1, "--device-memory", 1.2 * needed)
    assert rows(text, run.run_name)[-1][-2:] == ["yes", "2"]
    text = printed(capsys, sweep_file, "--peak-tflops", 1, "--device-memory", 1e-6)
    assert text.count("none fits") == text.count("too large") == 8


@pytest.mark.parametrize("largest", [1, 2, 4, 8])
def test_the_largest_micro_batch_fits_and_the_next_does_not(tiny_run, change, largest):
    run = change(tiny_run, "residual", scheme="baseline", options={})

    def needed(micro_batch):
        return sum(training_memory(change(run, "execution", micro_batch=micro_batch)).values()) / USABLE

    for memory, expected in ((needed(largest) + 1, largest), (needed(largest) - 2, largest // 2)):
        ((without, _),) = footprints([run], memory, lambda: None)
        assert without.largest_micro_batch == expected


def test_the_largest_is_found_however_sizes_grow():
    """The last one's may be less than the one before it."""
    sizes = {1: 10, 2: 11, 4: 13, 8: 40, 16: 38}
    for limit, expected in ((50, 16), (39, 16), (37, 4), (10, 1), (9, 0)):
        assert _largest(list(sizes), limit, sizes.__getitem__) == expected
    assert _largest([1], 10, sizes.__getitem__) == 1


def test_equal_work_is_counted_once(tiny_run, monkeypatch):
    counted = []
    monkeypatch.setattr("scaling.sweep.footprint.training_memory", lambda run: counted.append(run) or {"weights": 1})
    runs = [replace(tiny_run, seed=seed) for seed in range(5)] + [replace(tiny_run, residual=ResidualConfig("full"))]
    steps = []
    assert len(footprints(runs, None, lambda: steps.append(1))) == 6
    assert len(counted) == 4
    assert len(steps) == 12


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--peak-tflops", "0"], "--peak-tflops is 0: must be greater than 0"),
        (["--peak-tflops", ".inf"], "--peak-tflops is inf: must be greater than 0"),
        (["--peak-tflops", "fast"], "peak"),
        (["--peak-tflops", "100", "--mfu", "1.5"], "--mfu is 1.5: must be greater than 0 and at most 1"),
        (["--peak-tflops", "100", "--mfu", ".nan"], "--mfu is nan"),
        (["--mfu", "0.5"], "give --peak-tflops too"),
        (["--price", "-1"], "--price is -1"),
        (["--device-memory", "0"], "--device-memory is 0"),
        (["--node-devices", "0"], "--node-devices is 0"),
        (["--tflops", "100"], "tflops"),
    ],
)
def test_an_impossible_number_is_one_line(capsys, sweep_file, arguments, expected):
    assert main(["estimate", str(sweep_file), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line


def test_memory_of_a_gpu_is_not_that_of_a_run_on_the_cpu():
    assert device_memory("cpu") is None
    assert (device_memory("auto") is None) == (not torch.cuda.is_available())
