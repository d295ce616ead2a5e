"""Text to token ids: a byte-level BPE trained on the corpus, or a published tokenizer.

Both encode the text of special tokens as ordinary text, and name a token that ends a document.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from scaling.data.writer import write_whole
from scaling.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"
Ids = npt.NDArray[np.integer[Any]]

# GPT-2's pattern, which pre_tokenizers.ByteLevel has built in, in the form that does not backtrack.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


class Tokenizer(Protocol):
    """What preparing a corpus needs of a tokenizer."""

    hash: str
    """SHA-256 of the entries and their ids."""
    end_of_text: int
    """Id that ends every document."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without the end of text."""


class TrainedTokenizer:
    """A byte-level BPE trained on the corpus.

    Trained by `tokenizers` and saved in its format, so that every library reads it; encoded by `tiktoken`, which gives
    the same ids several times faster.
    """

    def __init__(self, trained: tokenizers.Tokenizer):
        """Wrap a tokenizer as `train` makes it."""
        vocabulary: dict[str, int] = trained.get_vocab()
        self.hash = _hash(vocabulary)
        self.end_of_text = vocabulary.pop(END_OF_TEXT)
        byte_of = _bytes_of_characters()
        # Ids rise in the order of the merges, so they serve as ranks.
        ranks = {bytes(byte_of[character] for character in entry): id for entry, id in vocabulary.items()}
        self._fast = tiktoken.Encoding("bpe", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without the end of text."""
        return [self._fast.encode_to_numpy(text, disallowed_special=()) for text in texts]

    @classmethod
    def load(cls, folder: Path) -> TrainedTokenizer:
        """Read tokenizer.json from the folder of a corpus.

        Raises:
            DataError: the file is damaged.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(f"{path} is damaged: delete {folder} and prepare again") from error

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, folder: Path) -> TrainedTokenizer:
        """Train on texts, the same result for the same texts, and save tokenizer.json in a folder.

        Raises:
            DataError: the texts are too few for a vocabulary of that size.
        """
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            min_frequency=2,
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        size = tokenizer.get_vocab_size()
        if size != vocab_size:
            raise DataError(
                f"data.vocab_size is {vocab_size}, but the text the BPE is trained on gives only {size} entries: lower "
                "it, raise data.bpe_bytes, or take a larger corpus"
            )
        write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
        return cls(tokenizer)


class PublishedTokenizer:
    """A tokenizer of the hub, or of a folder, by `transformers.AutoTokenizer`."""

    def __init__(self, name: str, vocab_size: int):
        """Load it.

        Args:
            name: hub name or folder.
            vocab_size: entries of the model's vocabulary.

        Raises:
            DataError: there is none of that name, it has more entries, or no end-of-text token.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
        except Exception as error:  # of many kinds: no such name, no network, no access, a missing dependency
            reason = next(iter(str(error).splitlines()), "")
            raise DataError(
                f"tokenizer {name} cannot be loaded ({reason}): check data.tokenizer and the network"
            ) from error
        if len(tokenizer) > vocab_size:
            raise DataError(
                f"tokenizer {name} has {len(tokenizer)} entries, but data.vocab_size is {vocab_size}: "
                f"set it to {len(tokenizer)} or more"
            )
        if tokenizer.eos_token_id is None:
            raise DataError(f"tokenizer {name} has no end-of-text token (eos_token): choose one that has")
        tokenizer.model_max_length = sys.maxsize  # documents are cut into windows later
        self.hash = _hash(tokenizer.get_vocab())
        self.end_of_text: int = tokenizer.eos_token_id
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without the end of text."""
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False
        )
        return [np.array(ids, dtype=np.uint32) for ids in encoded["input_ids"]]

    def save(self, folder: Path) -> None:
        """Save it in the folder of a corpus."""
        self._tokenizer.save_pretrained(folder)


def _hash(vocabulary: dict[str, int]) -> str:
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()


def _bytes_of_characters() -> dict[str, int]:
    """The printable characters that byte-level BPE writes bytes as: themselves, or from U+0100 on in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
