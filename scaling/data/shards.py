"""Token shards: the index that describes them, and windows of tokens read from them through memory maps.

A split's shards, one after the other, are one long array of tokens. Window i is its tokens i T to i T + T
inclusive, T inputs and T targets shifted by one; windows cross shards as if there were none.

Shapes: B windows, T tokens in a sequence.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scaling.config import DataConfig
from scaling.errors import DataError

FORMAT = 1
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True)
class Shard:
    """One file of tokens."""

    file: str
    """Name within the folder."""
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What index.json says about a prepared corpus. The file is written last, so where it is, the corpus is whole."""

    folder: Path
    """Where the shards lie; the only field that is not in the file."""
    config: Mapping[str, Any]
    """The settings that decide the tokens (`DataConfig.identity()`)."""
    source: Mapping[str, Any]
    """Number, bytes and fingerprint (SHA-256 of names and sizes) of the source files."""
    dtype: str
    """`uint16` or `uint32`, little-endian."""
    vocab_size: int
    tokenizer_hash: str
    """SHA-256 of the tokenizer's entries and their ids."""
    end_of_text: int
    """Id that ends every document."""
    shards: Mapping[Split, tuple[Shard, ...]]
    documents: Mapping[Split, int]
    text_bytes: Mapping[Split, int]
    """UTF-8 bytes of the documents kept."""
    duplicates: int
    """Documents dropped because an identical one came before, or is held out."""
    skipped: int
    """Documents dropped because they were empty, or not UTF-8."""

    def tokens(self, split: Split) -> int:
        """Tokens of a split."""
        return sum(shard.tokens for shard in self.shards[split])

    @property
    def hash(self) -> str:
        """SHA-256 over everything that decides the tokens, wherever the shards lie."""
        content = {
            "vocab_size": self.vocab_size,
            "tokenizer": self.tokenizer_hash,
            "dtype": self.dtype,
            "shards": {split: [(s.tokens, s.sha256) for s in self.shards[split]] for split in SPLITS},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """The text of index.json."""
        value = {"format": FORMAT, "hash": self.hash, **asdict(self)}
        del value["folder"]
        return json.dumps(value, indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Index:
        """The index of a prepared folder, checked for itself but not against the shards.

        Raises:
            DataError: index.json is damaged, of another format, or its vocabulary does not fit its dtype.
            FileNotFoundError: there is no index.json.
        """
        path = folder / "index.json"
        remedy = f"delete {folder} and prepare again"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value.pop("format") != FORMAT:
                raise DataError(f"{path} is of another version of this program: {remedy}")
            stated = value.pop("hash")
            value["shards"] = {split: tuple(Shard(**s) for s in value["shards"][split]) for split in SPLITS}
            index = cls(folder=folder, **value)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path} is damaged: {remedy}") from None
        if index.dtype not in ("uint16", "uint32") or index.vocab_size > np.iinfo(index.dtype).max + 1:
            raise DataError(f"{path}: a vocabulary of {index.vocab_size} does not fit {index.dtype}: {remedy}")
        if index.hash != stated:
            raise DataError(f"{path} contradicts its own hash: {remedy}")
        return index

    def check_sizes(self, split: Split) -> None:
        """Compare the size of every shard of a split with the index: what a start of training can afford.

        Raises:
            DataError: a shard is missing, truncated, or too long.
        """
        for shard in self.shards[split]:
            path = self.folder / shard.file
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                raise DataError(f"{path} is missing: delete {self.folder} and prepare again") from None
            if size != shard.bytes or size != shard.tokens * np.dtype(self.dtype).itemsize:
                raise DataError(
                    f"{path} has {size} bytes, its index says {shard.tokens} tokens in {shard.bytes}: "
                    f"the shard is damaged; delete {self.folder} and prepare again"
                )

    def verify(self) -> None:
        """Read every shard and compare its SHA-256 with the index.

        Raises:
            DataError: a shard is missing or not what was written.
        """
        for split in SPLITS:
            self.check_sizes(split)
            for shard in self.shards[split]:
                if file_sha256(self.folder / shard.file) != shard.sha256:
                    raise DataError(
                        f"{self.folder / shard.file} is not what was written (its SHA-256 differs): "
                        f"delete {self.folder} and prepare again"
                    )


def load_index(config: DataConfig, data_folder: str | Path) -> Index:
    """The index of a corpus's shards.

    Args:
        config: the corpus.
        data_folder: where corpora's folders are.

    Raises:
        DataError: the corpus is not prepared, or its index is damaged or made for another vocabulary.
    """
    folder = Path(data_folder) / config.folder_name
    try:
        index = Index.read(folder)
    except (FileNotFoundError, NotADirectoryError):
        command = f"python -m scaling prepare configs/data/{config.name}.yaml"
        state = "is not prepared to the end" if folder.is_dir() else "is not prepared"
        raise DataError(f"corpus {config.name} {state} ({folder}): run `{command}`") from None
    if index.vocab_size != config.vocab_size:
        raise DataError(
            f"{folder} has a vocabulary of {index.vocab_size}, the configuration {config.vocab_size}: "
            f"delete {folder} and prepare again"
        )
    return index


class TokenReader:
    """Windows of one split, read through memory maps."""

    def __init__(self, index: Index, split: Split, seq_len: int):
        """Map the shards.

        Args:
            index: a prepared corpus.
            split: which part.
            seq_len: T, tokens in a sequence.

        Raises:
            DataError: a shard is missing, truncated or too long, or the split holds no window.
        """
        index.check_sizes(split)
        self.index, self.split, self.seq_len = index, split, seq_len
        self.n_tokens = index.tokens(split)
        self.n_windows = max(0, self.n_tokens - 1) // seq_len
        if self.n_windows == 0:
            raise DataError(
                f"{index.folder} has {self.n_tokens} {split} tokens, fewer than one sequence of {seq_len} and its "
                "last target: prepare a larger corpus, or lower train.seq_len"
            )
        dtype = np.dtype(index.dtype).newbyteorder("<")
        # Plain views of the maps: slicing np.memmap itself costs several times as much.
        self._shards = [np.memmap(index.folder / s.file, dtype, "r").view(np.ndarray) for s in index.shards[split]]
        self._starts = np.cumsum([0, *(s.tokens for s in index.shards[split])]).tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        # A loader's worker maps the files again; pickling the maps would copy the corpus.
        return TokenReader, (self.index, self.split, self.seq_len)

    def windows(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Tokens of windows.

        Args:
            indices: (B,) whole numbers from 0 to below n_windows.

        Returns:
            (B, T + 1): `[:, :-1]` are the inputs, `[:, 1:]` the targets.

        Raises:
            IndexError: there is no such window.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.n_windows):
            raise IndexError(f"windows {wanted.min()} to {wanted.max()} of a split of {self.n_windows}")
        tokens = np.empty((len(wanted), self.seq_len + 1), dtype=np.int64)
        for row, start in zip(tokens, (wanted * self.seq_len).tolist(), strict=True):
            self._copy(start, row)
        return tokens

    def _copy(self, start: int, row: npt.NDArray[np.int64]) -> None:
        shard = bisect_right(self._starts, start) - 1
        done = 0
        while done < len(row):
            offset = start + done - self._starts[shard]
            piece = self._shards[shard][offset : offset + len(row) - done]
            row[done : done + len(piece)] = piece
            done += len(piece)
            shard += 1


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
