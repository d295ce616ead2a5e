"""Files that survive being cut off: shards that go on from a known length, and small files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from scaling.data.shards import Shard, Split, file_sha256
from scaling.errors import DataError


class ShardWriter:
    """Writes the shards of one split, all of `shard_tokens` but the last."""

    def __init__(
        self, folder: Path, split: Split, dtype: str, shard_tokens: int, shards: list[Shard], open_tokens: int
    ):
        """Go on after `shards` and `open_tokens` in the next one; whatever else was written there is dropped.

        Raises:
            DataError: fewer tokens than that are there.
        """
        self.folder, self.split, self.shard_tokens = folder, split, shard_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.shards, self.open_tokens = list(shards), open_tokens
        self.tokens = sum(shard.tokens for shard in shards) + open_tokens
        """Tokens written."""
        self._file = self._open()
        length = open_tokens * self.dtype.itemsize
        for path, size in [*((folder / s.file, s.bytes) for s in shards), (self._path, length)]:
            if not path.exists() or path.stat().st_size < size:
                raise DataError(f"{path} has lost tokens since it was written: delete {folder} and prepare again")
        self._file.seek(length)
        self._file.truncate()

    def append(self, ids: npt.NDArray[np.integer[Any]]) -> None:
        """Write tokens, over as many shards as it takes."""
        while len(ids):
            if self.open_tokens == self.shard_tokens:
                self._finish()
                self._file = self._open()
                self._file.truncate(0)
            piece = ids[: self.shard_tokens - self.open_tokens]
            self._file.write(piece.astype(self.dtype).tobytes())
            self.open_tokens += len(piece)
            self.tokens += len(piece)
            ids = ids[len(piece) :]

    def sync(self) -> None:
        """Make what was written survive the machine."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish the last shard; without a token there is none."""
        if self.open_tokens:
            self._finish()
        else:
            self._file.close()
            self._path.unlink()

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.split}_{len(self.shards):05d}.bin"

    def _open(self) -> BinaryIO:
        return os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=1 << 20)

    def _finish(self) -> None:
        self.sync()
        self._file.close()
        size = self.open_tokens * self.dtype.itemsize
        self.shards.append(Shard(self._path.name, self.open_tokens, size, file_sha256(self._path)))
        self.open_tokens = 0


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader finds all of it or the one before."""
    temporary = path.with_name(f".{path.name}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
