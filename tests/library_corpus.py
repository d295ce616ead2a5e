"""Real text that is on every machine with Python."""

import json
import sysconfig
from pathlib import Path


def write_corpus(path: Path, packages: tuple[str, ...] = ("json", "email", "logging")) -> Path:
    """Sources of some standard-library packages as json lines, one document a file."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(p for package in packages for p in (library / package).glob("*.py"))
    with open(path, "w", encoding="utf-8") as file:
        for source in sources:
            file.write(json.dumps({"text": source.read_text(encoding="utf-8")}) + "\n")
    return path
