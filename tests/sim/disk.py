"""A simulated disk: ``dledger.runtime.env.Disk`` in virtual time, with everything a real one may do to its owner.

Owns one host's files across restarts, the order and duration of operations, and faults: crashes that lose what was not synced, full
disk, errors, slowness, bit rot.  Operations that write run one after the other in the order submitted, as on the real disk's write
thread; the hard state's writes have a line of their own, as there, and reads and filling run beside them.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dledger.runtime.env import WRITE_NOW_BYTES, After, Buffer, FileCut, FileWrite, FolderSize, Place, SocketHandle, SyncFailedError
from dledger.runtime.folders import HARD_STATE_PATH
from dledger_wire.check import require
from tests.sim.disk_content import Content, Loss, Pending
from tests.sim.loop import Process, SimLoop
from tests.sim.trace import Trace

SLOW_SYNC_S = 0.005  # a disk that takes longer does nothing at once


@dataclass(slots=True)
class DiskSettings:
    """How fast the disk is and what goes wrong by chance; durations in seconds, chances per operation."""

    read_s: float = 0.00005
    write_s: float = 0.00003
    sync_s: float = 0.0008
    jitter: float = 1.0  # each duration is drawn from [1, 1 + jitter) times its figure
    now_chance: float = 0.5  # that a small write is done at once, as on a real disk that is fast
    slow_chance: float = 0.0
    slow_s: float = 0.2
    capacity_bytes: int = 1 << 40
    sync_failure_chance: float = 0.0
    write_failure_chance: float = 0.0
    read_failure_chance: float = 0.0


@dataclass(slots=True, eq=False)
class _Line:
    """What a thread that writes does, one after the other."""

    running: _Operation | None = None
    waiting: deque[_Operation] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Operation:
    """Something the write thread does: ``begin`` when its turn comes, ``end`` when its time has passed."""

    duration_s: float
    begin: Callable[[], Any]
    end: Callable[[Any], Any]
    future: asyncio.Future[Any]
    line: _Line
    state: Any = None


def measured(sizes: Mapping[str, int], folder: str, *, below: bool) -> FolderSize:
    """What is in ``folder`` of a disk in memory, whose files have these sizes by path and no times."""
    prefix = folder.rstrip("/") + "/" if folder else ""
    found = [size for path, size in sizes.items() if path.startswith(prefix) and (below or "/" not in path[len(prefix) :])]
    return FolderSize(len(found), sum(found), 0)


class SimDisk:
    """One host's disk.  ``mount`` gives a process its view; ``power_failure`` and ``process_died`` end the views in use."""

    def __init__(self, loop: SimLoop, host: str, rng: random.Random, trace: Trace, settings: DiskSettings | None = None) -> None:
        self.loop = loop
        self.host = host
        self.rng = rng
        self.trace = trace
        self.settings = settings or DiskSettings()
        self.names: dict[str, Content] = {}
        self.durable_names: dict[str, Content] = {}
        self.broken_paths: dict[str, str] = {}  # path -> operation that fails with EIO ("read", "write", "sync")
        self.syncs = 0
        self._mount: MountedDisk | None = None

    def mount(self, process: Process) -> MountedDisk:
        """The disk as a new process sees it."""
        require(self._mount is None or not self._mount.process.alive, "%s: the disk is in use", self.host)
        self._mount = MountedDisk(self, process)
        return self._mount

    def used_bytes(self) -> int:
        return sum(content.current.size for content in self.names.values())

    def room_for(self, grow: int) -> bool:
        return grow <= 0 or self.settings.capacity_bytes >= 1 << 40 or self.used_bytes() + grow <= self.settings.capacity_bytes

    def duration(self, base_s: float) -> float:
        settings = self.settings
        taken = base_s * (1.0 + self.rng.random() * settings.jitter)
        if settings.slow_chance and self.rng.random() < settings.slow_chance:
            taken += settings.slow_s * self.rng.random()
        return taken

    # Faults

    def process_died(self) -> None:
        """kill -9: what was handed to the kernel stays in its cache, what was not is gone."""
        mount, self._mount = self._mount, None
        if mount is not None:
            mount.settle_names(1.0)

    def power_failure(self, loss: Loss) -> None:
        """Everything not synced is kept, lost or torn; a rename or removal under way took place or not."""
        mount, self._mount = self._mount, None
        if mount is not None:
            mount.settle_names(self.rng.random())
        names, self.names = self.durable_names, {}
        seen: dict[int, None] = {}
        for path in sorted(names):
            content = names[path]
            self.names[path] = content
            if id(content) not in seen:
                seen[id(content)] = None
                content.lose(loss, self.rng)
        self.durable_names = dict(self.names)
        self.trace.note("power", self.host, loss.value)

    def flip_bit(self, path: str, pos: int, bit: int = 0) -> None:
        self.names[path].flip(pos, 1 << bit)
        self.trace.note("flip", self.host, f"{path}@{pos}.{bit}")

    def overwrite(self, path: str, pos: int, data: bytes) -> None:
        self.names[path].overwrite(pos, data)
        self.trace.note("overwrite", self.host, f"{path}@{pos}+{len(data)}")

    def break_range(self, path: str, pos: int, size: int) -> None:
        """Reads that touch these bytes fail with EIO until they are written again, all at once."""
        self.names[path].unreadable.add(pos, size)
        self.trace.note("unreadable", self.host, f"{path}@{pos}+{size}")

    def cut_off(self, path: str, size: int) -> None:
        self.names[path].cut_off(size)
        self.trace.note("cut off", self.host, f"{path}@{size}")

    def lose(self, path: str) -> None:
        """The file is gone."""
        del self.names[path]
        self.durable_names.pop(path, None)
        self.trace.note("lose", self.host, path)

    def digest(self) -> dict[str, bytes]:
        """Every file's content as programs see it."""
        return {path: self.names[path].current.whole() for path in sorted(self.names)}


class MountedDisk:
    """A ``Disk`` for one process."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self.disk = disk
        self.process = process
        self._loop = disk.loop
        self._line, self._own_line = _Line(), _Line()
        self._renaming: Callable[[dict[str, Content]], object] | None = None

    # The write thread

    async def in_order(self, duration_s: float, begin: Callable[[], Any], end: Callable[[Any], Any], *, alone: bool = False) -> Any:
        """Run on the write thread (``alone``: on that of the hard state): ``begin`` changes what programs see, ``end`` what survives a
        power failure."""
        operation = _Operation(duration_s, begin, end, self._loop.create_future(), self._own_line if alone else self._line)
        if operation.line.running is None:
            self._start(operation)
        else:
            operation.line.waiting.append(operation)
        return await operation.future

    @property
    def is_idle(self) -> bool:
        return self._line.running is None

    def _start(self, operation: _Operation) -> None:
        operation.line.running = operation
        loop = self._loop
        try:
            operation.state = operation.begin()
        except OSError as error:
            loop.call_for(self.process, loop.now_s + operation.duration_s, self._finish, operation, error)
        else:
            loop.call_for(self.process, loop.now_s + operation.duration_s, self._finish, operation, None)

    def _finish(self, operation: _Operation, error: OSError | None) -> None:
        result = None
        if error is None:
            try:
                result = operation.end(operation.state)
            except OSError as caught:
                error = caught
        operation.line.running = None
        if operation.line.waiting:
            self._start(operation.line.waiting.popleft())
        if not operation.future.cancelled():
            if error is not None:
                operation.future.set_exception(error)
            else:
                operation.future.set_result(result)

    async def aside(self, duration_s: float, begin: Callable[[], Any], end: Callable[[Any], Any]) -> Any:
        """Run beside the write thread."""
        operation = _Operation(duration_s, begin, end, self._loop.create_future(), self._line)
        try:
            operation.state = begin()
        except OSError as error:
            self._loop.call_for(self.process, self._loop.now_s + duration_s, self._finish_aside, operation, error)
        else:
            self._loop.call_for(self.process, self._loop.now_s + duration_s, self._finish_aside, operation, None)
        return await operation.future

    def _finish_aside(self, operation: _Operation, error: OSError | None) -> None:
        future = operation.future
        if error is None:
            try:
                result = operation.end(operation.state)
            except OSError as caught:
                error = caught
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # Names

    async def _change_names(self, change: Callable[[dict[str, Content]], object], *, syncs: int = 1, needed: str | None = None) -> None:
        """``change`` the names that processes see, then those on the disk, where ``needed`` may be missing although it was there to see."""
        disk = self.disk

        def begin() -> None:
            if needed is not None and needed not in disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", needed)
            change(disk.names)
            self._renaming = change

        def end(_state: Any) -> None:
            self._renaming = None
            change(disk.durable_names)

        await self.in_order(disk.duration(disk.settings.sync_s * syncs), begin, end)

    def settle_names(self, draw: float) -> None:
        """The process ends while a name is being changed: the change is on the disk or is not."""
        change, self._renaming = self._renaming, None
        if change is not None and draw >= 0.5:
            change(self.disk.durable_names)

    async def open(self, path: str, *, create: bool = False) -> SimFile:
        disk = self.disk
        content = disk.names.get(path)
        if content is None and create:
            made = Content()

            def add(names: dict[str, Content]) -> None:
                names.setdefault(path, made)

            await self._change_names(add)
        else:
            await self.in_order(disk.duration(disk.settings.read_s), _nothing, _nothing_either)
        content = disk.names.get(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimFile(self, path, content)

    async def exists(self, path: str) -> bool:
        await self.in_order(self.disk.duration(self.disk.settings.read_s), _nothing, _nothing_either)
        prefix = path.rstrip("/") + "/"
        return path in self.disk.names or any(name.startswith(prefix) for name in self.disk.names)

    async def list(self, folder: str) -> list[str]:
        await self.in_order(self.disk.duration(self.disk.settings.read_s), _nothing, _nothing_either)
        prefix = folder.rstrip("/") + "/" if folder else ""
        cut = len(prefix)
        found: dict[str, None] = {}
        for path in self.disk.names:
            if path.startswith(prefix):
                name, slash, _rest = path[cut:].partition("/")
                found[name + slash] = None
        return sorted(found)

    async def write_atomic(self, path: str, data: bytes) -> None:
        disk = self.disk
        content = Content()
        temporary = path + ".tmp"

        def replace(names: dict[str, Content]) -> None:
            content.synced(len(content.pending))
            names.pop(temporary, None)
            names[path] = content

        def write() -> None:
            self._may_fail("write", path)
            if not disk.room_for(len(data)):
                raise OSError(errno.ENOSPC, "no space left on device", path)
            disk.names[temporary] = disk.durable_names[temporary] = content
            if data:
                content.do(Pending(0, bytes(data)))
            self._renaming = replace

        def synced(_state: Any) -> None:
            self._renaming = None
            if self._fails("sync", path):
                disk.names.pop(temporary, None)
                disk.durable_names.pop(temporary, None)
                raise SyncFailedError(errno.EIO, "input/output error", temporary)
            replace(disk.durable_names)
            replace(disk.names)

        await self.in_order(disk.duration(disk.settings.write_s + 2 * disk.settings.sync_s), write, synced)

    async def rename(self, old: str, new: str) -> None:
        moved: list[Content] = []

        def move(names: dict[str, Content]) -> None:
            found = names.pop(old) if old in names else moved[0]
            moved.append(found)
            names[new] = moved[-1]

        await self._change_names(move, syncs=2, needed=old)

    async def remove(self, path: str) -> None:
        await self._change_names(lambda names: names.pop(path, None), needed=path)

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        await self.in_order(self.disk.duration(self.disk.settings.read_s), _nothing, _nothing_either)
        return measured({path: content.current.size for path, content in self.disk.names.items()}, folder, below=below)

    async def sizes(self, folder: str) -> dict[str, int]:
        await self.in_order(self.disk.duration(self.disk.settings.read_s), _nothing, _nothing_either)
        prefix = folder.rstrip("/") + "/"
        return {path: content.current.size for path, content in self.disk.names.items() if path.startswith(prefix)}

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        disk = self.disk
        begun: list[tuple[str, SimFile, int]] = []

        def begin() -> None:
            for path, pos, data, size in writes:
                self._may_fail("write", path)
                content = disk.names.setdefault(path, Content())
                if data and pos == 0:
                    content.do(Pending(size, None))
                file = SimFile(self, path, content)
                file._write(pos, data)
                begun.append((path, file, len(content.pending)))

        def end(_state: Any) -> None:
            for path, file, count in begun:
                if self._fails("sync", path):
                    raise SyncFailedError(errno.EIO, "input/output error", path)
                if disk.names.get(path) is file._content:
                    disk.durable_names[path] = file._content
                file._synced(count)

        await self.in_order(disk.duration(disk.settings.write_s + 2 * disk.settings.sync_s), begin, end)

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        def begin() -> None:
            for path, keep, size in cuts:
                content = self.disk.names.get(path)
                if content is None:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                held = content.current.size
                if held >= keep and (held != size or any(content.current.read(keep, size - keep))):
                    content.do(Pending(keep, None))
                    content.do(Pending(size, None))

        await self.in_order(self.disk.duration(self.disk.settings.write_s), begin, _nothing_either)

    async def remove_files(self, paths: Sequence[str]) -> None:
        def begin() -> None:
            for path in paths:
                if self.disk.names.pop(path, None) is None:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)

        await self.in_order(self.disk.duration(self.disk.settings.write_s), begin, _nothing_either)

    async def free_bytes(self) -> int:
        return max(0, self.disk.settings.capacity_bytes - self.disk.used_bytes())

    async def total_bytes(self) -> int:
        return self.disk.settings.capacity_bytes

    def local_path(self, path: str) -> str:
        return f"sim://{self.disk.host}/{path}"

    # Errors

    def _fails(self, what: str, path: str) -> bool:
        disk = self.disk
        if disk.broken_paths and any(broken in path and how == what for broken, how in disk.broken_paths.items()):
            return True
        settings = disk.settings
        chance = {"sync": settings.sync_failure_chance, "write": settings.write_failure_chance, "read": settings.read_failure_chance}[what]
        return chance > 0.0 and disk.rng.random() < chance

    def _may_fail(self, what: str, path: str) -> None:
        if self._fails(what, path):
            self.disk.trace.note("eio", self.disk.host, f"{what} {path}")
            raise OSError(errno.EIO, "input/output error", path)


def _nothing() -> None:
    return None


def _nothing_either(_state: Any) -> None:
    return None


class SimFile:
    """An open ``File``."""

    __slots__ = ("_closed", "_content", "_mount", "_path")

    def __init__(self, mount: MountedDisk, path: str, content: Content) -> None:
        self._mount = mount
        self._path = path
        self._content = content
        self._closed = False

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        settings = self._mount.disk.settings
        base_s = settings.write_s + (settings.sync_s if sync else 0.0)

        def begin() -> int:
            self._check_open()
            self._write(pos, b"".join(buffers))
            return len(self._content.pending)

        def end(count: int) -> None:
            if sync:
                self._synced(count)
            if after is not None:
                cast(SimFile, after.file)._write(after.pos, bytes(after.data))

        await self._mount.in_order(self._mount.disk.duration(base_s), begin, end, alone=self._path == HARD_STATE_PATH)

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        """Takes no time: in virtual time nothing else could happen meanwhile, just as nothing does while a real loop stands still."""
        data, disk, settings = b"".join(buffers), self._mount.disk, self._mount.disk.settings
        is_slow = settings.slow_chance > 0.0 or settings.sync_s > SLOW_SYNC_S
        if is_slow or len(data) > WRITE_NOW_BYTES or not self._mount.is_idle or disk.rng.random() >= settings.now_chance:
            return False
        self._check_open()
        self._write(pos, data)
        self._synced(len(self._content.pending))
        if after is not None:
            cast(SimFile, after.file)._write(after.pos, bytes(after.data))
        return True

    def _write(self, pos: int, data: bytes) -> None:
        mount, content = self._mount, self._content
        mount._may_fail("write", self._path)
        if not content.unreadable.takes(pos, pos + len(data)):
            raise OSError(errno.EIO, "input/output error", self._path)
        grow = pos + len(data) - content.current.size
        if data and not mount.disk.room_for(grow):
            room = mount.disk.settings.capacity_bytes - mount.disk.used_bytes()
            fits = max(0, len(data) - grow + max(0, room))
            if fits and mount.disk.rng.random() < 0.5:
                content.do(Pending(pos, data[:fits]))
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        if data:
            content.do(Pending(pos, data))

    def _synced(self, count: int) -> None:
        mount, content = self._mount, self._content
        if mount._fails("sync", self._path):
            mount.disk.trace.note("eio", mount.disk.host, f"sync {self._path}")
            content.forget_pending()
            raise SyncFailedError(errno.EIO, "input/output error", self._path)
        content.synced(count)
        mount.disk.syncs += 1

    def _begin_read(self, places: Sequence[Place]) -> None:
        self._check_open()
        self._mount._may_fail("read", self._path)
        if not all(self._content.unreadable.spares(pos, size) for pos, size in places):
            self._mount.disk.trace.note("eio", self._mount.disk.host, f"read {self._path}")
            raise OSError(errno.EIO, "input/output error", self._path)

    async def pread(self, pos: int, size: int) -> bytes:
        def begin() -> None:
            self._begin_read([(pos, size)])

        disk = self._mount.disk
        data: bytes = await self._mount.aside(
            disk.duration(disk.settings.read_s), begin, lambda _state: self._content.current.read(pos, size)
        )
        return data

    async def pread_each(self, places: Sequence[Place]) -> list[bytes]:
        def begin() -> None:
            self._begin_read(places)

        disk = self._mount.disk
        data: list[bytes] = await self._mount.aside(
            disk.duration(disk.settings.read_s), begin, lambda _state: [self._content.current.read(pos, size) for pos, size in places]
        )
        return data

    async def send(self, target: SocketHandle, places: Sequence[Place]) -> int:
        raise OSError(errno.EOPNOTSUPP, "there are no sockets here", self._path)

    async def fdatasync(self) -> None:
        def begin() -> int:
            self._check_open()
            return len(self._content.pending)

        disk = self._mount.disk
        await self._mount.in_order(disk.duration(disk.settings.sync_s), begin, self._synced)

    async def allocate(self, size: int, *, fill: bool) -> None:
        disk, content = self._mount.disk, self._content

        def begin() -> int:
            self._check_open()
            grow = size - content.current.size
            if not disk.room_for(grow):
                raise OSError(errno.ENOSPC, "no space left on device", self._path)
            if grow > 0:
                content.do(Pending(size, None, grow=True))
            return len(content.pending)

        base_s = disk.settings.write_s + (disk.settings.sync_s if fill else 0.0)
        await self._mount.aside(disk.duration(base_s), begin, self._synced if fill else _nothing_either)

    async def truncate(self, size: int) -> None:
        def begin() -> None:
            self._check_open()
            self._content.do(Pending(size, None))

        disk = self._mount.disk
        await self._mount.in_order(disk.duration(disk.settings.write_s), begin, _nothing_either)

    async def size(self) -> int:
        self._check_open()
        return self._content.current.size

    async def close(self) -> None:
        await self._mount.in_order(0.0, _nothing, self._close)

    def _close(self, _state: Any) -> None:
        self._closed = True

    def _check_open(self) -> None:
        require(not self._closed, "file %s is used after it was closed", self._path)
