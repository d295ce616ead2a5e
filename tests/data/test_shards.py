"""Windows over shards, and what a damaged folder says."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_corpora import tokens_of

from scaling.config import DataConfig
from scaling.data.shards import Index, TokenReader, load_index
from scaling.errors import DataError


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("shards", [[101], [100], [7, 1, 30, 62, 3], [33, 33, 33]], ids=str)
@pytest.mark.parametrize("seq_len", [2, 10, 33])
def test_windows_are_those_of_the_concatenated_tokens(
    make_index: Callable[..., Index], shards: list[int], dtype: str, seq_len: int
) -> None:
    index = make_index(shards, dtype=dtype)
    tokens = tokens_of(index, "train")
    reader = TokenReader(index, "train", seq_len)
    assert reader.n_windows == (len(tokens) - 1) // seq_len
    windows = reader.windows(range(reader.n_windows))
    assert windows.dtype == np.int64
    for i, window in enumerate(windows):
        np.testing.assert_array_equal(window, tokens[i * seq_len : i * seq_len + seq_len + 1])


def test_windows_come_in_the_order_asked_for(make_index: Callable[..., Index]) -> None:
    reader = TokenReader(make_index([50, 50]), "train", 8)
    everything = reader.windows(range(reader.n_windows))
    np.testing.assert_array_equal(reader.windows([5, 0, 5, 11]), everything[[5, 0, 5, 11]])


@pytest.mark.parametrize("wrong", [-1, 12])
def test_a_window_that_is_not_there(make_index: Callable[..., Index], wrong: int) -> None:
    with pytest.raises(IndexError):
        TokenReader(make_index([100]), "train", 8).windows([0, wrong])


def test_a_split_below_one_window(make_index: Callable[..., Index]) -> None:
    with pytest.raises(DataError, match=r"has 8 train tokens.*larger corpus"):
        TokenReader(make_index([8]), "train", 8)
    assert TokenReader(make_index([9]), "train", 8).n_windows == 1


def test_a_pickled_reader_maps_the_files_again(make_index: Callable[..., Index]) -> None:
    reader = TokenReader(make_index([100_000]), "train", 8)
    pickled = pickle.dumps(reader)
    assert len(pickled) < 5_000
    np.testing.assert_array_equal(pickle.loads(pickled).windows([3, 700]), reader.windows([3, 700]))


def test_index_is_read_back_as_written(make_index: Callable[..., Index]) -> None:
    index = make_index([10, 20])
    assert Index.read(index.folder) == index


def test_hash_covers_what_decides_the_tokens_and_nothing_else(make_index: Callable[..., Index]) -> None:
    index = make_index([10, 20])
    shard = index.shards["train"][0]

    def with_first(**changes: object) -> Index:
        first = dataclasses.replace(shard, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(index, shards={**index.shards, "train": (first, index.shards["train"][1])})

    assert with_first(file="elsewhere.bin").hash == index.hash
    assert dataclasses.replace(index, folder=Path("elsewhere"), duplicates=9, source={"files": 3}).hash == index.hash
    others = [
        with_first(sha256="0" * 64),
        dataclasses.replace(index, tokenizer_hash="another"),
        dataclasses.replace(index, vocab_size=60_001),
        dataclasses.replace(index, shards={**index.shards, "train": index.shards["train"][::-1]}),
    ]
    assert len({index.hash, *(other.hash for other in others)}) == 5


@pytest.mark.parametrize("length", [0, 30, 42])
def test_a_shard_of_another_length(make_index: Callable[..., Index], length: int) -> None:
    index = make_index([10, 20])
    shard = index.folder / "train_00001.bin"
    shard.write_bytes(bytes(length))
    with pytest.raises(DataError, match=r"train_00001\.bin has \d+ bytes.*20 tokens.*prepare again"):
        TokenReader(index, "train", 4)
    TokenReader(index, "validation", 4)


def test_a_missing_shard(make_index: Callable[..., Index]) -> None:
    index = make_index([10, 20])
    (index.folder / "train_00000.bin").unlink()
    with pytest.raises(DataError, match=r"train_00000\.bin is missing.*prepare again"):
        TokenReader(index, "train", 4)


def test_verify_sees_one_changed_byte(make_index: Callable[..., Index]) -> None:
    index = make_index([10, 20])
    index.verify()
    shard = index.folder / "validation_00000.bin"
    content = bytearray(shard.read_bytes())
    content[777] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"validation_00000\.bin is not what was written.*prepare again"):
        index.verify()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "uint16", "vocab_size": 65_537}, "vocabulary of 65537 does not fit uint16"),
        ({"dtype": "float32"}, "does not fit float32"),
        ({"tokenizer_hash": "another"}, "contradicts its own hash"),
        ({"format": 99}, "another version"),
        ({"shards": {"train": []}}, "is damaged"),
        ({"unknown": 1}, "is damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_index_that_cannot_be_right(
    make_index: Callable[..., Index], changes: dict[str, object], message: str
) -> None:
    path = make_index([10]).folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=f"index.json.*{message}.*prepare again"):
        Index.read(path.parent)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\x00"])
def test_an_index_that_is_not_one(make_index: Callable[..., Index], content: str) -> None:
    path = make_index([10]).folder / "index.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"index\.json is damaged.*prepare again"):
        Index.read(path.parent)


def test_a_corpus_that_is_not_prepared(tmp_path: Path) -> None:
    config = DataConfig(name="mine", source="python")
    with pytest.raises(DataError, match=r"corpus mine is not prepared .*`python -m scaling prepare configs/data/mine"):
        load_index(config, tmp_path)
    (tmp_path / config.folder_name).mkdir()
    with pytest.raises(DataError, match="not prepared to the end"):
        load_index(config, tmp_path)


def test_an_index_of_another_vocabulary(make_index: Callable[..., Index], tmp_path: Path) -> None:
    config = DataConfig(name="mine", source="python", vocab_size=300)
    make_index([10]).folder.rename(tmp_path / config.folder_name)
    with pytest.raises(DataError, match="vocabulary of 65536, the configuration 300"):
        load_index(config, tmp_path)
