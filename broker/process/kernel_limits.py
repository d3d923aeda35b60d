"""What a process asks of the kernel at its start: open files and no core dumps for a node, low priority for a process beside one.

Everything but the bounds on memory and files is Linux's; elsewhere it is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

# Which kinds of memory a dump has; also one that is handed to a program (core_pattern), which the limit does not stop.
FILTER = Path("/proc/self/coredump_filter")
NICENESS = 10
OOM_SCORE_ADJ = 1000  # the kernel, out of memory, ends this process before any other
_OOM_FILE = Path("/proc/self/oom_score_adj")
_PR_SET_PDEATHSIG = 1


def raise_handle_limit() -> int:
    """Raise the soft limit of open files and connections to the hard one; the limit from now on (-1: none)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def forbid_core_dumps() -> None:
    """No core file, and no memory in what a program of the system is given in place of one: it holds keys, verifiers and messages."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        FILTER.write_text("0")


def take_low_priority(max_memory_bytes: int) -> None:
    """Lower this process's priority, bound its memory, and let the kernel kill it when the process that started it has ended.

    Args:
        max_memory_bytes: What it may write to (heap, anonymous maps and stacks of threads); an allocation beyond fails.
    """
    _end_with_parent()
    with contextlib.suppress(OSError):
        _OOM_FILE.write_text(str(OOM_SCORE_ADJ))
    os.nice(NICENESS)
    with contextlib.suppress(OSError, ValueError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (max_memory_bytes, max_memory_bytes))


def _end_with_parent() -> None:
    """Also when the parent is killed and this process hangs.  Whose parent ended before this call finds its standard input ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
