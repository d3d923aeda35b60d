"""A disk in memory that can lose power between any two operations and lose, keep or tear whatever was not synced.

Runs under the disk contract too (``test_crash_disk_contract.py``).  Names are durable at once, as ``env.Disk`` promises.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from dledger.runtime.env import WRITE_NOW_BYTES, After, Buffer, FileCut, FileWrite, FolderSize, Place, SocketHandle, SyncFailedError
from tests.sim.disk import measured
from tests.sim.disk_content import Unreadable

SECTOR = 512


class PowerLost(BaseException):
    """The machine stopped: nothing that runs may catch this."""


@dataclass(slots=True)
class _Op:
    pos: int
    data: bytes | None  # None: truncate to pos


@dataclass(slots=True)
class _Content:
    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Op] = field(default_factory=list)
    unreadable: Unreadable = field(default_factory=Unreadable)

    def apply(self, op: _Op) -> None:
        _apply(self.current, op)
        self.pending.append(op)

    def sync(self) -> None:
        self.durable = bytearray(self.current)
        self.pending.clear()

    def survivor(self, draw: random.Random) -> bytearray:
        """What is left after the power was lost: each unsynced operation kept, lost or torn."""
        data = bytearray(self.durable)
        mode = draw.choice(["all", "none", "prefix", "any", "torn"])
        prefix = draw.randint(0, len(self.pending))
        for number, op in enumerate(self.pending):
            if mode == "all" or (mode == "prefix" and number < prefix) or (mode == "any" and draw.random() < 0.5):
                _apply(data, op)
            elif mode == "torn":
                _tear(data, op, draw)
        return data


def _apply(data: bytearray, op: _Op) -> None:
    if op.data is None:
        if op.pos < len(data):
            del data[op.pos :]
        else:
            data.extend(bytes(op.pos - len(data)))
        return
    if len(data) < op.pos:
        data.extend(bytes(op.pos - len(data)))
    data[op.pos : op.pos + len(op.data)] = op.data


def _tear(data: bytearray, op: _Op, draw: random.Random) -> None:
    """Keep some sectors of a write, lose the others."""
    if op.data is None:
        if draw.random() < 0.5:
            _apply(data, op)
        return
    at = op.pos
    end = op.pos + len(op.data)
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if draw.random() < 0.6:
            _apply(data, _Op(at, op.data[at - op.pos : upto - op.pos]))
        at = upto


class CrashDisk:
    """``crash_after``: the operation at which the power goes.  ``room_bytes``: how much all files may hold before ENOSPC."""

    def __init__(self, contents: dict[str, bytes] | None = None, *, crash_after: int | None = None, writes_now: bool = False) -> None:
        self.files = {path: _Content(bytearray(data), bytearray(data)) for path, data in (contents or {}).items()}
        self.operations = 0
        self.crash_after = crash_after
        self.writes_now = writes_now
        self._under_way = 0
        self.room_bytes: int | None = None
        self.full_paths: tuple[str, ...] = ()  # prefixes of files that take nothing
        self.fail_sync_of: str | None = None
        self.fail_read_of: str | None = None
        self.fail_write_of: str | None = None
        self.log: list[tuple[str, str]] = []
        self.hangs = ""  # prefix of the files whose next sync waits until ``released``; ``reached``: it does
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def step(self, what: str, path: str) -> None:
        self._under_way += 1
        try:
            await asyncio.sleep(0)
            if what == "sync" and self.hangs and path.startswith(self.hangs):
                self.hangs = ""
                self.reached.set()
                await self.released.wait()
        finally:
            self._under_way -= 1
        self.step_now(what, path)

    def takes_now(self, size_bytes: int) -> bool:
        return self.writes_now and not self._under_way and size_bytes <= WRITE_NOW_BYTES

    def step_now(self, what: str, path: str) -> None:
        self.operations += 1
        self.log.append((what, path))
        if self.has_lost_power:
            raise PowerLost

    @property
    def has_lost_power(self) -> bool:
        return self.crash_after is not None and self.operations > self.crash_after

    def after_power_loss(self, draw: random.Random) -> CrashDisk:
        kept = {path: bytes(content.survivor(draw)) for path, content in sorted(self.files.items())}
        return CrashDisk(kept, writes_now=self.writes_now)

    def after_kill(self) -> CrashDisk:
        """The process died, the machine did not: everything written is there."""
        return CrashDisk({path: bytes(content.current) for path, content in self.files.items()}, writes_now=self.writes_now)

    def used_bytes(self) -> int:
        return sum(len(content.current) for content in self.files.values())

    async def open(self, path: str, *, create: bool = False) -> CrashFile:
        await self.step("open", path)
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.files[path] = _Content()
        return CrashFile(self, path, self.files[path])

    async def exists(self, path: str) -> bool:
        await self.step("exists", path)
        return path in self.files

    async def list(self, folder: str) -> list[str]:
        await self.step("list", folder)
        prefix = folder + "/" if folder else ""
        names = {path[len(prefix) :] for path in self.files if path.startswith(prefix)}
        return sorted({name.split("/")[0] + ("/" if "/" in name else "") for name in names})

    async def write_atomic(self, path: str, data: bytes) -> None:
        await self.step("write_atomic", path)
        no_room = self.room_bytes is not None and self.used_bytes() + len(data) > self.room_bytes  # beside what is there
        if no_room or path.startswith(self.full_paths):
            raise OSError(errno.ENOSPC, "no space left on device", path)
        self.files[path] = _Content(bytearray(data), bytearray(data))

    async def rename(self, old: str, new: str) -> None:
        await self.step("rename", old)
        self.files[new] = self.files.pop(old)

    async def sizes(self, folder: str) -> dict[str, int]:
        await self.step("sizes", folder)
        return {path: len(content.current) for path, content in self.files.items() if path.startswith(folder.rstrip("/") + "/")}

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        for path, pos, data, size in writes:
            file = await self.open(path, create=True)
            if data and pos == 0:
                await file.truncate(size)
            await file.pwrite(pos, [data], sync=True)

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        for path, keep, size in cuts:
            await self.step("cut", path)
            if path not in self.files:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            content = self.files[path]
            if len(content.current) >= keep and (len(content.current) != size or any(content.current[keep:])):
                content.apply(_Op(keep, None))
                content.apply(_Op(size, None))

    async def remove(self, path: str) -> None:
        await self.step("remove", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.files[path]

    async def remove_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            await self.remove(path)

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        return measured({path: len(content.current) for path, content in self.files.items()}, folder, below=below)

    async def free_bytes(self) -> int:
        return 1 << 30

    async def total_bytes(self) -> int:
        return 1 << 31

    def local_path(self, path: str) -> str:
        return f"/crash/{path}"


class CrashFile:
    def __init__(self, disk: CrashDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    def _room(self, end: int, data: bytes) -> int:
        """How many bytes of a write up to ``end`` there is room for."""
        if self._path.startswith(self._disk.full_paths):
            return 0
        room = self._disk.room_bytes
        growth = end - len(self._content.current)
        if room is None or growth <= 0:
            return len(data)
        return max(0, len(data) - max(0, growth - (room - self._disk.used_bytes())))

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        data = b"".join(buffers)  # as it is when submitted
        await self._disk.step("pwrite", self._path)
        self._write(pos, data)
        if sync:
            await self._sync()
        if after is not None:
            await after.file.pwrite(after.pos, [after.data])

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        if not self._disk.takes_now(sum(len(buffer) for buffer in buffers)):
            return False
        self._disk.step_now("write_now", self._path)
        self._write(pos, b"".join(buffers))
        self._disk.step_now("sync", self._path)
        self._synced()
        if after is not None:
            other = cast(CrashFile, after.file)
            self._disk.step_now("write_now", other._path)
            other._write(after.pos, bytes(after.data))
        return True

    def _write(self, pos: int, data: bytes) -> None:
        if self._disk.fail_write_of is not None and self._disk.fail_write_of in self._path:
            raise OSError(errno.EIO, "input/output error", self._path)
        if not self._content.unreadable.takes(pos, pos + len(data)):
            raise OSError(errno.EIO, "input/output error", self._path)
        room = self._room(pos + len(data), data)
        if data:
            self._content.apply(_Op(pos, data[:room]))
            self._content.unreadable.written(pos, pos + room)
        if room < len(data):
            raise OSError(errno.ENOSPC, "no space left on device")

    async def pread(self, pos: int, size: int) -> bytes:
        await self._disk.step("pread", self._path)
        if self._disk.fail_read_of is not None and self._disk.fail_read_of in self._path:
            raise OSError(errno.EIO, "input/output error")
        if not self._content.unreadable.spares(pos, size):
            raise OSError(errno.EIO, "input/output error")
        return bytes(self._content.current[pos : pos + size])

    async def pread_each(self, places: Sequence[Place]) -> list[bytes]:
        return [await self.pread(pos, size) for pos, size in places]

    async def send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        raise OSError(errno.EOPNOTSUPP, "there are no sockets here", self._path)

    async def fdatasync(self) -> None:
        await self._sync()

    async def _sync(self) -> None:
        await self._disk.step("sync", self._path)
        self._synced()

    def _synced(self) -> None:
        if self._disk.fail_sync_of is not None and self._disk.fail_sync_of in self._path:
            raise SyncFailedError(errno.EIO, "input/output error", self._path)
        self._content.sync()

    async def allocate(self, size: int, *, fill: bool) -> None:
        await self._disk.step("allocate", self._path)
        grow = size - len(self._content.current)
        if grow > 0:
            if self._room(size, bytes(grow)) < grow:
                raise OSError(errno.ENOSPC, "no space left on device")
            self._content.apply(_Op(len(self._content.current), bytes(grow)))
            if fill:
                self._content.sync()

    async def truncate(self, size: int) -> None:
        await self._disk.step("truncate", self._path)
        self._content.apply(_Op(size, None))
        self._content.unreadable.cut(size)

    async def size(self) -> int:
        await self._disk.step("size", self._path)
        return len(self._content.current)

    async def close(self) -> None:
        await self._disk.step("close", self._path)
