"""Corpora to test on: shards made of given tokens, and text made of random words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling.data.shards import SPLITS, Index, Shard, Split, file_sha256


def make_index(
    folder: Path, train: list[int], validation: tuple[int, ...] = (1000,), dtype: str = "uint16", **changes: Any
) -> Index:
    """Write shards of the given lengths, filled with random tokens, and their index."""
    rng = np.random.default_rng(sum(train))
    shards: dict[str, tuple[Shard, ...]] = {}
    for split, lengths in zip(SPLITS, (train, validation), strict=True):
        made = []
        for i, length in enumerate(lengths):
            path = folder / f"{split}_{i:05d}.bin"
            rng.integers(0, 60_000, length).astype(np.dtype(dtype).newbyteorder("<")).tofile(path)
            made.append(Shard(path.name, length, path.stat().st_size, file_sha256(path)))
        shards[split] = tuple(made)
    fields: dict[str, Any] = {
        "folder": folder,
        "config": {"name": "test"},
        "source": {},
        "dtype": dtype,
        "vocab_size": 65_536,
        "tokenizer_hash": "none",
        "end_of_text": 0,
        "shards": shards,
        "documents": dict.fromkeys(SPLITS, 1),
        "text_bytes": dict.fromkeys(SPLITS, 1),
        "duplicates": 0,
        "skipped": 0,
    }
    index = Index(**(fields | changes))
    (folder / "index.json").write_text(index.to_json())
    return index


def tokens_of(index: Index, split: Split) -> np.ndarray:
    """All tokens of a split, read the obvious way."""
    dtype = np.dtype(index.dtype).newbyteorder("<")
    return np.concatenate([np.fromfile(index.folder / s.file, dtype) for s in index.shards[split]]).astype(np.int64)


def documents(n: int, seed: int = 0, words: int = 60) -> list[str]:
    """Different documents of random words out of 3,000."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäß", k=rng.randint(2, 9))) for _ in range(3000)]
    return [f"{seed}/{i} " + " ".join(rng.choices(vocabulary, k=words)) for i in range(n)]


def write_jsonl(path: Path, texts: Sequence[str | None], field: str = "text") -> str:
    """A file with a document a line."""
    path.write_text("".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)))
    return str(path)
