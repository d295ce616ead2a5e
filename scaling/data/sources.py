"""Where text comes from: the standard library's sources, local files, or a hub dataset, as parts read one by one.

A part is a file, or a shard of a hub dataset. A preparation that was cut off skips finished parts unread.
Files are streamed, mostly by Hugging Face `datasets`, so memory is bounded and nothing is copied.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.config import DataConfig
from scaling.data.shards import Split
from scaling.errors import DataError

if TYPE_CHECKING:
    import datasets
    import pyarrow

ROWS = 16
"""Documents read at once. Few, because a document may have megabytes."""
WHOLE_FILE_BYTES = 64_000_000
"""Largest file that is read in one piece: a text file, which is one document, or a JSON array."""
BUILDERS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".txt": "text"}
COMPRESSIONS = (".xz", ".gz", ".zst")
DAMAGED = "it is damaged or cut short; get it again"
CUT_OFF = "the network or the hub failed; the same command goes on from where it was"
NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__"}

Documents = Iterator[list[str | None]]
"""Lists of documents; None is a document without text, or one that is not UTF-8."""


@dataclass(frozen=True)
class Part:
    """A file, or a shard of a hub dataset."""

    name: str
    read: Callable[[], Documents]
    """Starts reading; raises DataError where the part is damaged, cut off or has no such column."""
    text_bytes: int | None = None
    """Size, where that is about the size of the text: files that are not compressed."""


@dataclass(frozen=True)
class Source:
    """The parts of each split, and what tells one source from another."""

    parts: dict[Split, list[Part]]
    """`validation` is empty where documents have to be held out of `train`."""
    description: dict[str, Any]
    """Number and bytes of the files and SHA-256 of their names and sizes."""
    where: str
    """What to call it in a message."""


def open_source(config: DataConfig) -> Source:
    """Find the text of a corpus; reads none of it yet.

    Raises:
        DataError: no files are given, one is missing or of an unknown kind, or the hub has no such dataset.
    """
    if config.source == "python":
        return _python_source()
    if config.source == "hub":
        return _hub_source(config)
    return _files_source(config)


# --- the standard library


def _python_source() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in NOT_STDLIB]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    paths.sort(key=lambda path: path.relative_to(root).parts)
    if not paths:
        raise DataError(f"{root} holds no .py files: this Python comes without its sources; use data.source files")
    parts = [Part(str(path), partial(_read_python, path), path.stat().st_size) for path in paths]
    return Source({"train": parts, "validation": []}, _description({"train": paths}, root), str(root))


def _read_python(path: Path) -> Documents:
    try:
        yield [path.read_bytes().decode()]
    except UnicodeDecodeError:
        yield [None]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error


# --- local files


def _files_source(config: DataConfig) -> Source:
    if not config.train_files:
        raise DataError(f"corpus {config.name} has no files: pass them with --data.train_files corpus/*.jsonl.xz")
    paths: dict[Split, list[Path]] = {
        "train": _expand(config.train_files, "data.train_files"),
        "validation": _expand(config.validation_files, "data.validation_files"),
    }
    parts = {split: [_file_part(path, config.text_field) for path in found] for split, found in paths.items()}
    return Source(parts, _description(paths), ", ".join(config.train_files))


def _expand(patterns: Sequence[str], key: str) -> list[Path]:
    """Files in the order of the patterns, those of one pattern by name."""
    paths = []
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        found = [Path(name) for name in names if Path(name).is_file()]
        if not found:
            raise DataError(f"{key}: no file matches {pattern}: correct the path")
        paths += found
    return paths


def _file_part(path: Path, field: str) -> Part:
    compressed = path.suffix in COMPRESSIONS
    builder = BUILDERS.get((path.with_suffix("") if compressed else path).suffix)
    if builder is None or (compressed and builder == "parquet"):
        raise DataError(
            f"{path} is of an unknown kind: give {', '.join(BUILDERS)}, as they are or (but for .parquet) "
            f"compressed with {', '.join(COMPRESSIONS)}"
        )
    if builder == "parquet":
        return Part(str(path), partial(_read_parquet, path, field))
    read = partial(_read_file, path, builder, field)
    return Part(str(path), read, None if compressed else path.stat().st_size)


def _read_file(path: Path, builder: str, field: str) -> Documents:
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)  # its errors reach the user as ours
    with _failure_named(str(path)), tempfile.TemporaryDirectory() as cache:
        if path.suffix == ".zst":
            _check_zst(path)
        _check_size(path, builder)
        if builder == "text":
            yield [_whole_text(path)]
            return
        try:
            dataset = datasets.load_dataset(
                builder, data_files=[str(path)], split="train", streaming=True, cache_dir=cache
            )
        except StopIteration:  # a JSON file without a line
            return
    yield from _read_dataset(dataset, str(path), field)


def _whole_text(path: Path) -> str:
    """A text file is one document. Not by `datasets`, which takes a third of a second for each file."""
    import fsspec

    with fsspec.open(str(path), "rb", compression="infer") as file:
        data = file.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8: convert it (iconv -f LATIN1 -t UTF-8 FILE)") from None


def _read_parquet(path: Path, field: str) -> Documents:
    # Not by `datasets`, which reads whole row groups, and those can be gigabytes.
    from pyarrow import parquet

    with _failure_named(str(path)):
        file = parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        _check_column(file.schema_arrow, str(path), field)
        for batch in file.iter_batches(batch_size=ROWS, columns=[field], use_threads=False):
            yield batch[field].to_pylist()


def _check_size(path: Path, builder: str) -> None:
    """Refuse a large file that `datasets` would read in one piece."""
    import fsspec

    with fsspec.open(str(path), "rb", compression="infer") as file:
        if builder == "json" and file.read(1) != b"[":
            return
        size = 0
        while chunk := file.read(1 << 20):
            size += len(chunk)
            if size > WHOLE_FILE_BYTES:
                raise DataError(
                    f"{path} would be one piece of more than {WHOLE_FILE_BYTES // 10**6} MB: make it .jsonl with a "
                    "document a line, or cut it (split -C 16M --additional-suffix=.txt FILE PART)"
                )


def _check_zst(path: Path) -> None:
    # zstandard's reader takes the end of a truncated file for the end of the text.
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            while chunk:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                frame.decompress(chunk)
                chunk = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("compressed file ended before the end-of-stream marker was reached")


# --- a hub dataset


def _hub_source(config: DataConfig) -> Source:
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    named = {"path": config.hub_path, "config": config.hub_config, "revision": config.hub_revision}
    try:
        dataset = datasets.load_dataset(
            config.hub_path, config.hub_config, revision=config.hub_revision, split="train", streaming=True
        )
    except Exception as error:  # of many kinds: no such dataset, no network, no access, a bad configuration
        raise DataError(
            f"dataset {config.hub_path} cannot be opened ({_first_line(error)}): check data.hub_path, data.hub_config, "
            "data.hub_revision and the network"
        ) from error
    n = dataset.num_shards
    parts = []
    for i in range(n):
        name, shard = f"{config.hub_path}, shard {i} of {n}", dataset.shard(num_shards=n, index=i)
        parts.append(Part(name, partial(_read_dataset, shard, name, config.text_field, CUT_OFF)))
    description = {"files": n, "bytes": None, "fingerprint": _sha256(named)}
    return Source({"train": parts, "validation": []}, description, config.hub_path)


# --- what they share


def _read_dataset(dataset: datasets.IterableDataset, name: str, field: str, failure_means: str = DAMAGED) -> Documents:
    with _failure_named(name, failure_means):
        for table in dataset.with_format("arrow").iter(batch_size=ROWS):
            _check_column(table.schema, name, field)
            yield table[field].to_pylist()


def _check_column(schema: pyarrow.Schema, name: str, field: str) -> None:
    from pyarrow import types

    if field not in schema.names:
        raise DataError(
            f"{name} has no column {field}, only {', '.join(schema.names)}: name the one that holds the text with "
            "--data.text_field"
        )
    kind = schema.field(field).type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)):
        raise DataError(f"{name}: column {field} holds {kind}, not text: name another with --data.text_field")


@contextlib.contextmanager
def _failure_named(name: str, means: str = DAMAGED) -> Iterator[None]:
    """Decompressors, parsers and connections raise errors of many kinds; what they mean to the user is one."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{name} cannot be read ({_first_line(error)}): {means}") from error


def _description(paths: Mapping[Split, Sequence[Path]], root: Path | None = None) -> dict[str, Any]:
    """What the source files are called, relative to `root` where there is one, and how large they are."""
    files = [
        (split, path.relative_to(root).as_posix() if root else path.name, path.stat().st_size)
        for split, found in paths.items()
        for path in found
    ]
    return {"files": len(files), "bytes": sum(size for _, _, size in files), "fingerprint": _sha256(files)}


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
