"""The tables that `estimate` prints: parameters, compute, memory, cost; each run, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table

from scaling.compute import FLOP_LEDGERS, PFLOPS_DAY, flops_per_token, non_embedding_parameters, parameters
from scaling.config import RunConfig
from scaling.sweep.estimate import Rate, device_seconds
from scaling.sweep.footprint import USABLE, Footprint
from scaling.sweep.tables import number, run_table, significant

MIB, GIB = 2**20, 2**30


def parameters_table(runs: Sequence[RunConfig]) -> Table:
    """Parameters by group."""
    of_runs = [parameters(run.shape) for run in runs]
    groups = list(dict.fromkeys(group for of_run in of_runs for group in of_run))
    table = run_table("Parameters", *groups, "in all", "non-embedding")
    for run, of_run, last in zip(runs, of_runs, _last_of_size(runs), strict=True):
        counts = [number(of_run[group]) if group in of_run else "" for group in groups]
        totals = [number(sum(of_run.values())), number(non_embedding_parameters(run.shape))]
        table.add_row(run.run_name, *counts, *totals, end_section=last)
    return table


def compute_table(runs: Sequence[RunConfig]) -> Table:
    """Tokens, steps, and training compute by ledger."""
    units = [f"{ledger}\n{unit}" for unit in ("FLOPs", "PFLOP/s-days") for ledger in FLOP_LEDGERS]
    table = run_table("Compute by ledger", "tokens", "steps", *units)

    def cells(flops: Sequence[float]) -> list[str]:
        return [*(f"{value:.4g}" for value in flops), *(significant(value / PFLOPS_DAY) for value in flops)]

    of_runs = [[flops_per_token(run.shape, ledger) * run.tokens for ledger in FLOP_LEDGERS] for run in runs]
    for run, flops, last in zip(runs, of_runs, _last_of_size(runs), strict=True):
        table.add_row(run.run_name, number(run.tokens), f"{run.steps:,}", *cells(flops), end_section=last)
    tokens, steps = sum(run.tokens for run in runs), sum(run.steps for run in runs)
    table.add_row(
        "in all", number(tokens), f"{steps:,}", *cells([sum(column) for column in zip(*of_runs, strict=True)])
    )
    return table


def memory_table(
    runs: Sequence[RunConfig], footprints: Sequence[tuple[Footprint, Footprint]], device_memory: float | None
) -> Table:
    """Memory by part, without and with activation checkpointing; beside the device's, where it is known."""
    largest = max(footprint.total for both in footprints for footprint in both)
    name, unit = ("GiB", GIB) if largest >= GIB else ("MiB", MIB)
    parts = list(footprints[0][0].parts)
    fits = [] if device_memory is None else ["fits", "largest\nmicro-batch"]
    headings = ("check-\npointing", "micro-\nbatch", *parts, "in all", *fits)
    table = run_table(f"Memory at the peak of a step, {name} a device", *headings)
    for run, both, last in zip(runs, footprints, _last_of_size(runs), strict=True):
        for footprint in both:
            row = [f"{footprint.parts[part] / unit:,.2f}" for part in parts]
            row.append(f"{footprint.total / unit:,.2f}")
            if device_memory is not None:
                ok = footprint.total <= USABLE * device_memory
                row.append("[green]yes[/]" if ok else "[red]too large[/]")
                row.append(str(footprint.largest_micro_batch) if footprint.largest_micro_batch else "[red]none fits[/]")
            table.add_row(
                "" if footprint.checkpointed else run.run_name,
                "yes" if footprint.checkpointed else "no",
                str(run.micro_batch),
                *row,
                end_section=footprint.checkpointed and last,
            )
    if device_memory is None:
        table.caption = "the device's memory is not known: --device-memory GIB says what fits"
    else:
        table.caption = (
            f"a device has {device_memory / GIB:.4g} GiB; a step fits in {USABLE:.0%} of it, "
            "driver, libraries and gaps take the rest"
        )
    return table


def cost_table(runs: Sequence[RunConfig], rate: Rate, node_devices: int | None, price: float | None) -> Table:
    """Device hours, node hours, and money."""
    headings = ["device hours"]
    headings += [f"node hours\nof {node_devices} devices"] if node_devices else []
    headings += [f"cost at {price:g}\na device hour"] if price is not None else []
    table = run_table(f"Cost at {rate.description}", "devices", *headings)

    def cells(hours: float) -> list[str]:
        node = [significant(hours / node_devices)] if node_devices else []
        return [significant(hours), *node, *([f"{hours * price:,.2f}"] if price is not None else [])]

    hours = [device_seconds(run, rate) / 3600 for run in runs]
    for run, of_run, last in zip(runs, hours, _last_of_size(runs), strict=True):
        table.add_row(run.run_name, str(run.execution.devices), *cells(of_run), end_section=last)
    table.add_row("in all", "", *cells(sum(hours)))
    return table


def _last_of_size(runs: Sequence[RunConfig]) -> list[bool]:
    """Whether each run is the last of its size: a line is drawn below it."""
    return [*(run.model != following.model for run, following in pairwise(runs)), True]
