"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd below one folder, ended with the context.

Two partitions share the node; a job in `high` preempts one in `low`, which is put back into the queue.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 30.0

CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=100000,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
MinJobAge=600
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    absent = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def local_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run a cluster below `folder`; yields the environment in which its commands find it.

    Raises:
        RuntimeError: the node was not ready in time; the message ends with the daemons' logs.
    """
    folder.mkdir(parents=True, mode=0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(),
            folder=folder,
            cpus=os.cpu_count(),
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={folder}/munge.seed", *munge],
        ["slurmctld", "-D", "-i", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration)],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as out:
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT))
            if command[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: b"idle" in _run(["sinfo", "--noheader", "--format=%T"], environment), folder)
        yield environment
    finally:
        _run(["scancel", "--partition=low,high", "--state=PENDING"], environment)
        _run(["scancel", "--partition=low,high", "--signal=KILL", "--full"], environment)
        with contextlib.suppress(RuntimeError):
            _wait(lambda: not _run(["squeue", "--noheader"], environment), folder)
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        for left in _processes_with(f"SLURM_CONF={configuration}"):
            if left != os.getpid():
                os.kill(left, signal.SIGKILL)


def _processes_with(variable: str) -> list[int]:
    """Processes that have this in their environment: what a daemon started and left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _run(command: list[str], environment: dict[str, str]) -> bytes:
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=30).stdout


def _wait(ready, folder: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > end:
            logs = "\n".join(
                f"{p.name}:\n{p.read_text()[-2000:]}" for p in [*folder.glob("*.out"), *folder.glob("*.log")]
            )
            raise RuntimeError(f"no cluster after {START_SECONDS:.0f} s\n{logs}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
