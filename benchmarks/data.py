"""How fast text becomes tokens, and how long a batch of them takes to read.

    python benchmarks/data.py [FILE ...] [--out FILE]

Prepares the standard library's sources, or the files given, from scratch in a temporary folder, and reads shuffled
batches of random tokens through the DataLoader that training uses. The loader's time a batch is to be compared with
the seconds of a training step of the same tokens.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from contenders import SHAPES
from record import record
from torch.utils.data import DataLoader

from scaling.config import DataConfig
from scaling.data.batches import BatchOrder, TrainingBatches, chain
from scaling.data.prepare import prepare
from scaling.data.shards import Index, Shard, TokenReader, file_sha256

TOKENS = 50_000_000
STEPS = 200


def prepared(files: list[str]) -> dict[str, float]:
    """MB of text a second, of wall-clock and of processor time, and the peak memory in bytes."""
    config = DataConfig(
        name="benchmark", source="files" if files else "python", train_files=files, validation_fraction=0.05
    )
    with tempfile.TemporaryDirectory() as folder:
        started, processor = time.perf_counter(), time.process_time()
        index = prepare(config, folder)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
    megabytes = sum(index.text_bytes.values()) / 1e6
    return {
        "megabytes": megabytes,
        "megabytes_per_second": megabytes / seconds,
        "megabytes_per_processor_second": megabytes / processor,
        "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def loaded(index: Index, sequences: int, seq_len: int) -> dict[str, float]:
    """Milliseconds to read one global batch, and to chain its hash."""
    reader = TokenReader(index, "train", seq_len)
    order = BatchOrder(reader.n_windows, seq_len, sequences, seed=0, allow_repeat=True)
    batches = TrainingBatches(reader, order, steps=STEPS, micro_batch=sequences)
    started = time.perf_counter()
    for _ in DataLoader(batches, batch_size=None):
        pass
    read = (time.perf_counter() - started) / STEPS
    started = time.perf_counter()
    chained = ""
    for step in range(STEPS):
        chained = chain(chained, reader, order.batch(step))
    return {"read_ms": 1e3 * read, "hash_ms": 1e3 * (time.perf_counter() - started) / STEPS}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    given = parser.parse_args()
    result: dict[str, Any] = {"prepare": prepared(given.files)}
    rate = result["prepare"]
    print(
        f"prepare: {rate['megabytes']:.1f} MB at {rate['megabytes_per_second']:.1f} MB/s, "
        f"{rate['megabytes_per_processor_second']:.1f} MB a second of processor time; "
        f"peak {rate['peak'] / 2**20:.0f} MiB"
    )
    with tempfile.TemporaryDirectory() as folder:
        index = random_corpus(Path(folder))
        for sequences, seq_len in sorted({(s.sequences, s.seq_len) for s in SHAPES.values()} | {(128, 2048)}):
            times = result[f"load {sequences} x {seq_len}"] = loaded(index, sequences, seq_len)
            rate = sequences * seq_len / times["read_ms"] / 1e3
            print(
                f"load {sequences} x {seq_len}: {times['read_ms']:.2f} ms a batch, {rate:.0f} million tokens/s; "
                f"{times['hash_ms']:.2f} ms more to chain its hash"
            )
    record(given.out, result)


if __name__ == "__main__":
    main()
