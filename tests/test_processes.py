"""The tests' own look at other processes."""

import subprocess
import sys

import pytest
from processes import children_of, lives, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel")

BUSY = "import subprocess\nwhile True: subprocess.run(['true'])"


@pytest.fixture
def busy():
    """A process that starts others one after the other, each of which ends at once."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def test_children_may_end_while_they_are_looked_at(busy):
    seen = set()

    def seen_many():
        seen.update(children_of(busy.pid))
        return len(seen) >= 500

    wait_until(seen_many, pause=0)
    assert lives(busy.pid)
    busy.kill()
    wait_until(lambda: not lives(busy.pid))
    assert children_of(busy.pid) == {}
