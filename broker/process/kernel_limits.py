"""Limits of the kernel that a node sets for itself at its start: as many open files as it may have, and no core dumps."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

# Which kinds of memory a dump has; also one that is handed to a program (core_pattern), which the limit does not stop.
FILTER = Path("/proc/self/coredump_filter")


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
