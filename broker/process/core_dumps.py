"""What the kernel writes of this process when it crashes: nothing, since its memory holds keys, verifiers and messages."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

# Which kinds of memory a dump has; also one that is handed to a program (core_pattern), which the limit does not stop.
FILTER = Path("/proc/self/coredump_filter")


def forbid_core_dumps() -> None:
    """No core file, and no memory in what a program of the system is given in place of one."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        FILTER.write_text("0")
