"""What a prepared corpus holds: every document once, in one split, as tokens that decode to it."""

from __future__ import annotations

import dataclasses
import itertools
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from data_corpora import documents, tokens_of, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import PreTrainedTokenizerFast

from scaling.config import DataConfig
from scaling.data.prepare import prepare
from scaling.data.shards import Index, Split, TokenReader, load_index
from scaling.errors import DataError

VOCAB = 400


def config(*train: object, **fields: Any) -> DataConfig:
    defaults = {"name": "test", "vocab_size": VOCAB, "validation_fraction": 0.2}
    return DataConfig(**{**defaults, "train_files": [str(path) for path in train], **fields})


def write_parquet(path: Path, texts: list[str]) -> Path:
    parquet.write_table(pa.table({"text": texts}), path)
    return path


def texts_of(index: Index, split: Split) -> list[str]:
    """Documents, decoded from the tokens up to each end of text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(index.folder / "tokenizer.json"))
    tokens = tokens_of(index, split)
    ends = np.flatnonzero(tokens == index.end_of_text)
    assert ends[-1] == len(tokens) - 1
    starts = [0, *(ends[:-1] + 1)]
    return [tokenizer.decode(tokens[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]


def test_every_document_once_and_in_order(tmp_path: Path) -> None:
    texts = [*documents(200), "with <|endoftext|> inside", "ünï 漢字 🎉\r\n"]
    again = [texts[5], *texts[50:60]]
    path = write_parquet(tmp_path / "a.parquet", [*texts, *again, "", "ünï 漢字 🎉\r"])
    texts.append("ünï 漢字 🎉\r")
    index = prepare(config(path), tmp_path, progress=False)
    train, validation = texts_of(index, "train"), texts_of(index, "validation")
    assert sorted(train + validation) == sorted(texts)
    assert [text for text in texts if text in set(train)] == train
    assert [text for text in texts if text in set(validation)] == validation
    assert (index.duplicates, index.skipped) == (len(again), 1)
    assert index.documents == {"train": len(train), "validation": len(validation)}
    assert index.text_bytes["train"] == sum(len(text.encode()) for text in train)
    assert (index.dtype, index.vocab_size) == ("uint16", VOCAB)
    assert load_index(config(path), tmp_path) == index
    index.verify()


@given(seed=st.integers(0, 10**6), fraction=st.floats(0.2, 0.5))
@settings(max_examples=4, deadline=None)
def test_the_split_is_by_text_alone(tmp_path_factory: pytest.TempPathFactory, seed: int, fraction: float) -> None:
    folder = tmp_path_factory.mktemp("split")
    texts = documents(300, seed, words=20)
    held_out = []
    for name, order in (("there", texts), ("back", texts[::-1] + texts[:50])):
        path = write_parquet(folder / f"{name}.parquet", order)
        index = prepare(config(path, name=name, validation_fraction=fraction), folder, progress=False)
        held_out.append(set(texts_of(index, "validation")))
        assert held_out[-1].isdisjoint(texts_of(index, "train"))
    assert held_out[0] == held_out[1]
    assert abs(len(held_out[0]) - 300 * fraction) < 5 * (300 * fraction * (1 - fraction)) ** 0.5


def test_held_out_files_are_kept_out_of_training(tmp_path: Path) -> None:
    texts = documents(150)
    train = write_parquet(tmp_path / "train.parquet", texts[:100] + texts[:10])
    validation = write_jsonl(tmp_path / "validation.jsonl", [*texts[90:], texts[149]])
    index = prepare(config(train, validation_files=[validation]), tmp_path, progress=False)
    assert texts_of(index, "validation") == texts[90:]
    assert texts_of(index, "train") == texts[:90]
    assert index.duplicates == 10 + 1 + 10


def test_files_of_every_kind_make_one_corpus(tmp_path: Path) -> None:
    texts = documents(120)
    write_jsonl(tmp_path / "a.jsonl", texts[:50])
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress((tmp_path / "a.jsonl").read_bytes()))
    mixed = config(
        tmp_path / "a.jsonl.xz",
        write_parquet(tmp_path / "b.parquet", texts[50:119]),
        tmp_path / "c.txt",
        name="mixed",
        bpe_bytes=10_000,
    )
    (tmp_path / "c.txt").write_text(texts[119])
    whole = config(write_parquet(tmp_path / "all.parquet", texts), name="whole", bpe_bytes=10_000)
    one, other = prepare(mixed, tmp_path, progress=False), prepare(whole, tmp_path, progress=False)
    assert one.hash == other.hash
    assert one.source["fingerprint"] != other.source["fingerprint"]


@pytest.mark.parametrize("shard_tokens", [997, 5000])
def test_shards_are_cut_at_their_size_and_nowhere_else(tmp_path: Path, shard_tokens: int) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(200))
    whole = prepare(config(path, name="whole"), tmp_path, progress=False)
    cut = prepare(config(path, name="cut"), tmp_path, progress=False, shard_tokens=shard_tokens)
    for split in ("train", "validation"):
        np.testing.assert_array_equal(tokens_of(cut, split), tokens_of(whole, split))
        lengths = [shard.tokens for shard in cut.shards[split]]
        assert all(length == shard_tokens for length in lengths[:-1])
        assert 0 < lengths[-1] <= shard_tokens
    assert len(cut.shards["train"]) > 3
    cut.verify()
    reader = TokenReader(cut, "train", 64)
    np.testing.assert_array_equal(
        reader.windows(range(reader.n_windows)), TokenReader(whole, "train", 64).windows(range(reader.n_windows))
    )


def test_stops_at_max_train_tokens(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(200))
    whole = prepare(config(path), tmp_path, progress=False)
    short = prepare(config(path, max_train_tokens=5001), tmp_path, progress=False)
    assert short.tokens("train") == 5001
    np.testing.assert_array_equal(tokens_of(short, "train"), tokens_of(whole, "train")[:5001])
    held_out = tokens_of(short, "validation")
    np.testing.assert_array_equal(held_out, tokens_of(whole, "validation")[: len(held_out)])


def test_the_bpe_sees_only_its_bytes_of_the_training_split(tmp_path: Path) -> None:
    texts = documents(300)
    kept = [
        prepare(
            config(write_parquet(tmp_path / f"{name}.parquet", given), name=name, bpe_bytes=20_000), tmp_path, False
        )
        for name, given in (("one", texts), ("two", texts[:150] + documents(150, seed=9)))
    ]
    assert kept[0].tokenizer_hash == kept[1].tokenizer_hash
    assert kept[0].hash != kept[1].hash
    more = prepare(config(tmp_path / "one.parquet", bpe_bytes=100_000), tmp_path, progress=False)
    assert more.tokenizer_hash != kept[0].tokenizer_hash


def test_a_large_published_vocabulary_is_written_in_32_bits(tmp_path: Path) -> None:
    trained = prepare(config(write_parquet(tmp_path / "a.parquet", documents(100))), tmp_path, progress=False)
    saved = tokenizers.Tokenizer.from_file(str(trained.folder / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_object=saved, eos_token="<|endoftext|>").save_pretrained(tmp_path / "published")
    name = str(tmp_path / "published")
    index = prepare(config(tmp_path / "a.parquet", tokenizer=name, vocab_size=65_537), tmp_path, progress=False)
    assert index.dtype == "uint32"
    assert index.tokenizer_hash == trained.tokenizer_hash
    np.testing.assert_array_equal(tokens_of(index, "train"), tokens_of(trained, "train"))
    assert texts_of(index, "train") == texts_of(trained, "train")


# --- the same command again


def test_the_same_command_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = config(write_parquet(tmp_path / "a.parquet", documents(100)))
    index = prepare(corpus, tmp_path / "data")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in index.folder.iterdir()}
    assert set(before) == {"index.json", "lock", "tokenizer.json", "train_00000.bin", "validation_00000.bin"}
    capsys.readouterr()
    assert prepare(corpus, tmp_path / "data") == index
    assert "100 documents" in capsys.readouterr().out
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in index.folder.iterdir()} == before
    assert prepare(dataclasses.replace(corpus, train_files=[]), tmp_path / "data", progress=False) == index


def test_other_files_are_refused(tmp_path: Path) -> None:
    corpus = config(write_parquet(tmp_path / "a.parquet", documents(100)))
    index = prepare(corpus, tmp_path / "data", progress=False)
    write_parquet(tmp_path / "a.parquet", documents(101))
    with pytest.raises(DataError, match=r"test-\w+ was prepared from other files .*another data\.name"):
        prepare(corpus, tmp_path / "data", progress=False)
    index.verify()


def test_a_damaged_shard_is_found_by_the_same_command(tmp_path: Path) -> None:
    corpus = config(write_parquet(tmp_path / "a.parquet", documents(100)))
    index = prepare(corpus, tmp_path, progress=False)
    with open(index.folder / "train_00000.bin", "r+b") as file:
        file.write(b"\x01\x02\x03\x04")
    with pytest.raises(DataError, match=r"train_00000\.bin is not what was written"):
        prepare(corpus, tmp_path, progress=False)


# --- too little text, and a second try


@pytest.mark.parametrize("texts", [[], ["", None]], ids=["no document", "no text"])
def test_an_empty_corpus(tmp_path: Path, texts: list[str | None]) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    with pytest.raises(DataError, match=r"corpus test is empty: no document with text in .*a\.jsonl"):
        prepare(config(path), tmp_path / "data", progress=False)
    write_jsonl(tmp_path / "a.jsonl", list(documents(100)))
    assert sum(prepare(config(path), tmp_path / "data", progress=False).documents.values()) == 100


def test_a_corpus_too_small_for_the_vocabulary(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(5))
    with pytest.raises(DataError, match=r"data\.vocab_size is 9000"):
        prepare(config(path, vocab_size=9000), tmp_path, progress=False)


def test_a_corpus_without_a_validation_document(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(30))
    corpus = config(path, validation_fraction=1e-9)
    with pytest.raises(DataError, match=r"no validation document: raise data\.validation_fraction \(1e-09\)"):
        prepare(corpus, tmp_path, progress=False)
    with pytest.raises(DataError, match="not prepared to the end"):
        load_index(corpus, tmp_path)


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(30))
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataError, match=r"cannot be written \(Not a directory\): make room, or correct") as caught:
        prepare(config(path), tmp_path / "data", progress=False)
    assert "\n" not in str(caught.value)


# --- real text


@pytest.mark.slow
def test_the_first_part_of_the_prose_corpus(tmp_path: Path) -> None:
    prose = Path(__file__).parents[3] / "shared" / "corpus" / "prose_train.jsonl.xz"
    if not prose.exists():
        pytest.skip("shared/corpus/prose_train.jsonl.xz is not beside this repository")
    with lzma.open(prose, "rt", encoding="utf-8") as file:
        (tmp_path / "prose.jsonl").write_text("".join(itertools.islice(file, 4000)), encoding="utf-8")
    index = prepare(config(tmp_path / "prose.jsonl", vocab_size=4096), tmp_path, progress=False)
    assert sum(index.documents.values()) + index.duplicates + index.skipped == 4000
    text_bytes, tokens = sum(index.text_bytes.values()), index.tokens("train") + index.tokens("validation")
    assert 2.8 < text_bytes / tokens < 3.5
    index.verify()
