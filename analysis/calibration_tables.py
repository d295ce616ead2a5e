"""The verb `calibrate`: coverage.json, and the table that is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from analysis.calibrate import GOAL, Coverage, outside_goal
from analysis.powerlaw import CONFIDENCE
from analysis.store import FORMAT, json_text, package_version
from analysis.tables import print_table

HEADER = ("settings", "method", "least", "median", "most", "bounded", "half-width")


def coverage_record(found: Sequence[Coverage], seed: int) -> dict[str, Any]:
    """The content of coverage.json."""
    return {
        "format": FORMAT,
        "version": package_version(),
        "nominal": CONFIDENCE,
        "goal": list(GOAL),
        "seed": seed,
        "settings": [c.record() for c in found],
    }


def coverage_text(record: Mapping[str, Any]) -> str:
    """coverage.json as text: as all of ours, with one line a setting and method."""
    lines = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in record["settings"])
    return json_text({**record, "settings": []}).replace('"settings": []', f'"settings": [\n{lines}\n  ]')


def print_coverage(console: Console, found: Sequence[Coverage]) -> None:
    """One row a group and method, and how many settings of the primary miss the goal."""
    groups = dict.fromkeys((c.group, c.method) for c in found)
    print_table(
        console,
        f"Coverage of nominal {CONFIDENCE:.0%} intervals over the settings of a group, {found[0].tables} tables each; "
        "least share with a bounded interval; median half-width of ln M",
        HEADER,
        [_row(name, [c for c in found if (c.group, c.method) == name]) for name in groups],
    )
    for group in dict.fromkeys(c.group for c in found):
        primary = [c for c in found if c.group == group and c.method in ("paired", "simultaneous")]
        missed = outside_goal(primary)
        low, high = (sum(c.coverage < GOAL[0] for c in missed), sum(c.coverage > GOAL[1] for c in missed))
        inside = len(primary) - len(missed)
        text = f"{group}: {inside} of {len(primary)} settings within {GOAL[0]:.3f} to {GOAL[1]:.3f}"
        console.print(Text(text + (f"; {low} below, {high} above" if missed else "")), soft_wrap=True)


def _row(name: tuple[str, str], rows: Sequence[Coverage]) -> tuple[str, ...]:
    values = sorted(c.coverage for c in rows)
    widths = sorted(c.median_half_width for c in rows if c.median_half_width is not None)
    return (
        *name,
        f"{values[0]:.4f}",
        f"{values[len(values) // 2]:.4f}",
        f"{values[-1]:.4f}",
        f"{min(c.bounded for c in rows):.3f}",
        f"{widths[len(widths) // 2]:.3f}" if widths else "unbounded",
    )
