"""Load curves.csv: losses over training, as `collect` writes them."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from analysis.collect import CURVE_COLUMNS
from analysis.errors import TableError
from analysis.runs import check_printable

_TEXTS = ("run", "variant", "size")


def load_curves(folder: Path) -> pd.DataFrame | None:
    """The points over training in a results folder, or None where there are none.

    Returns:
        Columns run, variant, size, seed, tokens, train_loss, val_loss (nats per token, NaN where not measured).

    Raises:
        TableError: curves.csv is there and is not what `collect` writes.
    """
    path = folder / "curves.csv"
    if not path.is_file():
        return None
    try:
        content = path.read_text(encoding="utf-8-sig")
        check_printable(path, content)
        texts = pd.read_csv(io.StringIO(content), dtype=str, keep_default_na=False)
        missing = [column for column in CURVE_COLUMNS if column not in texts]
        if missing:
            raise ValueError(f"no column {missing[0]}")
        numbers = {column: pd.to_numeric(texts[column]) for column in CURVE_COLUMNS if column not in _TEXTS}
    except (OSError, ValueError) as error:
        line = " ".join(str(error).split())
        raise TableError(f"{path} is not a curves.csv of ours ({line}): write it again with collect") from None
    curves = texts.assign(**numbers).dropna(subset=["tokens"])
    return curves if len(curves) else None
