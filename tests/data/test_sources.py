"""Documents come out of every kind of file whole, in order and without a network; what is wrong is named."""

from __future__ import annotations

import gzip
import json
import lzma
import socket
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
import zstandard
from data_corpora import documents, write_jsonl
from pyarrow import parquet

from scaling.config import DataConfig
from scaling.data import sources
from scaling.data.shards import Split
from scaling.errors import ConfigError, DataError

TEXTS = [*documents(40), "unicode: ünïcødé 漢字 🎉\nsecond line\r\n", "<|endoftext|>"]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("a local source reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def config(*train: object, **fields: Any) -> DataConfig:
    return DataConfig(**{"name": "test", "train_files": [str(path) for path in train], **fields})


def read(source: sources.Source, split: Split = "train") -> list[str | None]:
    return [text for part in source.parts[split] for texts in part.read() for text in texts]


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_json_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    write_jsonl(path, TEXTS)
    path.write_bytes(COMPRESS[suffix](path.read_bytes()))
    assert read(sources.open_source(config(path))) == TEXTS


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_a_text_file_is_one_document(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    text = "\n\n".join(TEXTS[:40])
    path.write_bytes(COMPRESS[suffix](text.encode()))
    assert read(sources.open_source(config(path, text_field="body"))) == [text]


def test_json_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": text} for text in TEXTS]))
    assert read(sources.open_source(config(path))) == TEXTS


def test_parquet_with_a_field_of_another_name(tmp_path: Path) -> None:
    table = pa.table({"body": [*TEXTS, None], "score": list(range(len(TEXTS) + 1))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    assert read(sources.open_source(config(tmp_path / "a.parquet", text_field="body"))) == [*TEXTS, None]


def test_a_null_text_is_none(tmp_path: Path) -> None:
    texts = ["one", None, "", "two"]
    write_jsonl(tmp_path / "a.jsonl", texts)
    assert read(sources.open_source(config(tmp_path / "a.jsonl"))) == texts


def test_globs_files_and_kinds_keep_the_order_given(tmp_path: Path) -> None:
    for name in ("b2", "b1", "a"):
        write_jsonl(tmp_path / f"{name}.jsonl", [name])
    (tmp_path / "c.txt").write_text("c")
    (tmp_path / "bfolder.jsonl").mkdir()
    source = sources.open_source(
        config(tmp_path / "b*.jsonl", tmp_path / "c.txt", validation_files=[str(tmp_path / "a.jsonl")])
    )
    assert read(source) == ["b1", "b2", "c"]
    assert read(source, "validation") == ["a"]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    write_jsonl(tmp_path / "a.jsonl", TEXTS)
    read(sources.open_source(config(tmp_path / "a.jsonl")))
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "tmp"}
    assert not list((tmp_path / "tmp").iterdir())


def test_fingerprint_is_of_names_and_sizes_wherever_the_files_lie(tmp_path: Path) -> None:
    def fingerprint(folder: str, name: str, texts: list[str | None]) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        write_jsonl(tmp_path / folder / name, texts)
        described = sources.open_source(config(tmp_path / folder / name)).description
        assert (described["files"], described["bytes"]) == (1, (tmp_path / folder / name).stat().st_size)
        return str(described["fingerprint"])

    one = fingerprint("x", "a.jsonl", ["one"])
    assert fingerprint("y", "a.jsonl", ["one"]) == one
    assert fingerprint("x", "b.jsonl", ["one"]) != one
    assert fingerprint("x", "a.jsonl", ["one more"]) != one


# --- the standard library


def test_python_source_is_the_standard_library() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    source = sources.open_source(DataConfig(name="python", source="python"))
    names = [Path(part.name).relative_to(root) for part in source.parts["train"]]
    assert len(names) > 500
    assert names == sorted(names, key=lambda name: name.parts)
    assert Path("json/decoder.py") in names
    assert not [n for n in names if {"site-packages", "dist-packages", "__pycache__"} & set(n.parts)]
    dataclasses = next(part for part in source.parts["train"] if part.name == str(root / "dataclasses.py"))
    assert list(dataclasses.read()) == [[(root / "dataclasses.py").read_bytes().decode()]]
    assert dataclasses.text_bytes == (root / "dataclasses.py").stat().st_size


def test_a_python_file_that_is_not_utf8_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"# latin: \xe9\n")
    assert list(sources._read_python(tmp_path / "a.py")) == [[None]]


# --- a hub dataset, which may be a folder


def test_hub_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        write_jsonl(tmp_path / f"part{i}.jsonl", [f"{i}/{j}" for j in range(20)])
    source = sources.open_source(DataConfig(name="hub", source="hub", hub_path=str(tmp_path)))
    assert len(source.parts["train"]) == 3
    assert read(source) == [f"{i}/{j}" for i in range(3) for j in range(20)]
    assert read(source)[20:] == [text for part in source.parts["train"][1:] for texts in part.read() for text in texts]


def test_a_hub_dataset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset .*nowhere cannot be opened .*check data\.hub_path") as caught:
        sources.open_source(DataConfig(name="hub", source="hub", hub_path=str(tmp_path / "nowhere")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [ConnectionError("Connection reset by peer"), OSError("504 Gateway Time-out"), EOFError()]
)
def test_a_hub_that_stops_to_answer_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for i in range(2):
        write_jsonl(tmp_path / f"part{i}.jsonl", [f"{i}/{j}" for j in range(40)])
    source = sources.open_source(DataConfig(name="hub", source="hub", hub_path=str(tmp_path)))
    documents = source.parts["train"][1].read()
    assert next(documents)[0] == "1/0"
    check = sources._check_column

    def fail(*_: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(sources, "_check_column", fail)
    with pytest.raises(DataError, match=r"shard 1 of 2 .*the network or the hub failed.* goes on from where it was"):
        next(documents)
    monkeypatch.setattr(sources, "_check_column", check)
    assert len(read(source)) == 80


# --- what is wrong


def test_no_files() -> None:
    with pytest.raises(DataError, match=r"corpus test has no files: .*--data\.train_files"):
        sources.open_source(config())


def test_files_for_a_source_that_reads_none() -> None:
    with pytest.raises(ConfigError, match=r"train_files is .*only source files reads files"):
        DataConfig(name="x", source="python", train_files=["a.jsonl"])


@pytest.mark.parametrize("key", ["train_files", "validation_files"])
@pytest.mark.parametrize("name", ["missing.jsonl", "*.jsonl.xz"])
def test_a_missing_file(tmp_path: Path, key: str, name: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    files = {"train_files": [str(tmp_path / "a.jsonl")], key: [str(tmp_path / name)]}
    with pytest.raises(DataError, match=rf"data\.{key}: no file matches .*{name[1:]}"):
        sources.open_source(config(**files))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.bz2", "a.parquet.gz", "a"])
def test_a_file_of_an_unknown_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one")
    with pytest.raises(DataError, match=rf"{name} is of an unknown kind: give \.json, .*\.xz"):
        sources.open_source(config(tmp_path / name))


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"], field="body")
    parquet.write_table(pa.table({"id": [1], "body": ["one"]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match=rf"{name} has no column text, only id, body: .*--data\.text_field"):
            read(sources.open_source(config(tmp_path / name)))


def test_a_column_that_is_not_text(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(DataError, match=r"a\.jsonl: column id holds int64, not text"):
        read(sources.open_source(config(tmp_path / "a.jsonl", text_field="id")))


def damaged(tmp_path: Path) -> Iterator[Path]:
    """Files of every kind cut in the middle, and some that never were what their name says."""
    rows = write_jsonl(tmp_path / "rows", documents(300))
    content = Path(rows).read_bytes()
    parquet.write_table(pa.table({"text": documents(300)}), tmp_path / "whole.parquet")
    whole = {
        "a.jsonl": content,
        "a.jsonl.gz": gzip.compress(content),
        "a.jsonl.xz": lzma.compress(content),
        "a.jsonl.zst": zstandard.compress(content),
        "a.txt.gz": gzip.compress(content),
        "a.txt.xz": lzma.compress(content),
        "a.txt.zst": zstandard.compress(content),
        "a.parquet": (tmp_path / "whole.parquet").read_bytes(),
    }
    for name, data in whole.items():
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        yield tmp_path / name
    for name in ("b.jsonl", "b.jsonl.gz", "b.txt.xz", "b.jsonl.zst", "b.parquet"):
        (tmp_path / name).write_bytes(b"this is neither\nJSON nor an archive\n")
        yield tmp_path / name
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    yield tmp_path / "latin.txt"


def test_damaged_files(tmp_path: Path) -> None:
    for path in damaged(tmp_path):
        with pytest.raises(
            DataError, match=r"cannot be read .*damaged or cut short|is not UTF-8: convert it"
        ) as caught:
            read(sources.open_source(config(path)))
        assert str(path) in str(caught.value), path
        assert "\n" not in str(caught.value)


def test_zst_of_several_frames_is_whole(tmp_path: Path) -> None:
    rows = Path(write_jsonl(tmp_path / "rows", TEXTS)).read_bytes().splitlines(keepends=True)
    half = len(rows) // 2
    frames = [zstandard.compress(b"".join(rows[:half])), zstandard.compress(b"".join(rows[half:]))]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert read(sources.open_source(config(tmp_path / "a.jsonl.zst"))) == TEXTS
    (tmp_path / "a.jsonl.zst").write_bytes(frames[0] + frames[1][:-20])
    with pytest.raises(DataError, match="cut short"):
        read(sources.open_source(config(tmp_path / "a.jsonl.zst")))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
def test_a_file_without_documents_has_none(tmp_path: Path, name: str) -> None:
    content = b"[]" if name == "a.json" else b""
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [text for text in read(sources.open_source(config(tmp_path / name))) if text] == []


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz", "a.json"])
def test_a_large_file_that_would_be_read_in_one_piece(tmp_path: Path, name: str) -> None:
    content = (b"[" if name == "a.json" else b"") + bytes(sources.WHOLE_FILE_BYTES + 1)
    (tmp_path / name).write_bytes(lzma.compress(content, preset=0) if name.endswith(".xz") else content)
    with pytest.raises(DataError, match=rf"{name} would be one piece of more than 64 MB: make it \.jsonl"):
        read(sources.open_source(config(tmp_path / name)))
