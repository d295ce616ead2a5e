"""Ids are those of the saved tokenizer, decode to the text, and never mean more than the text says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from data_corpora import documents
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from scaling.data.tokenizer import END_OF_TEXT, PublishedTokenizer, TrainedTokenizer
from scaling.errors import DataError

CODE = "def f(x):\n    if x > 10:\n\t\treturn {'a': [1, 2, 3]}  # don't, we'll\r\n\n\n" * 30
TEXTS = [*documents(200), CODE, "漢字かな交じり文 " * 50, "🎉👍🏽 e\u0301 \u00a0\u2003" * 30]


@dataclasses.dataclass
class Pair:
    """A trained tokenizer and what it saved, read by the library others would use."""

    trained: TrainedTokenizer
    saved: tokenizers.Tokenizer
    folder: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tokenizer")
    trained = TrainedTokenizer.train(TEXTS, 700, folder)
    return Pair(trained, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), folder)


def assert_same(pair: Pair, text: str) -> None:
    """Compare with the saved tokenizer, which takes special tokens for what they are where it meets them."""
    (ids,) = pair.trained.encode([text])
    pair.saved.encode_special_tokens = True
    assert ids.tolist() == pair.saved.encode(text).ids
    assert pair.saved.decode(ids.tolist(), skip_special_tokens=False) == text


WORDS = st.sampled_from(
    [*" ".join(TEXTS).split(" "), "", "'s", "'ll", "123", END_OF_TEXT, "<|", "|>", "\n\n", "\t", "  "]
)


@given(text=st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join)))
@example(text=" " * 1000 + "a")
@example(text="\u0085\u2028\u200b\u180e\ufeff\x00\x1c\x1f")
@settings(max_examples=300, deadline=None)
def test_ids_are_those_of_the_saved_tokenizer(pair: Pair, text: str) -> None:
    assert_same(pair, text)


def test_every_kind_of_character_is_split_alike(pair: Pair) -> None:
    """The two libraries have regular expressions of their own; every 7th code point, between letters and digits."""
    points = [*range(0, 0xD800, 7), *range(0xE000, 0x110000, 7)]
    for start in range(0, len(points), 1000):
        assert_same(pair, "".join(f"a{chr(c)}b {chr(c)}1{chr(c)}" for c in points[start : start + 1000]))


def test_vocabulary_is_exact(pair: Pair) -> None:
    vocabulary = pair.saved.get_vocab()
    assert len(vocabulary) == 700
    assert sorted(vocabulary.values()) == list(range(700))
    assert vocabulary[END_OF_TEXT] == pair.trained.end_of_text


def test_text_of_the_special_token_is_text(pair: Pair) -> None:
    (ids,) = pair.trained.encode([f"one{END_OF_TEXT}two"])
    assert pair.trained.end_of_text not in ids
    assert pair.saved.decode(ids.tolist()) == f"one{END_OF_TEXT}two"


def test_a_million_letters_are_no_trap(pair: Pair) -> None:
    for text in ("a" * 10**6, " " * 10**6, "ab!" * 10**5):
        (ids,) = pair.trained.encode([text])
        assert pair.saved.decode(ids.tolist()) == text


def test_training_is_deterministic_and_loading_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    again = TrainedTokenizer.train(iter(TEXTS), 700, tmp_path)
    loaded = TrainedTokenizer.load(pair.folder)
    assert pair.trained.hash == again.hash == loaded.hash
    assert (tmp_path / "tokenizer.json").read_bytes() == (pair.folder / "tokenizer.json").read_bytes()
    assert TrainedTokenizer.train(TEXTS[:100], 400, tmp_path).hash != again.hash
    for one, other in zip(pair.trained.encode(TEXTS), loaded.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(one, other)


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocab_size is 5000, but .* gives only \d+ entries: .*data\.bpe_bytes"):
        TrainedTokenizer.train(documents(3), 5000, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    for content in ("", "{}", '{"model": null}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json is damaged: delete"):
            TrainedTokenizer.load(tmp_path)


# --- a published tokenizer


def published(pair: Pair, folder: Path, **special: str) -> str:
    """The saved tokenizer as a folder of `transformers`."""
    PreTrainedTokenizerFast(tokenizer_object=pair.saved, **special).save_pretrained(folder)
    return str(folder)


def test_published_tokenizer_gives_the_same_ids(pair: Pair, tmp_path: Path) -> None:
    name = published(pair, tmp_path / "published", eos_token=END_OF_TEXT, bos_token=END_OF_TEXT)
    tokenizer = PublishedTokenizer(name, 1000)
    assert tokenizer.end_of_text == pair.trained.end_of_text
    assert tokenizer.hash == pair.trained.hash
    texts = [*TEXTS, f"one{END_OF_TEXT}two"]
    for one, other in zip(tokenizer.encode(texts), pair.trained.encode(texts), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_published_tokenizer_that_does_not_match(pair: Pair, tmp_path: Path) -> None:
    name = published(pair, tmp_path / "published", eos_token=END_OF_TEXT)
    with pytest.raises(DataError, match=r"has 700 entries, but data\.vocab_size is 699: set it to 700 or more"):
        PublishedTokenizer(name, 699)
    with pytest.raises(DataError, match="no end-of-text token"):
        PublishedTokenizer(published(pair, tmp_path / "endless"), 700)


def test_a_published_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer .*nowhere cannot be loaded .*check data\.tokenizer") as caught:
        PublishedTokenizer(str(tmp_path / "nowhere"), 700)
    assert "\n" not in str(caught.value)
