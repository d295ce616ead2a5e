"""Errors a user can cause: one line each, naming the thing and the remedy. The command line exits 2 on them."""


class ScalingError(Exception):
    """Base of every error that a user can cause and mend."""


class ConfigError(ScalingError):
    """One or more values of a configuration are wrong; `problems` lists all of them, one line each."""

    def __init__(self, problems: list[str] | str, where: str = ""):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.where = where
        prefix = f"{where}: " if where else ""
        super().__init__("\n".join(prefix + problem for problem in self.problems))


class DataError(ScalingError):
    """A corpus, a tokenizer or a shard is missing, damaged, too small, or not the one that was asked for."""


class RecordError(ScalingError):
    """A file of a run directory is missing, damaged, or contradicts another."""


class CheckpointError(ScalingError):
    """A checkpoint cannot be used for this run."""


class TrainingError(ScalingError):
    """A run cannot be trained as asked: memory, disk, devices, another process at work."""


class SweepError(ScalingError):
    """At least one run of a sweep did not finish."""
