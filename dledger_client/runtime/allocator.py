"""The C allocator's settings for a process that sends or reads much: on request, since they hold for the whole process.

A program asks with ``DLEDGER_KEEP_LARGE_BLOCKS=1`` in its environment; the command line and Spark's workers ask for their own processes.

A producer encodes batches of 1 MiB, a consumer receives chunks of 2 MiB.  By default glibc maps new memory for each and gives it back,
some 250 page faults a batch, which costs as much as encoding it (benchmarks/history).  Set to keep blocks of up to 32 MiB in its heap,
it serves them from there; up to 64 MiB at the heap's end stay with the process.
"""

from __future__ import annotations

import os
import sys
from functools import cache

KEEP_LARGE_BLOCKS = "DLEDGER_KEEP_LARGE_BLOCKS"

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
KEPT_BLOCK_BYTES = 32 << 20  # the most that glibc takes
KEPT_TOP_BYTES = 64 << 20
TOP_PAD_BYTES = 4 << 20


@cache
def keep_large_blocks() -> None:
    """Set it once a process.  Settings for malloc in the environment have precedence; other C libraries have none."""
    is_set = any(name.startswith("MALLOC_") and name.endswith("_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if is_set or not sys.platform.startswith("linux"):
        return
    import ctypes  # takes some time to load

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES), (M_TRIM_THRESHOLD, KEPT_TOP_BYTES), (M_TOP_PAD, TOP_PAD_BYTES)):
            mallopt(parameter, value)
