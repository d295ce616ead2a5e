"""How fast a corpus becomes tokens, and how much memory that takes.

Prepares the standard library's sources, or the files given, from scratch in a temporary folder:

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/prepare.py [FILE ...]

Prints MB of text a second of the whole, MB a second of processor time (what counts where others use the machine too),
and the peak resident memory in MiB.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time

from scaling.config import DataConfig
from scaling.data.prepare import prepare


def main(files: list[str]) -> None:
    config = DataConfig(
        name="benchmark", source="files" if files else "python", train_files=files, validation_fraction=0.05
    )
    with tempfile.TemporaryDirectory() as folder:
        started, processor = time.perf_counter(), time.process_time()
        index = prepare(config, folder)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
    megabytes = sum(index.text_bytes.values()) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{megabytes:.1f} MB in {seconds:.1f} s: {megabytes / seconds:.1f} MB/s, {megabytes / processor:.1f} MB a "
        f"second of processor time; peak {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
