"""Direct writes: any position and any size of a file, in whole aligned blocks with O_DIRECT.

A write through the page cache into blocks that are not cached costs some 2.7 s of CPU a GB (pages are allocated, zeroed and written back),
a direct one 0.1 s (benchmarks/history); the log's own cache serves tail reads.  Owns one file's alignment: the bytes around a write
inside its first and last block are preserved.  The file's size is rounded up to whole blocks; what is beyond the bytes written reads as
zeros.  Used by one thread at a time, the disk's write thread.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence

from dledger.runtime.env import Buffer

BLOCK = 4096
STAGE_BYTES = 2 << 20
WINDOW_BYTES = 1 << 20  # how far ahead a file is looked at, to learn that it holds only zeros there
_EVERYWHERE = sys.maxsize
_ZEROS = mmap.mmap(-1, 1 << 20)


def new_stage() -> mmap.mmap:
    """Aligned memory that writes are put together in; one for all files of a write thread."""
    return mmap.mmap(-1, STAGE_BYTES)


def open_direct(path: str) -> int | None:
    """A descriptor for direct writes, None where the platform or the file system has none."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | flag)
    except OSError:
        return None


class DirectWriter:
    """Direct writes to one open file.  ``fd`` reads it through the page cache, ``direct_fd`` writes it around."""

    def __init__(self, fd: int, direct_fd: int, stage: mmap.mmap) -> None:
        self._fd = fd
        self._direct_fd = direct_fd
        self._stage = memoryview(stage)
        self._tail_pos = -1  # the block written last, when it was not whole, and all of its bytes
        self._tail = b""
        # Known zeros: from the highest byte written, as far as the file was looked at.  No other writer writes anything but zeros.
        self._written_to = 0
        self._zeros_to = 0 if os.fstat(fd).st_size else _EVERYWHERE

    def close(self) -> None:
        os.close(self._direct_fd)

    def truncated(self, size: int) -> None:
        """The file was cut at, or grown to, ``size``."""
        self._tail_pos, self._tail = -1, b""
        self._written_to, self._zeros_to = size, _EVERYWHERE

    def forget(self) -> None:
        """A write failed part of the way: look at the file again."""
        self._tail_pos, self._tail = -1, b""
        self._written_to = self._zeros_to = 0

    def write(self, pos: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other from ``pos``; whole or OSError."""
        stage = self._stage
        start = pos - pos % BLOCK
        at = pos - start
        head_kept = at > 0
        if head_kept:
            stage[:BLOCK] = self._whole_block(start)
        tail_pos, tail = self._tail_pos, self._tail
        self._tail_pos = -1
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            done, size = 0, len(view)
            while done < size:
                take = min(size - done, STAGE_BYTES - at)
                stage[at : at + take] = view[done : done + take]
                at, done = at + take, done + take
                if at == STAGE_BYTES:
                    self._put(start, at)
                    start, at, head_kept = start + at, 0, False
        end = start + at
        rest = at % BLOCK
        if rest:
            last = at - rest
            if last or not head_kept:
                known = tail if start + last == tail_pos else self._block_behind(end)
                stage[at : last + BLOCK] = known[rest:]
            self._put(start, last + BLOCK)
            self._tail_pos, self._tail = start + last, bytes(stage[last : last + BLOCK])
        elif at:
            self._put(start, at)
        self._written_to = max(self._written_to, end)

    def fill(self, pos: int, end: int) -> int:
        """Write zeros from ``pos`` towards ``end``, whole blocks only; where they end (``pos`` when that is not aligned)."""
        if pos % BLOCK:
            return pos
        end -= end % BLOCK
        view = memoryview(_ZEROS)
        while pos < end:
            pos += os.pwrite(self._direct_fd, view[: min(len(view), end - pos)], pos)
        return pos

    def _put(self, pos: int, size: int) -> None:
        done = 0
        while done < size:
            done += os.pwrite(self._direct_fd, self._stage[done:size], pos + done)

    def _whole_block(self, pos: int) -> bytes:
        """A block's bytes as they are, zeros beyond the file's end."""
        if pos == self._tail_pos:
            return self._tail
        return os.pread(self._fd, BLOCK, pos).ljust(BLOCK, b"\0")

    def _block_behind(self, end: int) -> bytes:
        """The block in which a write ends at ``end``, of which only what lies behind ``end`` counts."""
        block = end - end % BLOCK
        if end >= self._written_to and block + BLOCK <= self._zeros_to:
            return bytes(BLOCK)
        window = os.pread(self._fd, WINDOW_BYTES, block)
        if end >= self._written_to and not any_set(window[end - block :]):
            self._zeros_to = block + WINDOW_BYTES if len(window) == WINDOW_BYTES else _EVERYWHERE
        return window[:BLOCK].ljust(BLOCK, b"\0")


def any_set(data: bytes) -> bool:
    """Whether any byte is not zero."""
    return data.count(0) != len(data)
