"""The environment of a node: clock, random source, disk and network, all injected.

Owns the interfaces.  ``dledger.runtime.real_env`` implements them on this machine; the simulator implements them in virtual time.  Timers
are asyncio's own (``loop.call_later``): the simulator runs its own event loop.  Nothing in dledger, store or broker reads the wall
clock, draws randomness, opens a file or a socket except through this.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dledger_wire.checksum import Buffer
from dledger_wire.clock import Clock, Random
from dledger_wire.rpc.stored import SocketHandle
from dledger_wire.rpc.transport import Network

__all__ = [
    "BLOCK_BYTES",
    "WRITE_NOW_BYTES",
    "After",
    "Buffer",
    "Clock",
    "Disk",
    "Environment",
    "File",
    "FolderSize",
    "Network",
    "Place",
    "Random",
    "SocketHandle",
    "SyncFailedError",
    "is_full",
]


# What the loss of a sector takes with it: no part of such a block can be written either, since the rest would have to be read.
BLOCK_BYTES = 4096
# The most that ``File.write_now`` takes: below, changing threads costs more than copying and writing.
WRITE_NOW_BYTES = 32 << 10


class SyncFailedError(OSError):
    """A sync failed: what was written before it may be lost, and a second sync would lie (ATC'20, fsync failures)."""


def is_full(error: OSError) -> bool:
    """Whether there was no room: the same may be tried again later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(error, SyncFailedError)


def is_unreadable(error: OSError) -> bool:
    """Whether what was to be read is lost: a bad sector, or a block that its file system finds damaged.  Others may pass."""
    return error.errno in (errno.EIO, errno.ENODATA, errno.EBADMSG)


def is_unwritable(error: OSError) -> bool:
    """Whether a write failed because the rest of its block cannot be read: the file has to be rebuilt as a whole."""
    return is_unreadable(error) and not isinstance(error, SyncFailedError)


class After(NamedTuple):
    """Bytes that go into another file in the same step, once what they speak of is synced."""

    file: File
    pos: int
    data: Buffer


# Where bytes of a file lie: their position and how many.
Place = tuple[int, int]


class File(Protocol):
    """An open file.  Operations that wait run off the event loop but for ``write_now``, writes in the order submitted; errors are OSError.

    After a sync raised ``SyncFailedError``, the file must not be trusted or retried: the owner stops.
    """

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        """Write the buffers one after the other from ``pos``; whole or OSError (part of them may then be written).

        ``sync``: an fdatasync follows in the same step, which saves a change of threads, and so does the write of ``after`` behind it,
        itself not synced; nothing of that is written when the sync fails.  The file may grow a little further than what was written, by
        zeros to the end of a block.
        """
        ...

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        """The same as ``pwrite`` with ``sync``, done when this returns; False, with nothing done, when that is not the thing to do.

        It holds the event loop up, so it is refused for more than ``WRITE_NOW_BYTES``, on a disk that is slow or was so of late, and while
        something submitted before is not done.
        """
        ...

    async def pread(self, pos: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``pos``; shorter only at the end of the file."""
        ...

    async def pread_each(self, places: Sequence[Place]) -> list[bytes]:
        """``pread`` of several small places in one step."""
        ...

    async def send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        """Send bytes of the file to a socket, place by place; how many went, 0 when it takes none now.

        They do not pass through this process's memory.  The disk is waited for off the event loop; what need not be waited for is sent on
        it, some of it at a time.  OSError of the file, which may have none of them any more or may not be sent at all, or of the socket.
        """
        ...

    async def fdatasync(self) -> None: ...
    async def allocate(self, size: int, *, fill: bool) -> None:
        """Grow the file to ``size`` bytes of zeros; never shrinks it nor touches what is there.

        ``fill`` writes the zeros and syncs them, so that later syncs meet written blocks, which is faster
        (docs/adr/0005-log-writes-around-the-page-cache.md); otherwise the space is reserved only.
        The caller ensures that nothing is written into that range meanwhile.
        """
        ...

    async def truncate(self, size: int) -> None: ...
    async def size(self) -> int: ...
    async def close(self) -> None: ...


class FolderSize(NamedTuple):
    """What a folder holds, with all folders below it: how many files, their bytes, and when the one written longest ago was written
    (milliseconds since 1970; 0: not known)."""

    files: int
    size_bytes: int
    oldest_ms: int


class FileCut(NamedTuple):
    """A file that is to hold zeros from ``keep`` on, up to its end at ``size``."""

    path: str
    keep: int
    size: int


class FileWrite(NamedTuple):
    """Data for a file that gets ``size`` bytes where it begins with this; none: it is synced only."""

    path: str
    pos: int
    data: bytes
    size: int


class Disk(Protocol):
    """One node's disk.  Paths are strings with ``/``, relative to the node's data folder; folders are made as needed."""

    async def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing.  FileNotFoundError unless ``create``, which makes the new name durable (fsync of the folder)."""
        ...

    async def exists(self, path: str) -> bool: ...
    async def list(self, folder: str) -> list[str]:
        """Names in ``folder`` sorted; empty when it does not exist.  Sub-folders end with ``/``."""
        ...

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Replace ``path`` whole: temporary file, write, fdatasync, rename, fsync of the folder."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Rename, durable (fsync of the folders)."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, durable (fsync of the folder).  FileNotFoundError when it is not there."""
        ...

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        """The files in ``folder`` and, unless not ``below``, in all folders below it; nothing when it does not exist."""
        ...

    async def sizes(self, folder: str) -> dict[str, int]:
        """The size of every file in ``folder`` and in all folders below it, by path; nothing when it does not exist."""
        ...

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        """Write into many small files at once, making those that are not there; names and data are durable then.

        After an error any of them may be written.
        """
        ...

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        """Cut many small files at once.  One that is like that already, or shorter than what it is to keep, is left as it is.

        What is cut is as durable as what ``File.truncate`` does.
        """
        ...

    async def remove_files(self, paths: Sequence[str]) -> None:
        """Remove many small files at once, not durably: after a power failure any of them may be there again.

        FileNotFoundError when one is not there; any of the others may be gone then.
        """
        ...

    async def free_bytes(self) -> int:
        """What may still be written here."""
        ...

    async def total_bytes(self) -> int:
        """What is used and what may still be written: as df counts, without what the file system keeps for root."""
        ...

    def local_path(self, path: str) -> str:
        """The path as a human or another process would name it."""
        ...


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """``Disk.free_bytes`` and ``Disk.total_bytes`` together."""

    free_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        """The used part, 0 to 1."""
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def used_percent(self) -> float:
        """The used part, 0 to 100."""
        return 100.0 * self.used_ratio


async def space_of(disk: Disk) -> DiskSpace:
    """How much of a disk is used now."""
    total = await disk.total_bytes()
    return DiskSpace(await disk.free_bytes(), total)


async def read_unless_lost(file: File, pos: int, size: int) -> bytes | None:
    """``File.pread``; None when it ``is_unreadable``."""
    try:
        return await file.pread(pos, size)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


async def read_file(disk: Disk, path: str) -> bytes:
    """All of a small file; FileNotFoundError without it."""
    file = await disk.open(path)
    try:
        return await file.pread(0, await file.size())
    finally:
        await file.close()


async def read_file_unless_lost(disk: Disk, path: str) -> bytes | None:
    """All of a small file, nothing where it ``is_unreadable``; None without the file."""
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return await read_unless_lost(file, 0, await file.size()) or b""
    finally:
        await file.close()


@dataclass(slots=True)
class Environment:
    """Everything a node takes from outside."""

    clock: Clock
    random: Random
    disk: Disk
    network: Network
    boot_id: str = ""  # another one after each loss of the machine's memory; empty: not known
    # Seconds of fine resolution, for durations that are reported and never acted upon.
    stopwatch: Callable[[], float] = field(default=lambda: 0.0)
