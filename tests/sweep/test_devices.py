"""The pool of devices and where it comes from."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.errors import ConfigError
from scaling.sweep.devices import Device, DevicePool, environment, find_devices, what_is_missing


@pytest.fixture
def asking(tiny_run, change):
    """`asking(1, 4)`: runs that need as many devices."""

    def _asking(*devices, accelerator="auto"):
        return [
            change(replace(tiny_run, seed=i), "execution", devices=n, accelerator=accelerator)
            for i, n in enumerate(devices)
        ]

    return _asking


@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=50))
def test_a_device_is_free_or_with_one_run(size, steps):
    """Whatever runs take and give back: no device is with two runs, and none is lost."""
    pool = DevicePool([Device(gpu=str(i)) for i in range(size)])
    taken = []
    for takes, count in steps:
        if takes:
            places = pool.free(count)
            assert len(places) == min(count, size - sum(map(len, taken)))
            taken.append(pool.take(places))
            assert list(taken[-1]) == places
        elif taken:
            pool.give_back(taken.pop(count % len(taken)))
        out = [device.gpu for devices in taken for device in devices.values()]
        assert len(out) == len(set(out)) == size - len(pool.free(size))


def test_a_retry_takes_what_it_failed_on_only_where_there_is_nothing_else():
    pool = DevicePool([Device(gpu=str(i)) for i in range(4)])
    assert pool.free(2, avoid={0, 1}) == [2, 3]
    assert pool.free(3, avoid={0, 1}) == [2, 3, 0]
    busy = pool.take([2])
    assert pool.free(2, avoid={0, 1}) == [3]  # it waits for the other one
    assert pool.free(1, avoid={0, 1}, kept={3}) == []
    assert pool.free(4, avoid={0, 1, 2, 3}) == [0, 1, 3]
    pool.give_back(busy)
    assert pool.free(4, avoid={0, 1, 2, 3}) == [0, 1, 2, 3]


def test_a_device_is_set_aside_when_two_runs_in_a_row_fail_on_it():
    pool = DevicePool([Device(gpu=str(i)) for i in range(3)])
    taken = pool.take([0, 1])
    assert pool.failed(taken, "one") == {}
    assert pool.failed([0], "one") == {}  # the same run again
    pool.succeeded([1])
    assert pool.failed(taken, "other") == {"0": "one"}
    pool.give_back(taken)
    assert pool.left == 2
    assert pool.free(3) == [1, 2]
    assert DevicePool([Device(threads=1)] * 2).failed([0], "one") == {}


def test_what_a_run_sees():
    assert environment([Device(gpu="4"), Device(gpu="1")]) == {"CUDA_VISIBLE_DEVICES": "4,1"}
    assert environment([Device(threads=3)] * 2) == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


def test_a_cpus_cores_are_divided_by_the_whole_plan(asking, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices._usable_cores", lambda: list(range(8)))
    assert [d.cores for d in find_devices(asking(1, 2, accelerator="cpu"), None)] == [(0, 1), (2, 3), (4, 5)]
    assert [d.threads for d in find_devices(asking(4, 4, 4, accelerator="cpu"), None)] == [1] * 8
    assert [d.threads for d in find_devices(asking(1, 2, accelerator="cpu"), "2")] == [4, 4]


def test_gpus_are_all_or_the_chosen(asking, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: ["0", "1", "2", "3", "4"])
    assert [d.gpu for d in find_devices(asking(1, 4), None)] == ["0", "1", "2", "3", "4"]
    assert [d.gpu for d in find_devices(asking(1), "4,1,4")] == ["4", "1"]
    with pytest.raises(ConfigError, match="names GPU '7': there are 0, 1, 2, 3, 4"):
        find_devices(asking(1), "0,7")


def test_a_run_that_asks_for_more_than_there_is_is_named(asking, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: ["0", "1", "2", "3"])
    runs = asking(1, 8, 2)
    said = what_is_missing(runs, find_devices(runs, None))
    assert f"{runs[1].run_name} has execution.devices 8: the sweep may use 4 GPUs" in said
    runs = asking(1, 2, accelerator="cpu")
    assert "execution.devices 2: the sweep may use 1 parts" in what_is_missing(runs, find_devices(runs, "1"))
    runs = asking(1, 4)
    assert what_is_missing(runs, find_devices(runs, None)) == ""


def test_cuda_without_a_gpu_is_named(asking, monkeypatch):
    monkeypatch.setattr("scaling.sweep.devices.visible_gpus", lambda: [])
    runs = asking(1, accelerator="cuda")
    for chosen in (None, "0,1"):
        assert "torch sees no GPU" in what_is_missing(runs, find_devices(runs, chosen))


@pytest.mark.parametrize("devices", ["0", "x", "999", "-1"])
def test_a_bad_number_of_parts_is_named(asking, devices):
    with pytest.raises(ConfigError, match="--devices is"):
        find_devices(asking(1, accelerator="cpu"), devices)
