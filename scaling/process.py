"""What a process asks of the system and of libraries: kept memory, an end with the process that started it, silence."""

import ctypes
import ctypes.util
import logging
import os
import signal
import sys
import warnings

PARENT = "SCALING_PARENT"
"""Environment variable with the number of the process that started this one: a sweep, or a run's first process."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_PR_SET_PDEATHSIG = 1


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


def is_first_process() -> bool:
    """Whether this process keeps a run's records; it starts one more for every further device."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def end_with_parent(ending: signal.Signals = signal.SIGTERM) -> None:
    """Have the system send `ending` to this process when the one that started it dies, so that its device is free."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(ending))
    if str(os.getppid()) != parent:  # it died before the call
        os.kill(os.getpid(), ending)


def quieten_libraries() -> None:
    """Keep libraries' remarks on the machine, on loaders and on kernels from what a command prints."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)  # vmap's, of Muon
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nothing here changes in place
