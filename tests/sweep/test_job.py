"""What one job of a cluster does, in a process of its own; a real Slurm around it: `slurm/test_slurm.py`."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
from processes import wait_until

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'attnres-scaling[slurm]'")

from scaling.errors import SweepError
from scaling.sweep.devices import Device
from scaling.sweep.job import allocated_devices

JOB = """
import signal, sys
from scaling.sweep.job import TrainJob

def put_back(number, frame):  # stands where submitit puts the job back into Slurm's queue
    print("put back", flush=True)
    sys.exit(255)

signal.signal(signal.SIGUSR2, put_back)
TrainJob(sys.argv[1], patience=30)()
"""


@pytest.fixture
def job(tiny_run, change):
    """`job()`: starts the job of a run that takes some seconds."""
    run = change(tiny_run, "train", tokens=512 * 400, allow_repeat=True)
    run = change(run, "execution", log_every=10, validate_every=100, checkpoint_every=10)
    run.directory.write_config(asdict(run))
    config = str(run.directory.path / "config.yaml")
    started = []

    def _job():
        environment = {**os.environ, "SLURM_CPUS_PER_TASK": "1"}
        started.append(
            subprocess.Popen([sys.executable, "-c", JOB, config], env=environment, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield _job, run.directory
    for process in started:
        process.kill()
        process.wait()


def is_under_way(run):
    return run.read_status()["state"] == "running" and run.last_checkpoint.exists()


def test_a_run_whose_time_is_up_is_saved_put_back_and_finished_by_the_next_job(job):
    start, run = job
    first = start()
    wait_until(lambda: is_under_way(run))
    os.kill(run.read_status()["pid"], signal.SIGUSR2)  # as where Slurm sends signals to every process of a job
    first.send_signal(signal.SIGUSR2)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 255
    assert [line.split()[0] for line in said.splitlines()] == ["started", "SIGUSR2:", "stopped", "put"]
    assert run.read_status()["state"] == "pending"
    assert run.read_status()["step"] > 0
    assert start().wait(timeout=120) == 0
    assert run.read_result()
    assert len(run.read_run()["attempts"]) == 2


def test_a_preempted_or_cancelled_job_saves_and_leaves_it_to_slurm_whether_it_comes_back(job):
    start, run = job
    process = start()
    wait_until(lambda: is_under_way(run))
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # Slurm repeats itself
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "put back" not in said
    assert run.read_status()["state"] not in ("running", "finished")


def test_a_failed_run_is_a_failed_job(job, capsys):
    start, run = job
    values = run.read_config()
    values["train"]["lr"] = 1e30
    run.write_config(values)
    process = start()
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_run_has_the_cores_or_gpus_of_its_job(tiny_run, change, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert allocated_devices(change(tiny_run, "execution", devices=2)) == [Device(threads=3)] * 2
    monkeypatch.setattr("scaling.sweep.job.visible_gpus", lambda: ["2", "5"])
    on_gpus = change(tiny_run, "execution", devices=2, accelerator="cuda")
    assert allocated_devices(on_gpus) == [Device(gpu="2"), Device(gpu="5")]
    with pytest.raises(SweepError, match="needs 4 GPUs, and the job sees 2"):
        allocated_devices(change(on_gpus, "execution", devices=4))
