"""Freed memory stays in the process: a step does not fetch its pages again."""

import subprocess
import sys

import pytest

CHURN = """
import resource, sys
from scaling.process import keep_heap
if sys.argv[1] == "kept":
    assert keep_heap()
for _ in range(20):
    block = b"x" * (64 << 20)
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_kept():
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", CHURN, mode], capture_output=True, check=True).stdout)
        for mode in ("kept", "given back")
    }
    pages = 20 * (64 << 20) // 4096
    assert faults["given back"] > pages / 2
    assert faults["kept"] < pages / 4
