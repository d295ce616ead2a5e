"""Settings of a Slurm cluster. They end up in a batch script, so what could be more than a value there is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.loading import load
from scaling.rules import Checked, Rule, at_least, each

STOP_SECONDS = 5
"""Kept of `signal_delay_s` for putting the job back into the queue."""

OURS = ("array", "error", "job-name", "nodes", "ntasks-per-node", "open-mode", "output", "requeue", "signal", "wrap")


def is_plain(text: str) -> bool:
    """Whether text is one value wherever it stands in a batch script: one line, no quotes, no backslash."""
    return text.isprintable() and not set(text) & set("'\"\\`$")


@dataclass(frozen=True)
class ClusterConfig(Checked):
    """What a job asks of a Slurm cluster: one task on one node, with the run's `execution.devices` GPUs."""

    partition: str | None = None
    """Partition (sbatch --partition); the cluster's default if not given."""
    account: str | None = None
    """Account that pays (sbatch --account); the user's default if not given."""
    qos: str | None = None
    """Quality of service (sbatch --qos); the account's default if not given."""
    constraint: str | None = None
    """Features that a node must have (sbatch --constraint), for example h100 or a100|h100; any node if not given."""
    time_minutes: int = 1440
    """Time limit of a job. A run that needs longer saves, goes back into the queue and goes on, as often as need be."""
    cpus_per_device: int = 8
    """Cores for each device of a run. Where a run's devices are CPU processes, the threads of each."""
    memory_gb_per_device: float | None = None
    """Main memory for each device of a run, in GiB; the cluster's default if not given."""
    max_parallel: int | None = None
    """Runs that may go at a time, of those submitted together; as many as the cluster allows if not given. Each number
    of devices has an array of its own, and at least one run of each may go."""
    signal_delay_s: int = 120
    """Seconds before the time limit at which a run is asked to finish its step and save. Slurm may ask a minute earlier
    than that."""
    additional: dict[str, Any] = field(default_factory=dict)
    """Other parameters of sbatch by their long names, for example {exclude: node7, exclusive: true}."""

    rules = (
        *each(
            ("partition", "account", "qos", "constraint"),
            lambda value: value is None or (bool(value) and is_plain(value) and " " not in value),
            "must be one word without quotes or backslashes, or left out",
        ),
        *at_least(1, "cpus_per_device"),
        Rule(
            ("memory_gb_per_device",),
            lambda c: c.memory_gb_per_device is None or c.memory_gb_per_device > 0,
            "must be greater than 0, or left out",
        ),
        Rule(
            ("max_parallel",),
            lambda c: c.max_parallel is None or c.max_parallel >= 1,
            "must be at least 1, or left out",
        ),
        Rule(
            ("signal_delay_s", "time_minutes"),
            lambda c: 2 * STOP_SECONDS <= c.signal_delay_s <= 20 * c.time_minutes,
            f"signal_delay_s must be at least {2 * STOP_SECONDS} and at most a third of the time limit",
        ),
        Rule(
            ("additional",),
            lambda c: all(re.fullmatch(r"[a-z][a-z0-9-]*", key) and key not in OURS for key in c.additional),
            f"its keys must be long names of sbatch's parameters, and none of {', '.join(OURS)}, which the sweep sets",
        ),
        Rule(
            ("additional",),
            lambda c: all(
                value is True or (type(value) in (int, float, str) and is_plain(str(value)))
                for value in c.additional.values()
            ),
            "its values must be numbers, text of one line without quotes or backslashes, or true",
        ),
    )


def shares(limit: int, sizes: Sequence[int]) -> list[int]:
    """A limit on runs divided over arrays of these sizes, in proportion: at least 1 each, at most the array's size."""
    given = [1] * len(sizes)
    while sum(given) < limit and (growing := [i for i, size in enumerate(sizes) if given[i] < size]):
        given[max(growing, key=lambda i: sizes[i] / given[i])] += 1
    return given


def read_cluster(name: str, sweep: str | Path) -> ClusterConfig:
    """The settings of a cluster.

    Args:
        name: a path ending in .yaml, or the name of a file of `configs/cluster/` beside the folder of sweeps.
        sweep: the sweep's file.

    Raises:
        ConfigError: the file is missing or a setting is wrong.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else Path(sweep).parent / f"../configs/cluster/{name}.yaml"
    return load(ClusterConfig, path)
