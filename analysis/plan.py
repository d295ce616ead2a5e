"""The verb `power`: put the designs and the noise together, and say what they can detect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from analysis.errors import AnalysisError
from analysis.ledgers import leading
from analysis.measured_noise import measure
from analysis.power import MOST_SEEDS, MOST_SIZES, Design, DesignError, Noise, cheapest, detectable, grid
from analysis.runs import Runs, load
from analysis.store import FORMAT, package_version
from analysis.student import POWER
from analysis.tables import print_table

SIZES = (3, 4, 5, 6, 7, 8)
SEEDS = (1, 2, 4)
SIZE_SD = 0.0028
"""Standard deviation of a size's ln L about the power law in the paper's table."""


@dataclass(frozen=True)
class Plan:
    """Designs with the smallest multiplier that each detects (None: none), and the cheapest for the one asked for."""

    noise: Noise
    source: str
    detects: dict[Design, float | None]
    asked: float | None
    cheapest: Design | None


def plan(
    sizes: int | Sequence[int] | None,
    seeds: int | Sequence[int] | None,
    sd: float | None,
    size_sd: float | None,
    alpha: float | None,
    span: float | None,
    multiplier: float | None,
    table: Path | None,
    ledger: str | None,
    columns: Mapping[str, str] | None,
) -> Plan:
    """Work out a plan; what is None comes from the table if there is one, else from the defaults.

    Raises:
        DesignError: a number cannot be, or neither a deviation nor a table is given.
        TableError: the table cannot be read, or says nothing of noise.
    """
    if table is not None:
        runs = load(table, columns)
        measured = measure(runs, leading(runs.ledgers, ledger))
        noise = measured.noise if sd is None else replace(measured.noise, run_sd=sd)
        source = f"{runs.path.name}: {measured.source}, {measured.df} degrees of freedom"
    elif sd is not None:
        noise, source = Noise(sd, SIZE_SD), "given"
    else:
        raise DesignError("the noise of a run is not known: give --sd, such as 0.002, or --table of an earlier result")
    given = {"size_sd": size_sd, "alpha": alpha, "span": span}
    noise = replace(noise, **{name: value for name, value in given.items() if value is not None})
    designs = grid(_several(sizes, SIZES), _several(seeds, SEEDS))
    best = None if multiplier is None else cheapest(noise, multiplier)
    return Plan(noise, source, {design: detectable(design, noise) for design in designs}, multiplier, best)


def next_plan(runs: Runs, ledger: str) -> Plan | None:
    """The default designs with a table's own noise; None where the table says nothing of noise."""
    try:
        measured = measure(runs, ledger)
    except AnalysisError:
        return None
    designs = grid(SIZES, SEEDS)
    return Plan(measured.noise, measured.source, {x: detectable(x, measured.noise) for x in designs}, None, None)


def print_plan(console: Console, made: Plan) -> None:
    """The noise, what each design detects, and the cheapest design."""
    n = made.noise
    console.print(
        Text(
            f"Noise in ln L ({made.source}): {n.run_sd:.2g} a run, {n.size_sd:.2g} a size; alpha {n.alpha:.3g}; "
            f"largest compute {n.span:.3g} times the smallest"
        ),
        soft_wrap=True,
    )
    rows = [(d.sizes, d.seeds, d.runs, f"{d.cost(n.span):.1f}", _detects(m)) for d, m in made.detects.items()]
    header = ("sizes", "seeds", "runs, two arms", "compute, in largest runs", f"detects M in {POWER:.0%}")
    print_table(console, "What a design can detect", header, rows)
    if made.asked is None:
        return
    if made.cheapest is None:
        line = f"No design of up to {MOST_SIZES} sizes and {MOST_SEEDS} seeds detects {made.asked:g}x."
    else:
        d = made.cheapest
        line = (
            f"The cheapest design that detects {made.asked:g}x in {POWER:.0%} of experiments: {d.text}; "
            f"{d.runs} runs of two arms, as much compute as {d.cost(n.span):.1f} of the largest."
        )
    console.print(Text(line), soft_wrap=True)


def plan_record(made: Plan) -> dict[str, Any]:
    """The content of power.json."""
    return {
        "format": FORMAT,
        "version": package_version(),
        "power": POWER,
        "noise": {**asdict(made.noise), "source": made.source},
        "designs": [_design(d, made.noise) | {"detects": m} for d, m in made.detects.items()],
        "asked": made.asked,
        "cheapest": made.cheapest and _design(made.cheapest, made.noise),
    }


def _design(d: Design, noise: Noise) -> dict[str, Any]:
    return {"sizes": d.sizes, "seeds": d.seeds, "runs": d.runs, "cost": d.cost(noise.span)}


def _detects(m: float | None) -> str:
    return "none up to 4" if m is None else f"{m:.3f}"


def _several(given: int | Sequence[int] | None, default: Sequence[int]) -> list[int]:
    values = default if given is None else [given] if isinstance(given, int) else given
    if not values:
        raise DesignError("an empty list of sizes or seeds has no design: give at least one number")
    return sorted(set(values))
