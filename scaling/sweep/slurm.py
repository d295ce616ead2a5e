"""A sweep on a Slurm cluster: a job for each run that needs one, submitted through submitit, and then watched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby

from rich.console import Console
from rich.text import Text

from scaling.config import RunConfig
from scaling.errors import ClusterError, ConfigError, Stopped, SweepError
from scaling.records import RunDirectory
from scaling.sweep.cluster import STOP_SECONDS, ClusterConfig, is_plain, shares
from scaling.sweep.plan import Plan
from scaling.sweep.queue import Failure
from scaling.sweep.signals import Signals
from scaling.sweep.tables import print_failures, readable_status
from scaling.sweep.watch import Watch

LOOK_SECONDS, ASK_SECONDS = 1.0, 10.0
"""Time between two looks at the runs' files, and between two questions to Slurm, which serves others too."""
AS_OFTEN_AS_IT_TAKES = 1_000_000
"""How often submitit may put a job back into the queue."""


class Jobs:
    """The jobs of a sweep: `jobs.json` below its runs' folder has each run's newest, Slurm knows which are left."""

    def __init__(self, plan: Plan):
        """Set up.

        Raises:
            ClusterError: there is no Slurm here, or no submitit.
            ConfigError: the folder has a name that cannot stand in a batch script.
        """
        self.folder = plan.folder.absolute() / "slurm"
        self._record = self.folder / "jobs.json"
        if not is_plain(str(self.folder)) or "%" in str(self.folder):
            raise ConfigError(f"{self.folder}: choose an execution.runs_folder without quotes, backslashes, $ and %")
        if missing := [name for name in ("sbatch", "srun", "squeue") if not shutil.which(name)]:
            raise ClusterError(f"there is no {missing[0]} here: give --cluster on a login node of a Slurm cluster")
        if find_spec("submitit") is None:
            raise ClusterError("--cluster needs submitit: pip install 'attnres-scaling[slurm]'")

    def left(self) -> dict[str, str]:
        """The job of each run that has one in Slurm's queue, waiting or at work.

        Raises:
            ClusterError: Slurm does not answer.
        """
        command = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"squeue failed ({' '.join(done.stderr.split())}): try again when it answers")
        queued = set(done.stdout.split())
        return {run: job for run, job in self.submitted().items() if job in queued}

    def submitted(self) -> dict[str, str]:
        """The newest job of every run that ever had one.

        Raises:
            ClusterError: the record is damaged.
        """
        try:
            return dict(json.loads(self._record.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise ClusterError(
                f"{self._record} is not JSON: delete it once squeue lists no job of this sweep"
            ) from None

    def submit(self, runs: Sequence[RunConfig], cluster: ClusterConfig, name: str, console: Console) -> None:
        """Submit a job for each run, as one array for each number of devices.

        Raises:
            ClusterError: sbatch refuses.
        """
        by_devices = sorted(runs, key=lambda run: -run.execution.devices)
        arrays = [list(group) for _, group in groupby(by_devices, key=lambda run: run.execution.devices)]
        limit = cluster.max_parallel or len(runs)
        if limit < len(arrays):
            said = f"max_parallel is {limit}, but {len(arrays)} runs may go at a time, one for each number of devices"
            console.print(Text(said), soft_wrap=True)
        for array, at_a_time in zip(arrays, shares(limit, [len(array) for array in arrays]), strict=True):
            self._note(self._submit_array(array, at_a_time, cluster, name))

    def _submit_array(self, runs: list[RunConfig], at_a_time: int, cluster: ClusterConfig, name: str) -> dict[str, str]:
        import submitit

        from scaling.sweep.job import TrainJob, note_pending

        executor = submitit.AutoExecutor(self.folder, cluster="slurm", slurm_max_num_timeout=AS_OFTEN_AS_IT_TAKES)
        memory, devices = cluster.memory_gb_per_device, runs[0].execution.devices
        cores = cluster.cpus_per_device * devices
        executor.update_parameters(
            name=name,
            nodes=1,
            tasks_per_node=1,
            timeout_min=cluster.time_minutes,
            cpus_per_task=cores,
            mem_gb=None if memory is None else memory * devices,
            gpus_per_node=None if runs[0].execution.accelerator == "cpu" else devices,
            stderr_to_stdout=True,
            slurm_partition=cluster.partition,
            slurm_account=cluster.account,
            slurm_qos=cluster.qos,
            slurm_constraint=cluster.constraint,
            slurm_array_parallelism=at_a_time,
            slurm_signal_delay_s=cluster.signal_delay_s,
            slurm_srun_args=[f"--cpus-per-task={cores}"],  # srun does not take it over from sbatch
            slurm_additional_parameters={"requeue": True, **cluster.additional},
        )
        for run in runs:
            run.directory.write_config(asdict(run))
            note_pending(run.directory)
        patience = cluster.signal_delay_s - STOP_SECONDS
        try:
            with contextlib.redirect_stderr(io.StringIO()), _outside_any_job(), executor.batch():
                jobs = [
                    executor.submit(TrainJob((run.directory.path / "config.yaml").absolute(), patience)) for run in runs
                ]
        except submitit.core.utils.FailedJobError as error:
            raise ClusterError(f"sbatch refused the jobs: {' '.join(str(error).split())}") from None
        return {run.run_name: job.job_id for run, job in zip(runs, jobs, strict=True)}

    def _note(self, jobs: dict[str, str]) -> None:
        whole = self._record.with_suffix(".part")
        whole.write_text(json.dumps({**self.submitted(), **jobs}, indent=2) + "\n", encoding="utf-8")
        os.replace(whole, self._record)


def train_on_slurm(plan: Plan, cluster: ClusterConfig, console: Console) -> None:
    """Submit what needs a job, and show progress until nothing is left to wait for.

    Raises:
        ClusterError: Slurm is not here, does not answer or refuses.
        Stopped: a signal ended the watching; the jobs go on.
        SweepError: some runs did not finish; they have been named on the console.
    """
    jobs = Jobs(plan)
    with Signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        submitted = _submit_what_is_needed(plan, cluster, jobs, console)
        left = jobs.left()
        numbers = " ".join(sorted({job.partition("_")[0] for job in left.values()}, key=int))
        said = f"{submitted} runs submitted; {len(left)} in Slurm's queue{numbers and f' as job {numbers}'}; "
        console.print(Text(said + f"what jobs print is in {jobs.folder}"), soft_wrap=True)
        missing = _watch(plan, jobs, signals, console)
    if signals.received:
        raise Stopped(f"the jobs go on: scancel {numbers} ends them, and the same command shows them again")
    if missing:
        failures = [Failure(run.run_name, _reason(run, jobs), run.directory.log) for run in missing]
        print_failures(console, failures)
        raise SweepError(f"{len(missing)} of {len(plan.runs)} runs did not finish; the same command submits them again")


def _submit_what_is_needed(plan: Plan, cluster: ClusterConfig, jobs: Jobs, console: Console) -> int:
    """Submit the runs that are not finished, that nobody trains and that have no job; returns how many."""
    with RunDirectory(jobs.folder).lock() as alone:
        if not alone:
            raise ClusterError(f"another command submits jobs of {plan.name} now: wait for it")
        left = jobs.left()
        needed = [
            run
            for run in plan.runs
            if run.run_name not in left and readable_status(run.directory)["state"] not in ("finished", "running")
        ]
        if needed:
            jobs.submit(needed, cluster, plan.name, console)
        return len(needed)


def _watch(plan: Plan, jobs: Jobs, signals: Signals, console: Console) -> list[RunConfig]:
    """Show progress; returns the runs that are not finished although no job is left that could train them."""
    shown: dict[str, str] = {}
    open_runs = [run for run in plan.runs if readable_status(run.directory)["state"] != "finished"]
    asked, gone, before = time.monotonic(), set[str](), set[str]()
    with Watch(plan.runs, [run.directory for run in plan.runs], console) as watch:
        while not signals.received:
            states = {run.run_name: readable_status(run.directory)["state"] for run in open_runs}
            for run in open_runs:
                if event := _event(shown.get(run.run_name, "pending"), states[run.run_name]):
                    watch.event(event, run)
            shown = states
            open_runs = [run for run in open_runs if states[run.run_name] != "finished"]
            if all(states[run.run_name] != "running" and run.run_name in gone for run in open_runs):
                break
            if time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                with contextlib.suppress(ClusterError):  # Slurm may answer the next time
                    absent = {run.run_name for run in open_runs} - jobs.left().keys()
                    gone, before = absent & before, absent  # twice in a row: a node's last files may come late
            time.sleep(LOOK_SECONDS)
    return open_runs


def _event(before: str, now: str) -> str:
    """What to show of a run that went from one state to another; nothing where it is empty."""
    if before == now:
        return ""
    if now in ("running", "finished"):
        return "started" if now == "running" else "finished"
    return "waiting" if before == "running" else ""


def _reason(run: RunConfig, jobs: Jobs) -> str:
    status = readable_status(run.directory)
    if status["state"] in ("failed", "diverged"):
        return str(status.get("message", status["state"]))
    return f"its job ended; what it printed: {jobs.folder / jobs.submitted().get(run.run_name, '?')}_0_log.out"


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    """Hide the Slurm job that this process may run in, whose variables would otherwise count for the new ones."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("SLURM_") and key != "SLURM_CONF"}
    for key in kept:
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(kept)
