"""Keep freed memory in the process, so that a CPU training step does not fetch its pages again."""

import ctypes
import ctypes.util
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_heap() -> bool:
    """Tell glibc never to give memory back nor to map large blocks apart; False where there is no glibc.

    Without this a narrow model's step can take several times as long: each large activation is returned to the
    system when freed, and faulted in page by page when allocated again.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(ctypes.util.find_library("c")).mallopt
    except (OSError, AttributeError):
        return False
    never = 2**31 - 1
    return all((mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, never), mallopt(_M_TOP_PAD, 64 << 20)))
