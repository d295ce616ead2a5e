"""The table of dynamics.parquet as bytes. Parquet, because every row has a list; read and written whole."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from scaling.errors import RecordError

if TYPE_CHECKING:
    import pyarrow

DYNAMICS = {
    "attempt": "int64", "step": "int64", "tokens": "int64", "sublayer": "int64", "kind": "string",
    "output_rms": "double", "hidden_rms": "double", "gradient_norm": "double", "entropy": "double",
    "embedding_share": "double", "predecessor_share": "double", "weights": "list<double>",
}  # fmt: skip
KINDS = ("attention", "mlp")


def encode(rows: list[dict[str, Any]], after: bytes | None = None) -> bytes:
    """A file of rows with the columns of `DYNAMICS`, after those of another file; what is not finite is missing.

    Raises:
        RecordError: the other file is damaged, or holds another table.
    """
    import pyarrow
    from pyarrow import parquet

    finite = [{key: _finite(value) for key, value in row.items()} for row in rows]
    tables = [pyarrow.Table.from_pylist(finite, _schema())]
    if after is not None:
        tables.insert(0, _table(after))
    file = io.BytesIO()
    parquet.write_table(pyarrow.concat_tables(tables), file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def decode(content: bytes) -> list[dict[str, Any]]:
    """The rows of a file.

    Raises:
        RecordError: it is damaged, or holds another table.
    """
    rows = _table(content).to_pylist()
    if any(row["kind"] not in KINDS for row in rows):
        raise RecordError(f"has a kind of sublayer that is none of {', '.join(KINDS)}")
    return rows


def last_attempts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last attempt's row of every step and sublayer, in their order."""
    kept: dict[tuple[int, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["attempt"]):
        kept[row["step"], row["sublayer"]] = row
    return [kept[key] for key in sorted(kept)]


def _table(content: bytes) -> pyarrow.Table:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(io.BytesIO(content), page_checksum_verification=True)
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RecordError("is damaged") from error
    if not table.schema.equals(_schema()):
        raise RecordError(f"has columns {table.column_names}, not {list(DYNAMICS)}")
    return table


def _schema() -> pyarrow.Schema:
    import pyarrow

    types = {"int64": pyarrow.int64(), "string": pyarrow.string(), "double": pyarrow.float64()}
    types["list<double>"] = pyarrow.list_(pyarrow.float64())
    return pyarrow.schema([(name, types[kind]) for name, kind in DYNAMICS.items()])


def _finite(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    return None if any(isinstance(n, float) and not math.isfinite(n) for n in numbers) else value
