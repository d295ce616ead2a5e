"""A sweep file to the runs it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from scaling.config import RunConfig, SweepConfig
from scaling.errors import ConfigError
from scaling.loading import build, collect, expand, override, read_yaml


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep, in order of size, variant, seed."""

    name: str
    runs: list[RunConfig]

    @property
    def folder(self) -> Path:
        """Where the run directories are."""
        return Path(self.runs[0].execution.runs_folder)


def read_plan(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """The runs of a sweep file, with `overrides` (dotted keys of data, train and execution) put over each.

    Raises:
        ConfigError: listing every problem of the file and of every run it means.
    """
    overrides, folder = overrides or {}, Path(path).parent
    values = expand(SweepConfig, read_yaml(path), folder)
    if isinstance(values.get("train"), str):
        values["train"] = read_yaml(folder / values["train"])
    outside_train = {key: value for key, value in overrides.items() if not key.startswith("train.")}
    sweep = build(SweepConfig, override(values, outside_train), where=str(path))

    if sweep.name != Path(path).stem:
        raise ConfigError(
            f"name is {sweep.name!r}: must be the file's own, {Path(path).stem!r}, which its runs and results go by",
            where=str(path),
        )
    sizes = [expand(RunConfig, size, folder) for size in sweep.sizes]
    execution = asdict(sweep.execution)
    execution["runs_folder"] = str(Path(sweep.execution.runs_folder) / sweep.name)
    runs: list[RunConfig] = []
    where_found: dict[str, list[str]] = {}
    for size, (variant, residual), seed in product(sizes, sweep.variants.items(), sweep.seeds):
        problems = _problems_of_size(size)
        settings = {
            "model": size.get("model"),
            "data": asdict(sweep.data),
            "train": {**sweep.train, **_keys(size, "train")},
            "residual": asdict(residual),
            "variant": variant,
            "seed": seed,
            "execution": {**execution, **_keys(size, "execution")},
        }
        own = {key: value for key, value in overrides.items() if not key.endswith("runs_folder")}
        run = collect(RunConfig, override(settings, own), "", problems)
        if run is not None:
            runs.append(run)
        for problem in problems:
            name = size["model"].get("name", "?") if isinstance(size.get("model"), Mapping) else "?"
            where_found.setdefault(problem, []).append(f"{variant} {name}")
    if where_found:
        n_runs = len(sizes) * len(sweep.variants) * len(sweep.seeds)
        raise ConfigError([_located(p, places, n_runs) for p, places in where_found.items()], where=str(path))
    names = [run.run_name for run in runs]
    for name in sorted({n for n in names if names.count(n) > 1}):
        raise ConfigError(f"two entries of sizes and variants mean the same run {name}: remove one", where=str(path))
    return Plan(sweep.name, runs)


SIZE_KEYS = ("model", "train", "execution")
SHARED_EXECUTION = ("runs_folder", "data_folder", "accelerator")  # folders and the kind of device are the sweep's


def _keys(size: Mapping[str, Any], part: str) -> dict[str, Any]:
    value = size.get(part)
    return dict(value) if isinstance(value, Mapping) else {}


def _problems_of_size(size: Mapping[str, Any]) -> list[str]:
    problems = [
        f"sizes.{key} is not a setting: a size has {', '.join(SIZE_KEYS)}" for key in size if key not in SIZE_KEYS
    ]
    problems += [
        f"sizes.{part} is {size[part]!r}: must be keys and values, or left out"
        for part in ("train", "execution")
        if part in size and not isinstance(size[part], Mapping)
    ]
    problems += [
        f"sizes.execution.{key} cannot differ between sizes: set it in the sweep's execution"
        for key in SHARED_EXECUTION
        if key in _keys(size, "execution")
    ]
    return problems


def _located(problem: str, places: list[str], n_runs: int) -> str:
    """A problem of some runs says of which; one of all runs is the file's."""
    return problem if len(places) == n_runs else f"{problem} (in {', '.join(dict.fromkeys(places))})"
