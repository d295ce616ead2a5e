"""Where a benchmark's numbers go: one JSON file that names the machine and the versions they were measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scaling.training.environment import machine, versions


def record(path: Path | None, numbers: dict[str, Any]) -> None:
    """Write the numbers, if a file is asked for."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "versions": versions()} | numbers, indent=2) + "\n")
