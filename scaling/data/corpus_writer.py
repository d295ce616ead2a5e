"""Documents to tokens: drop duplicates, hold out, encode, write, commit."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scaling.config import DataConfig
from scaling.data.progress import Place, ProgressFile
from scaling.data.shards import SPLITS, Index, Split
from scaling.data.sources import Documents, Source
from scaling.data.tokenizer import PublishedTokenizer, Tokenizer
from scaling.data.writer import ShardWriter, write_whole
from scaling.errors import DataError

COMMIT_BYTES = 8_000_000
"""Text between two commits of the progress: what a kill can cost."""


class CorpusWriter:
    """Documents in, tokens out, committed now and then."""

    def __init__(
        self,
        config: DataConfig,
        folder: Path,
        source: Source,
        tokenizer: Tokenizer,
        file: ProgressFile,
        place: Place,
        shard_tokens: int,
    ):
        """Go on from `place`."""
        self.config, self.folder, self.source, self.tokenizer = config, folder, source, tokenizer
        self.file, self.place = file, place
        self.dtype = "uint16" if config.vocab_size <= 2**16 else "uint32"
        self.writers = {
            split: ShardWriter(folder, split, self.dtype, shard_tokens, place.shards[split], place.open_tokens[split])
            for split in SPLITS
        }
        self._uncommitted = 0
        self._full = False

    def steps(self) -> Iterator[None]:
        """Read the source to the end, or to max_train_tokens, yielding now and then.

        Held-out files come first, so that a training document that is also in them is known as a duplicate.
        """
        for split in ("validation", "train"):
            parts = self.source.parts[split]
            while self.place.parts[split] < len(parts) and not self._full:
                for texts in _after(parts[self.place.parts[split]].read(), self.place.rows):
                    self.place.rows += len(texts)
                    self._take(split, texts)
                    if self._full:
                        break
                    if self._uncommitted >= COMMIT_BYTES:
                        self._commit()
                    yield
                self.place.parts[split] += 1
                self.place.rows = 0

    def finish(self) -> Index:
        """Close the shards and write the index."""
        place, config = self.place, self.config
        if not place.documents["train"]:
            raise DataError(f"corpus {config.name} is empty: no document with text in {self.source.where}")
        if not place.documents["validation"]:
            raise DataError(
                f"corpus {config.name} has no validation document: raise data.validation_fraction "
                f"({config.validation_fraction}), pass data.validation_files, or take a larger corpus"
            )
        for writer in self.writers.values():
            writer.close()
        if isinstance(self.tokenizer, PublishedTokenizer):
            self.tokenizer.save(self.folder)
        index = Index(
            folder=self.folder,
            config=config.identity(),
            source=place.source,
            dtype=self.dtype,
            vocab_size=config.vocab_size,
            tokenizer_hash=self.tokenizer.hash,
            end_of_text=self.tokenizer.end_of_text,
            shards={split: tuple(self.writers[split].shards) for split in SPLITS},
            documents=place.documents,
            text_bytes=place.text_bytes,
            duplicates=place.duplicates,
            skipped=place.skipped,
        )
        write_whole(self.folder / "index.json", index.to_json())
        return index

    def _take(self, split: Split, texts: list[str | None]) -> None:
        """Encode and write the documents among `texts` that are new."""
        place = self.place
        kept: list[tuple[Split, str, int]] = []
        for text in texts:
            if not text:
                place.skipped += 1
                continue
            digest, size = _digest(text)
            self._uncommitted += size
            if not self.file.is_new(digest):
                place.duplicates += 1
            else:
                held_out = not self.source.parts["validation"] and _held_out(digest, self.config)
                kept.append(("validation" if held_out else split, text, size))
        for (target, _, size), ids in zip(kept, self.tokenizer.encode([text for _, text, _ in kept]), strict=True):
            ids = np.append(ids, self.tokenizer.end_of_text)
            if target == "train" and self.config.max_train_tokens is not None:
                ids = ids[: self.config.max_train_tokens - self.writers["train"].tokens]
                self._full = self.writers["train"].tokens + len(ids) == self.config.max_train_tokens
            self.writers[target].append(ids)
            place.documents[target] += 1
            place.text_bytes[target] += size
            if self._full:
                return

    def _commit(self) -> None:
        for split, writer in self.writers.items():
            writer.sync()
            self.place.shards[split], self.place.open_tokens[split] = writer.shards, writer.open_tokens
        self.file.commit(self.place)
        self._uncommitted = 0


def training_text(config: DataConfig, source: Source) -> Iterator[str]:
    """The first bpe_bytes of training documents, duplicates left out."""
    seen = set()
    room = config.bpe_bytes
    for part in source.parts["train"]:
        for text in itertools.chain.from_iterable(part.read()):
            if not text:
                continue
            digest, size = _digest(text)
            if digest in seen or (not source.parts["validation"] and _held_out(digest, config)):
                continue
            seen.add(digest)
            yield text if size <= room else text.encode()[:room].decode(errors="ignore")
            room -= size
            if room <= 0:
                return


def _digest(text: str) -> tuple[bytes, int]:
    """Hash of a document, and its UTF-8 bytes."""
    data = text.encode()
    return hashlib.blake2b(data, digest_size=16).digest(), len(data)


def _held_out(digest: bytes, config: DataConfig) -> bool:
    return int.from_bytes(digest[:8], "big") < config.validation_fraction * 2**64


def _after(documents: Documents, rows: int) -> Documents:
    """What comes after the first `rows` documents."""
    for texts in documents:
        if rows < len(texts):
            yield texts[rows:]
        rows = max(0, rows - len(texts))
