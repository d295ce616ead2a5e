"""How long a batch takes to read: to be compared with the seconds of a training step.

    OMP_NUM_THREADS=1 python benchmarks/loader.py

Writes random tokens to a temporary folder and reads shuffled batches of them through the DataLoader that training uses.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

from scaling.data.batches import BatchOrder, TrainingBatches, chain
from scaling.data.shards import Index, Shard, TokenReader, file_sha256

TOKENS = 50_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = random_corpus(Path(folder))
        for sequences, seq_len in ((32, 256), (64, 512), (128, 2048)):
            reader = TokenReader(index, "train", seq_len)
            order = BatchOrder(reader.n_windows, seq_len, sequences, seed=0, allow_repeat=True)
            batches = TrainingBatches(reader, order, steps=200, micro_batch=sequences)
            started = time.perf_counter()
            for _ in DataLoader(batches, batch_size=None):
                pass
            read = (time.perf_counter() - started) / 200
            started = time.perf_counter()
            chained = ""
            for step in range(200):
                chained = chain(chained, reader, order.batch(step))
            hashed = (time.perf_counter() - started) / 200
            rate = sequences * seq_len / read / 1e6
            print(
                f"{sequences} x {seq_len}: {1e3 * read:.2f} ms a batch, {rate:.0f} million tokens/s; "
                f"{1e3 * hashed:.2f} ms more to chain its hash"
            )


def random_corpus(folder: Path) -> Index:
    path = folder / "train_00000.bin"
    np.random.default_rng(0).integers(0, 4096, TOKENS, dtype=np.uint16).astype("<u2").tofile(path)
    shard = Shard(path.name, TOKENS, path.stat().st_size, file_sha256(path))
    return Index(
        folder=folder,
        config={},
        source={},
        dtype="uint16",
        vocab_size=4096,
        tokenizer_hash="",
        end_of_text=0,
        shards={"train": (shard,), "validation": ()},
        documents={},
        text_bytes={},
        duplicates=0,
        skipped=0,
    )


if __name__ == "__main__":
    main()
