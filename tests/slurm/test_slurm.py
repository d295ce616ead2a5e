"""A sweep on a real Slurm on this machine: killed, preempted and out of time, it ends as on the local queue."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import local_slurm
import pytest
import yaml
from processes import wait_until

from scaling.records import find_runs

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'attnres-scaling[slurm]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(local_slurm.missing()), reason=local_slurm.missing() or "there is a Slurm"),
]
LONG = 45.0
"""Seconds of training that a job of a minute has no time for: it is asked to stop 20 to 50 s after its start."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment of a running cluster."""
    with local_slurm.local_slurm(tmp_path_factory.mktemp("slurm") / "here") as environment:
        yield environment


@pytest.fixture
def sweep(tiny_run, change, write_sweep):
    """`sweep(runs_folder)`: the command that trains three short runs and one long one there."""
    tiny_run = change(tiny_run, "execution", log_every=50, validate_every=200, checkpoint_every=50)
    tiny_run = change(tiny_run, "train", tokens=512 * 200, allow_repeat=True)
    values = asdict(tiny_run)
    widths = {"long": 32, "a": 16, "b": 24, "c": 40}
    sizes = [{"model": {**values["model"], "name": name, "d_model": width}} for name, width in widths.items()]
    sizes[0]["train"] = {"tokens": 512 * round(LONG / seconds_of_a_step(tiny_run))}
    file = write_sweep(tiny_run, sizes=sizes, variants={"block": values["residual"]})
    return lambda folder, *more: [
        *(sys.executable, "-m", "scaling", "sweep", str(file), "--execution.runs_folder", str(folder), *more)
    ]


def seconds_of_a_step(run):
    run.directory.write_config(asdict(run))
    command = [sys.executable, "-m", "scaling", "train", str(run.directory.path / "config.yaml")]
    subprocess.run(command, check=True, capture_output=True)
    return run.directory.read_metrics().device_seconds / run.steps


@pytest.fixture
def settings(tmp_path):
    """The file of the cluster's settings."""
    file = tmp_path / "here.yaml"
    file.write_text(yaml.safe_dump({"partition": "low", "time_minutes": 1, "cpus_per_device": 1, "signal_delay_s": 10}))
    return file


def wait_for(what, process):
    def answer():
        found = what()
        assert found or process.poll() is None, "the sweep ended"
        return found

    return wait_until(answer, 120, pause=0.2)


def restarts(environment):
    shown = subprocess.run(["scontrol", "--oneliner", "show", "job"], env=environment, capture_output=True, text=True)
    jobs = re.findall(r"ArrayTaskId=(\d+) .*? Restarts=(\d+)", shown.stdout)
    return {int(task): int(count) for task, count in jobs}


class Transitions(threading.Thread):
    """Notes every change of Slurm's queue; printed where a test fails."""

    def __init__(self, environment):
        super().__init__(daemon=True)
        self.environment, self.done = environment, threading.Event()

    def run(self):
        began, before = time.monotonic(), {}
        while not self.done.wait(0.3):
            command = ["squeue", "--noheader", "--array", "--format=%i %P %T %r"]
            lines = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False).stdout
            now = dict(line.split(" ", 1) for line in lines.splitlines())
            for job in sorted(before.keys() | now.keys()):
                if before.get(job) != now.get(job):
                    print(f"{time.monotonic() - began:6.1f} s  {job:>4}  {now.get(job, 'gone')}", flush=True)
            before = now


def test_killed_preempted_and_out_of_time_it_ends_as_on_the_local_queue(cluster, sweep, settings, tmp_path):
    folder = tmp_path / "runs of the cluster"
    command = sweep(folder, "--cluster", str(settings))
    transitions = Transitions(cluster)
    transitions.start()
    with open(tmp_path / "said", "wb") as said:
        sweeping = subprocess.Popen(command, env=cluster, stdout=said, stderr=subprocess.STDOUT)

    def long_run(attempt):
        """The long run, if it has a checkpoint and is in this attempt or a later one."""
        for run in find_runs(folder / "tiny") if (folder / "tiny").is_dir() else []:
            status = run.read_status()
            if "-long-" in run.name and status["state"] == "running" and status.get("attempt", 0) >= attempt:
                return run if run.last_checkpoint.exists() else None
        return None

    try:
        wait_for(lambda: long_run(attempt=1), sweeping)
        print("a job that needs every core, in the partition high")
        options = ["--partition=high", f"--cpus-per-task={os.cpu_count()}", "--output=/dev/null", "--wrap=sleep 1"]
        subprocess.run(["sbatch", *options], env=cluster, check=True, cwd=tmp_path)

        long = wait_for(lambda: long_run(attempt=2), sweeping)
        print("SIGKILL to the training process of", long.name)
        os.kill(long.read_status()["pid"], signal.SIGKILL)

        wait_for(lambda: long_run(attempt=3), sweeping)
        print("the same command again, and Ctrl-C")
        again = subprocess.Popen(command, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = next(line for line in again.stdout if "submitted" in line)
        assert line.startswith("0 runs submitted")
        again.send_signal(signal.SIGINT)
        assert "error: the jobs go on: scancel" in again.communicate(timeout=60)[0]
        assert again.returncode == 130
        assert sweeping.wait(timeout=240) == 0
    finally:
        sweeping.kill()
        transitions.done.set()
        transitions.join()
        print("restarts by array task:", restarts(cluster))
        for log in [tmp_path / "said", *sorted(folder.glob("tiny/slurm/*_log.out"))]:
            print(f"--- {log.name}\n{log.read_text()}")

    assert sum(restarts(cluster).values()) >= 2  # preempted, and out of time
    logs = [log.read_text() for log in folder.glob("tiny/slurm/*_log.out")]
    assert any("DUE TO PREEMPTION" in log for log in logs)
    assert any(re.search("SIGUSR2: the run finishes.*Requeued job", log, flags=re.S) for log in logs)
    assert any("retried" in log for log in logs)

    assert subprocess.run(sweep(tmp_path / "local"), check=False, capture_output=True).returncode == 0
    local = {run.name: (run.path / "result.json").read_bytes() for run in find_runs(tmp_path / "local/tiny")}
    assert len(local) == 4
    assert {run.name: (run.path / "result.json").read_bytes() for run in find_runs(folder / "tiny")} == local
    assert "0 of 4 runs to do" in subprocess.run(command, env=cluster, capture_output=True, text=True).stdout


def test_what_slurm_refuses_is_one_line(cluster, sweep, settings, tmp_path):
    settings.write_text("partition: none")
    command = sweep(tmp_path / "runs", "--cluster", str(settings))
    done = subprocess.run(command, env=cluster, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: sbatch refused the jobs: ")
    assert "invalid partition specified: none" in done.stderr
