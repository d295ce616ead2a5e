"""Errors a user can cause: one line each, naming the thing and the remedy.

The command line ends with their `exit_status`, which the sweep's queue acts on.
"""


class ScalingError(Exception):
    """Base of every error that a user can cause and mend."""

    exit_status = 2


class ConfigError(ScalingError):
    """One or more values of a configuration are wrong; `problems` lists all of them, one line each."""

    def __init__(self, problems: list[str] | str, where: str = ""):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.where = where
        prefix = f"{where}: " if where else ""
        super().__init__("\n".join(prefix + problem for problem in self.problems))


class DataError(ScalingError):
    """A corpus, a tokenizer or a shard is missing, damaged, too small, or not the one that was asked for."""


class ClusterError(ScalingError):
    """A Slurm cluster is not there, does not answer, or refuses a job."""


class RecordError(ScalingError):
    """A file of a run directory is missing, damaged, or contradicts another."""


class CheckpointError(ScalingError):
    """A checkpoint cannot be used for this run."""


class TrainingError(ScalingError):
    """A run cannot be trained as asked: memory, disk, devices, another process at work."""


class Diverged(TrainingError):
    """A loss or a gradient was not finite."""

    exit_status = 3


class OutOfMemory(TrainingError):
    """The micro-batch does not fit; a smaller one gives the same result."""

    exit_status = 4


class Busy(TrainingError):
    """Another process trains this run now."""

    exit_status = 5


class Stopped(TrainingError):
    """Somebody asked the process to end; the run goes on from its checkpoint."""

    exit_status = 130


class ProcessLost(TrainingError):
    """Another process of the run ended before its time, and took this one with it."""

    def __init__(self, message: str, exit_status: int):
        super().__init__(message)
        self.exit_status = exit_status


class SweepError(ScalingError):
    """At least one run of a sweep did not finish."""

    exit_status = 1
