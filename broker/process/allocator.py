"""The C allocator's settings for node processes.

Every large message takes a block and frees it; by default glibc maps and unmaps each, which costs as much as the copy.  Set
to keep blocks up to 1 GiB in its heap and to hand back only above 256 MiB of free top, 256 KiB and 1 MiB messages pass at twice the
rate (benchmarks/history has both figures and what it costs in anonymous memory).  glibc reads these once, at process start.
"""

from __future__ import annotations

import os
import sys

MALLOC_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
}


def restart_with_malloc_settings() -> None:
    """Replace this process by itself with the settings in its environment, unless they are there (a user that sets one, sets them all)."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in MALLOC_SETTINGS):
        return
    os.environ.update(MALLOC_SETTINGS)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command again, without a shell
