"""Read a table that has one fixed set of columns."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from analysis.errors import TableError
from scaling.records import CONTROL_CHARACTERS


def check_printable(path: Path, text: str) -> None:
    """Refuse a table whose text would command the terminal it is printed on.

    Raises:
        TableError: it holds control characters.
    """
    if found := CONTROL_CHARACTERS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise TableError(f"{path} line {line} holds a control character ({found[0]!r}): remove it")


def read_columns(path: Path, columns: Sequence[str], texts: Collection[str], remedy: str) -> pd.DataFrame | None:
    """These columns of a CSV file: `texts` as text, the others as numbers (NaN where empty). None if it is not there.

    Raises:
        TableError: a column is missing, or a cell is no number; ends in the remedy.
    """
    if not path.is_file():
        return None
    try:
        content = path.read_text(encoding="utf-8-sig")
        check_printable(path, content)
        cells = pd.read_csv(io.StringIO(content), dtype=str, keep_default_na=False)
        missing = [column for column in columns if column not in cells]
        if missing:
            raise ValueError(f"no column {missing[0]}")
        numbers = {column: pd.to_numeric(cells[column]) for column in columns if column not in texts}
    except (OSError, ValueError) as error:
        line = " ".join(str(error).split())
        raise TableError(f"{path} is not a {path.name} of ours ({line}): {remedy}") from None
    return cells[list(columns)].assign(**numbers)
