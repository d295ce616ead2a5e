"""What the JSON files of a run may hold. They may be damaged or a stranger's, and what is in them is computed with and
printed, so it is checked where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""What would move the cursor or recolour a terminal that text of a stranger's file is printed on."""
STATES = ("pending", "running", "stopped", "lost", "finished", "diverged", "failed")
LARGEST = 1e18
"""No number of a status or a result is larger; JSON knows numbers that no float can hold."""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "status.json": {
        "state": STATES.__contains__,
        **dict.fromkeys(("attempt", "step", "steps", "tokens"), _is_count),
        **dict.fromkeys(("updated", "loss", "tokens_per_second", "utilisation"), _is_number),
        **dict.fromkeys(("host", "message", "error"), _is_text),
    },
    "run.json": dict.fromkeys(("shape", "training", "data", "flops_per_token"), _is_object),
    "result.json": {"val_loss": _is_number, "data_hash": _is_text},
}
NEEDED = {"status.json": "state", "result.json": "val_loss"}


def problem_of(name: str, value: Mapping[str, Any]) -> str | None:
    """What a file of this name holds that no run writes; None if all is well."""
    if any(CONTROL_CHARACTERS.search(text) for text in _texts(value)):
        return "control characters"
    needed = NEEDED.get(name)
    if needed is not None and needed not in value:
        return f"no {needed}"
    for field, holds in FIELDS.get(name, {}).items():
        if field in value and not holds(value[field]):
            return f"a bad value of {field}"
    return None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
