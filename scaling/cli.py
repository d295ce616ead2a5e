"""The command line: prepare, train, sweep, status, estimate. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser

from scaling.config import DataConfig, ExecutionConfig, ModelConfig, ResidualConfig, RunConfig, TrainConfig
from scaling.errors import (
    ConfigError,
    Diverged,
    OutOfMemory,
    ProcessLost,
    RecordError,
    ScalingError,
    Stopped,
)
from scaling.loading import given_overrides, load, override_arguments

if TYPE_CHECKING:
    from scaling.sweep.cluster import ClusterConfig
    from scaling.sweep.estimate import Rate

SWEEP_GROUPS = {"data": DataConfig, "train": TrainConfig, "execution": ExecutionConfig}
RUN_GROUPS = {"model": ModelConfig, "residual": ResidualConfig, **SWEEP_GROUPS}


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 a sweep has failures, 2 something the user can mend."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        verb = given.verb
        if verb is None:
            parser.print_help()
            return 0
        return VERBS[verb](given[verb])
    except ArgumentError as error:
        return _complain(" ".join(str(error).split()), 2)
    except ScalingError as error:
        return _complain(error, error.exit_status)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}: free space or permit access, and run the command again", 2)
    except KeyboardInterrupt:
        return _complain("stopped: the same command goes on where this one ended", 130)


def prepare(given: Any) -> int:
    """Text to token shards."""
    from scaling.data.prepare import prepare as prepare_corpus

    overrides = {k.removeprefix("data."): v for k, v in given_overrides(given, {"data": DataConfig}).items()}
    prepare_corpus(load(DataConfig, given.config, overrides), given.data_folder)
    return 0


def train(given: Any) -> int:
    """One run."""
    from scaling.process import end_with_parent, is_first_process, keep_heap

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the run itself listens
    end_with_parent(signal.SIGTERM if is_first_process() else signal.SIGKILL)
    keep_heap()
    overrides = given_overrides(given, RUN_GROUPS)
    overrides |= {key: given[key] for key in ("seed", "variant") if given[key] is not None}
    config = load(RunConfig, given.config, overrides)

    from rich.console import Console
    from rich.text import Text

    from scaling.training.run import train as train_run

    console = Console(quiet=not is_first_process())
    try:
        result = train_run(config, console)
    except (Diverged, OutOfMemory, ProcessLost, Stopped) as error:
        if is_first_process():
            raise
        return error.exit_status  # the first process says it for all
    said = f"validation loss {result['val_loss']:.6f} nats per token: {config.directory.path}"
    console.print(Text(said), soft_wrap=True)
    return 0


def sweep(given: Any) -> int:
    """Every run of a sweep file."""
    from rich.text import Text

    from scaling.data.corpus import check_tokens, open_corpus
    from scaling.sweep.devices import find_devices, what_is_missing
    from scaling.sweep.estimate import device_seconds, known_rate
    from scaling.sweep.plan import read_plan
    from scaling.sweep.tables import duration, plan_table, readable_status, wide_console

    plan = read_plan(given.sweep, given_overrides(given, SWEEP_GROUPS))
    directories = [run.directory for run in plan.runs]
    cluster = _cluster(given)
    devices = [] if cluster else find_devices(plan.runs, given.devices)
    missing = "" if cluster else what_is_missing(plan.runs, devices)
    states = [readable_status(run)["state"] for run in directories]
    left = [config for config, state in zip(plan.runs, states, strict=True) if state != "finished"]
    if missing and left and not given.dry_run:
        raise ConfigError(missing)
    rate = known_rate(plan.runs, directories, [] if missing else devices)
    if missing:
        how_long = f"; {missing}"
    elif rate is None:
        how_long = "; the time is not known: set execution.peak_tflops"
    elif cluster:
        how_long = f" at {rate.description}"
    else:
        work = sum(device_seconds(run, rate) for run in left)
        how_long = f", {duration(work / len(devices))} at {rate.description}"
    console = wide_console()
    table = plan_table(plan.runs, directories, rate)
    where = "the cluster" if cluster else f"{len(devices)} devices"
    table.caption = f"{len(left)} of {len(plan.runs)} runs to do on {where}{how_long}"
    console.print(table)
    if given.dry_run or not left:
        return 0
    for config in plan.runs:  # refuse now rather than once a run
        index = open_corpus(config).index
        with contextlib.suppress(RecordError):  # one run's damaged files are that run's failure
            check_tokens(config.directory, index)
    if cluster:
        from scaling.sweep.slurm import train_on_slurm

        train_on_slurm(plan, cluster, console)
    else:
        from scaling.sweep.kernels import check_kernels
        from scaling.sweep.local import train_here

        check_kernels(left, devices)
        train_here(plan, devices, console)
    console.print(Text(f"all {len(plan.runs)} runs are finished: {plan.folder}"), soft_wrap=True)
    return 0


def status(given: Any) -> int:
    """Where runs stand."""
    from scaling.records import find_runs
    from scaling.sweep.plan import read_plan
    from scaling.sweep.standing import Roster
    from scaling.sweep.tables import wide_console
    from scaling.sweep.watch import follow, standing_table

    path, console = Path(given.path), wide_console()
    if path.is_dir():
        roster = Roster(lambda: find_runs(path))
    else:
        runs = read_plan(path, given_overrides(given, SWEEP_GROUPS)).runs
        directories = [run.directory for run in runs]
        roster = Roster(lambda: directories, runs)
    if given.watch:
        follow(roster, console)
    else:
        console.print(standing_table(roster.standings(), console.width))
    return 0


def estimate(given: Any) -> int:
    """What a sweep will cost."""
    from rich.progress import Progress

    from scaling.process import quieten_libraries
    from scaling.sweep.devices import find_devices, what_is_missing
    from scaling.sweep.estimate import ASSUMED_UTILISATION, device_memory, known_rate, rate_of_peak
    from scaling.sweep.estimate_tables import compute_table, cost_table, memory_table, parameters_table
    from scaling.sweep.footprint import footprints
    from scaling.sweep.plan import read_plan
    from scaling.sweep.tables import error_console, wide_console

    quieten_libraries()
    for option in ("mfu", "peak-tflops", "price", "device-memory", "node-devices"):
        _check_positive(given, option, most=1 if option == "mfu" else sys.float_info.max)
    if given.mfu is not None and given.peak_tflops is None:
        raise ConfigError("--mfu is a share of the peak: give --peak-tflops too")
    plan = read_plan(given.sweep, given_overrides(given, SWEEP_GROUPS))
    node_devices = given.node_devices
    rate: Rate | None
    if given.peak_tflops is not None:
        rate = rate_of_peak(given.peak_tflops, given.mfu or ASSUMED_UTILISATION)
    else:
        devices = find_devices(plan.runs, given.devices)
        if what_is_missing(plan.runs, devices):
            devices = []
        rate = known_rate(plan.runs, [run.directory for run in plan.runs], devices)
        node_devices = node_devices or len(devices) or None
    given_memory = given.device_memory
    accelerator = plan.runs[0].execution.accelerator
    memory = device_memory(accelerator) if given_memory is None else given_memory * 2**30

    console = wide_console()
    console.print(parameters_table(plan.runs))
    console.print(compute_table(plan.runs))
    if rate is None:
        console.print("the time is not known: give --peak-tflops")
    else:
        console.print(cost_table(plan.runs, rate, node_devices, given.price))
    with Progress(console=error_console(), transient=True) as progress:
        task = progress.add_task("counting memory", total=2 * len(plan.runs))
        counted = footprints(plan.runs, memory, lambda: progress.advance(task))
    console.print(memory_table(plan.runs, counted, memory))
    return 0


def _check_positive(given: Any, option: str, most: float) -> None:
    value = given[option.replace("-", "_")]
    if value is not None and not 0 < value <= most:
        at_most = f" and at most {most:g}" if most == 1 else ""
        raise ConfigError(f"--{option} is {value:g}: must be greater than 0{at_most}")


VERBS = {"prepare": prepare, "train": train, "sweep": sweep, "status": status, "estimate": estimate}


def _cluster(given: Any) -> ClusterConfig | None:
    """The settings of the cluster that was asked for, if one was."""
    from scaling.sweep.cluster import read_cluster

    if given.cluster is None:
        return None
    if given.devices is not None:
        raise ConfigError("--devices is of this machine: with --cluster a run has its execution.devices")
    return read_cluster(given.cluster, given.sweep)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m scaling", description=sys.modules["scaling"].__doc__, exit_on_error=False)
    verbs = parser.add_subcommands(dest="verb", required=False)

    def verb(name: str, help_text: str, groups: dict[str, Any]) -> ArgumentParser:
        usage = f"python -m scaling {name} FILE [options] [--group.setting VALUE ...]"
        own = ArgumentParser(usage=usage, description=help_text, exit_on_error=False)
        override_arguments(own, groups)
        verbs.add_subcommand(name, own, help=help_text)
        return own

    own = verb("prepare", "turn a corpus into token shards; done already: nothing happens", {"data": DataConfig})
    own.add_argument("config", type=str, help="file of a corpus, for example configs/data/python.yaml")
    own.add_argument("--data_folder", default=ExecutionConfig.data_folder, help="where corpora's folders are made")

    own = verb("train", "train one run, from its start or its checkpoint; finished: nothing happens", RUN_GROUPS)
    own.add_argument("config", type=str, help="file of a run, for example configs/run/quick.yaml")
    own.add_argument("--seed", type=int, default=None, help="decides initial weights and data order")
    own.add_argument("--variant", type=str, default=None, help="name of the arm; the scheme's if not given")

    own = verb("sweep", "train every run of a sweep that is not finished", SWEEP_GROUPS)
    own.add_argument("sweep", type=str, help="file of a sweep, for example sweeps/demo.yaml")
    own.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    own.add_argument(
        "--cluster", type=str, default=None, help="train on Slurm: slurm for configs/cluster/slurm.yaml, or a file"
    )
    _add_devices(own)

    own = verb("status", "print where runs stand, from their files", SWEEP_GROUPS)
    own.add_argument("path", type=str, help="file of a sweep, or a folder of runs")
    own.add_argument("--watch", action="store_true", help="go on until no run is left to wait for")

    own = verb("estimate", "print parameters, tokens, FLOPs by ledger, memory and device hours", SWEEP_GROUPS)
    own.add_argument("sweep", type=str, help="file of a sweep")
    own.add_argument("--peak-tflops", type=float, help="peak TFLOP/s of a device, dense, at the precision of training")
    own.add_argument(
        "--mfu", type=float, help="share of that peak that is reached, in the `model` ledger; 0.4 if not given"
    )
    own.add_argument("--price", type=float, help="of a device hour, in whatever currency")
    own.add_argument("--device-memory", type=float, help="GiB of a device; the GPU's here if not given")
    own.add_argument("--node-devices", type=int, help="devices of a node, for node hours; this machine's if not given")
    _add_devices(own)
    return parser


def _add_devices(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--devices",
        type=str,
        default=None,
        help="GPU numbers, as in 0,1,2, or on a CPU into how many devices its cores are divided",
    )


def _complain(problem: object, status: int) -> int:
    for line in str(problem).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return status
