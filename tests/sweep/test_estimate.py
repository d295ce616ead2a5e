"""What `estimate` prints, against the same numbers from the configuration, and what it refuses."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml

from scaling.cli import main
from scaling.compute import PFLOPS_DAY, flops_per_token, parameters
from scaling.config import ResidualConfig
from scaling.memory import training_memory
from scaling.sweep.devices import Device, find_devices, visible_gpus
from scaling.sweep.estimate import device_memory, device_seconds, known_rate, rate_of_peak, wall_seconds
from scaling.sweep.footprint import USABLE, _largest, footprints
from scaling.sweep.plan import read_plan
from scaling.sweep.speed import gpu_facts

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices._usable_cores", lambda: [0, 1])


def test_a_node_has_the_devices_of_this_machine_however_many_a_run_takes(capsys, sweep_file, two_cores):
    text = printed(capsys, sweep_file, "--execution.devices", 2)
    assert "of 2 devices" in text
    _, cost = rows(text, "in all")
    assert float(cost[3]) == pytest.approx(float(cost[2]) / 2, rel=0.02)


def test_a_sweep_for_a_larger_machine_is_estimated_but_for_its_time(capsys, sweep_file, two_cores):
    """Nobody sees a node of 8 GPUs before it is paid for."""
    larger = [sweep_file, "--execution.devices", 4, "--price", 3]
    text = printed(capsys, *larger)
    assert len(rows(text, "in all")) == 1
    assert "the time is not known: give --peak-tflops" in text
    assert "Cost" not in text
    for run in read_plan(sweep_file).runs:
        assert len(rows(text, run.run_name)) == 3
    for known in (["--peak-tflops", 100], ["--execution.peak_tflops", 100]):
        text = printed(capsys, *larger, *known)
        assert "Cost at 0.4 of a peak of 100 TFLOP/s a device" in text
        assert "not known: give --peak" not in text


def test_a_sweep_for_gpus_is_estimated_where_there_are_none(capsys, sweep_file, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: [])
    text = printed(capsys, sweep_file, "--execution.accelerator", "cuda")
    assert "the time is not known: give --peak-tflops" in text


@pytest.mark.parametrize("name", ["node", "paper"])
def test_the_shipped_sweeps_for_gpus_are_estimated_anywhere(capsys, monkeypatch, two_cores, name):
    """Counting their memory is another test's."""
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: [])
    monkeypatch.setattr("scaling.sweep.footprint.training_memory", lambda run: {"weights": 1})
    assert "the time is not known: give --peak-tflops" in printed(capsys, ROOT / "sweeps" / f"{name}.yaml")


def test_a_plan_has_the_time_on_the_wall(tiny_run, change):
    rate = rate_of_peak(1e-3)
    one, four = (change(tiny_run, "execution", devices=n) for n in (1, 4))
    assert wall_seconds(four, rate) == pytest.approx(wall_seconds(one, rate) / 4)
    assert wall_seconds(one, rate) == device_seconds(one, rate)


def test_a_rate_is_measured_then_that_of_the_given_peak_then_that_of_this_machine(tiny_run, change, two_cores):
    devices = find_devices([tiny_run], None)
    run = change(tiny_run, "execution", peak_tflops=100)
    assert known_rate([tiny_run], [tiny_run.directory], []) is None
    assert "in matrix products" in known_rate([tiny_run], [tiny_run.directory], devices).description
    assert known_rate([run], [run.directory], []).flops == 40e12
    assert known_rate([run], [run.directory], devices).flops == 40e12
    run.directory.path.mkdir(parents=True)
    metrics = run.directory.open_metrics(1)
    metrics.append(step=2, tokens=1024, train_loss=1.0, seconds=4.0)
    metrics.close()
    rate = known_rate([run], [run.directory], [])
    assert rate.flops == pytest.approx(flops_per_token(run.shape, "model") * 1024 / 4)
    assert "measured" in rate.description


def test_on_the_cpu_nobody_asks_for_a_gpu(tiny_run, two_cores, monkeypatch):
    def refuse(*_):
        raise AssertionError("CUDA was asked for")

    for name in ("is_available", "device_count", "get_device_properties", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert known_rate([tiny_run], [tiny_run.directory], find_devices([tiny_run], None)).flops > 0
    assert device_memory("cpu") is None


@pytest.fixture
def gpu_process(tmp_path, monkeypatch):
    """`gpu_process(text)`: stands where `python` would when the GPUs are asked, and prints that."""

    def write(text):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\necho $CUDA_VISIBLE_DEVICES $@ >> {tmp_path}/asked\nprintf '%s' '{text}'\n")
        file.chmod(0o755)
        monkeypatch.setattr("scaling.sweep.speed.sys.executable", str(file))
        monkeypatch.setattr("scaling.sweep.estimate.visible_gpus", lambda: ["0", "1"])
        gpu_facts.cache_clear()
        return tmp_path / "asked"

    yield write
    gpu_facts.cache_clear()


def test_gpus_are_asked_in_a_process_that_ends(tiny_run, gpu_process):
    """So that the sweep holds none of their memory."""
    asked = gpu_process('{"flops": 5e14, "memory": 8e10}')
    gpus = [Device(gpu="1"), Device(gpu="0")]
    rate = known_rate([tiny_run], [tiny_run.directory], gpus)
    assert rate.flops == pytest.approx(0.4 * 5e14)
    assert asked.read_text() == "1,0 -m scaling.sweep.speed\n"
    assert not torch.cuda.is_initialized()
    assert device_memory("auto") == 8e10


@pytest.mark.parametrize("answer", ["", "Traceback", "[]"])
def test_gpus_that_do_not_answer_have_no_rate(tiny_run, gpu_process, answer):
    """C6: no number rather than a wrong one."""
    gpu_process(answer)
    assert known_rate([tiny_run], [tiny_run.directory], [Device(gpu="0")]) is None
    assert device_memory("auto") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_process_says_nothing():
    gpu_facts.cache_clear()
    assert gpu_facts("") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_what_a_real_gpu_says():
    facts = gpu_facts(",".join(visible_gpus()))
    assert facts.flops > 1e12
    assert facts.memory > 2**30


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
