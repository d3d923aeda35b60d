"""What a process beside a node gives up: memory and processor time go to the node first, and it never outlives the process that started it.

For the process itself to call, first of all.  Everything but the bound on memory is Linux's; elsewhere it is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

NICENESS = 10
OOM_SCORE_ADJ = 1000  # the kernel, out of memory, ends this process before any other
_OOM_FILE = Path("/proc/self/oom_score_adj")
_PR_SET_PDEATHSIG = 1


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
