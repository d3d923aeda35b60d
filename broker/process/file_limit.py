"""The process's limit of open files and connections: as high as it may be."""

from __future__ import annotations

import contextlib
import resource


def raise_handle_limit() -> int:
    """Raise the soft limit to the hard one; the limit from now on (-1: none)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
