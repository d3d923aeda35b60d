"""One open file behind the ``File`` interface.

What is written runs on the thread that writes the file, in the order of submission; only ``write_now`` runs on the event loop itself,
while that thread has nothing to do (``sync_pace.py`` says when).  Files with a ``DirectWriter`` bypass the page cache on writes and are
read through it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from dledger.runtime.env import WRITE_NOW_BYTES, After, Buffer, Place, SocketHandle
from dledger.runtime.real_direct import DirectWriter
from dledger.runtime.real_sending import first_bytes, is_at_hand, peek_each, send_places
from dledger.runtime.real_system_calls import allocate, fdatasync, naming, pread_all, pwrite_all
from dledger.runtime.real_threads import DiskThreads, Workers
from dledger_wire.check import require

_T = TypeVar("_T")

READ_AHEAD_FROM = 256 << 10  # reads of at least that much, each a little behind the one before, are taken for a stream
READ_AHEAD_BYTES = 8 << 20
SEND_NOW_BYTES = 1 << 20  # of what the page cache has, before others have their turn on the event loop


class RealFile:
    """An open file, written by ``writer``; ``direct``: around the page cache."""

    def __init__(self, threads: DiskThreads, writer: Workers, fd: int, path: str, direct: DirectWriter | None = None) -> None:
        self._threads = threads
        self._writer = writer
        self._fd = fd
        self._path = path
        self._read_to = -1  # where the last read ended
        self._direct = direct
        self._aside_running = 0
        self._aside_changed = threading.Condition()

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        if not sync:
            await self._writer.submit(lambda: self._write_named(pos, buffers))
        elif self._is_for_the_loop(buffers):
            await self._writer.submit(lambda: self._threads.timed(lambda: self._write_synced(pos, buffers, after)))
        else:
            await self._writer.submit(lambda: self._write_synced(pos, buffers, after))

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        if not (self._threads.writes_now and self._is_for_the_loop(buffers)):
            return False
        self._threads.timed(lambda: self._write_synced(pos, buffers, after))
        return True

    def _is_for_the_loop(self, buffers: Sequence[Buffer]) -> bool:
        """Whether the event loop would write so much to this file: then its duration decides whether it may."""
        return not self._threads.is_beside(self._writer) and sum(len(buffer) for buffer in buffers) <= WRITE_NOW_BYTES

    def _write_synced(self, pos: int, buffers: Sequence[Buffer], after: After | None) -> None:
        self._write_named(pos, buffers)
        fdatasync(self._open_fd(), self._path)
        if after is not None:
            require(isinstance(after.file, RealFile), "a file of another disk")
            cast(RealFile, after.file)._write_named(after.pos, [after.data])

    def _write_named(self, pos: int, buffers: Sequence[Buffer]) -> None:
        with naming(self._path):
            self._write(pos, buffers)

    def _write(self, pos: int, buffers: Sequence[Buffer]) -> None:
        if self._direct is None:
            pwrite_all(self._open_fd(), pos, buffers)
        else:
            self._write_direct(self._direct, pos, buffers)

    def _write_direct(self, direct: DirectWriter, pos: int, buffers: Sequence[Buffer]) -> None:
        try:
            direct.write(pos, buffers)
        except OSError as error:
            direct.forget()
            if error.errno != errno.EINVAL:
                raise
            # Some file systems open a file for direct writes and then take none: this one is written the ordinary way from now on.
            self._direct = None
            direct.close()
            pwrite_all(self._open_fd(), pos, buffers)

    async def pread(self, pos: int, size: int) -> bytes:
        return await self._aside(lambda: self._read(pos, size))

    def _read(self, pos: int, size: int) -> bytes:
        fd = self._open_fd()
        with naming(self._path):
            data = pread_all(fd, pos, size)
        if self._direct is not None:
            # What is written around the page cache has to be read from the disk: a reader that goes on finds it there already.
            if 0 <= pos - self._read_to <= READ_AHEAD_BYTES and len(data) >= READ_AHEAD_FROM:
                os.posix_fadvise(fd, pos + len(data), READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            self._read_to = pos + len(data)
        return data

    async def pread_each(self, places: Sequence[Place]) -> list[bytes]:
        found = peek_each(self._open_fd(), places)
        return found if found is not None else await self._aside(lambda: self._read_each(places))

    def _read_each(self, places: Sequence[Place]) -> list[bytes]:
        with naming(self._path):
            return [pread_all(self._open_fd(), pos, size) for pos, size in places]

    async def send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        first = first_bytes(places, SEND_NOW_BYTES)
        if is_at_hand(self._open_fd(), first):
            return send_places(self._open_fd(), target, first)
        return await self._aside(lambda: self._send(target, places))

    def _send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        fd = self._open_fd()
        for pos, size in places:
            os.posix_fadvise(fd, pos, size + READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        return send_places(fd, target, places)

    async def fdatasync(self) -> None:
        await self._writer.submit(lambda: fdatasync(self._open_fd(), self._path))

    async def allocate(self, size: int, *, fill: bool) -> None:
        await self._aside(lambda: allocate(self._open_fd(), self._direct, size, fill, self._path))

    async def truncate(self, size: int) -> None:
        def truncate() -> None:
            with naming(self._path):
                os.ftruncate(self._open_fd(), size)
            if self._direct is not None:
                self._direct.truncated(size)

        await self._writer.submit(truncate)

    async def size(self) -> int:
        return await self._aside(lambda: os.fstat(self._open_fd()).st_size)

    async def close(self) -> None:
        """Close after everything submitted before; idempotent."""
        await self._writer.submit(self.close_now)

    def close_now(self) -> None:
        """On the write thread."""
        # What runs aside may outlive its cancelled caller; its descriptor must not become another file's meanwhile.
        with self._aside_changed:
            self._aside_changed.wait_for(lambda: self._aside_running == 0)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._direct is not None:
                self._direct.close()

    async def _aside(self, function: Callable[[], _T]) -> _T:
        with self._aside_changed:
            self._aside_running += 1

        def run() -> _T:
            try:
                return function()
            finally:
                with self._aside_changed:
                    self._aside_running -= 1
                    self._aside_changed.notify_all()

        return await self._threads.aside(run)

    def _open_fd(self) -> int:
        require(self._fd >= 0, "file %s is used after it was closed", self._path)
        return self._fd
