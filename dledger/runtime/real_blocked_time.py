"""How long a thread was blocked: by a disk, not by a busy machine.

What a sync takes by the clock has in it what the thread computed, and how long it could run and had no core.  Neither says anything about
the disk, and on a busy machine they are most of it.  Linux reports the latter (``schedstat``, in ns, the second field); elsewhere a busy
machine makes its disk look slow.
"""

from __future__ import annotations

import os
import threading
import time
from io import FileIO

_PATH = "/proc/thread-self/schedstat"


class _ThreadsFile(FileIO):
    """Closed when its thread ends."""

    def __del__(self) -> None:
        self.close()


class _Opened(threading.local):
    """The thread's own file; None where there is none."""

    def __init__(self) -> None:
        self.file: _ThreadsFile | None = None
        try:
            self.file = _ThreadsFile(_PATH)
        except OSError:
            return


_opened = _Opened()


def _not_blocked_s() -> float:
    """How long this thread has run, or waited for a core, since it began."""
    file = _opened.file
    if file is None:
        return time.thread_time()
    try:
        return time.thread_time() + int(os.pread(file.fileno(), 64, 0).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return time.thread_time()


class BlockedTime:
    """Of the calling thread, from here on."""

    __slots__ = ("_began_s", "_not_blocked_s")

    def __init__(self) -> None:
        self._began_s, self._not_blocked_s = time.monotonic(), _not_blocked_s()

    def so_far_s(self) -> float:
        elsewhere_s = _not_blocked_s() - self._not_blocked_s
        return max(0.0, time.monotonic() - self._began_s - elsewhere_s)
