"""Real files behind the ``Disk`` and ``File`` interfaces.

Owns the threads: one per disk for writes (so they keep the order of submission), another for the folders named beside, whose many small
writes nothing else should wait for, and a small pool for reads and for filling files ahead.  Only ``write_now`` runs on the event loop
itself, while the write thread has nothing to do (``sync_pace.py`` says when).
The event loop only hands work over, which is a queue and one wake-up.  Files in the folders named direct bypass the page cache on writes
where that is possible, and are read through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from dledger.runtime.env import WRITE_NOW_BYTES, After, Buffer, FileCut, FileWrite, FolderSize, Place, SocketHandle, SyncFailedError
from dledger.runtime.real_blocked_time import BlockedTime
from dledger.runtime.real_direct import BLOCK, DirectWriter, fill_direct, new_stage, open_direct
from dledger.runtime.real_handles import open_handle, with_handle
from dledger.runtime.real_sending import first_bytes, is_at_hand, peek_each, send_places
from dledger.runtime.sync_pace import SyncPace
from dledger_wire.check import require

_T = TypeVar("_T")

READ_THREADS = 4
IOV_MAX = 1024  # what Linux takes in one pwritev
FILL_STEP_BYTES = 1 << 20
_ZEROS = bytes(FILL_STEP_BYTES)
READ_AHEAD_FROM = 256 << 10  # reads of at least that much, each a little behind the one before, are taken for a stream
READ_AHEAD_BYTES = 8 << 20
SEND_NOW_BYTES = 1 << 20  # of what the page cache has, before others have their turn on the event loop
CHECK_BYTES = 64 << 10
TEMPORARY_SUFFIX = ".tmp"
_NO_STAGE = mmap.mmap(-1, 1)


class _Workers:
    """Threads that take functions from one queue; a single one runs them in order.

    Handing over and back takes some 10 us here against 110 us with a ThreadPoolExecutor, and every flush pays for it.
    """

    def __init__(self, name: str, count: int) -> None:
        self._waiting = 0  # submitted, and not known to the event loop to be done
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted is done: until the next one is, the caller may do what these threads do."""
        return self._waiting == 0

    def submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self._queue.put((function, future))
        return future

    def stop(self) -> None:
        """Let the threads end after what was submitted, and wait for them."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            function, future = job
            result, error = None, None
            try:
                result = function()
            except Exception as caught:  # noqa: BLE001 - handed to the future
                error = caught
            # The loop may have been closed meanwhile (a node stopped hard): then no caller waits for the result.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(self._resolve, future, result, error)
            del function, future, job, result, error

    def _resolve(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class RealFile:
    """An open file of a ``RealDisk``."""

    def __init__(self, disk: RealDisk, writer: _Workers, fd: int, path: str, direct_fd: int | None = None) -> None:
        self._disk = disk
        self._writer = writer
        self._fd = fd
        self._path = path
        self._direct_fd = direct_fd
        self._read_to = -1  # where the last read ended
        self._direct = DirectWriter(fd, direct_fd, disk.stage) if direct_fd is not None else None
        self._aside_running = 0
        self._aside_changed = threading.Condition()

    async def pwrite(self, pos: int, buffers: Sequence[Buffer], *, sync: bool = False, after: After | None = None) -> None:
        if not sync:
            await self._writer.submit(lambda: self._write_named(pos, buffers))
        elif self._is_for_the_loop(buffers):
            await self._writer.submit(lambda: self._disk.timed(lambda: self._write_synced(pos, buffers, after)))
        else:
            await self._writer.submit(lambda: self._write_synced(pos, buffers, after))

    def write_now(self, pos: int, buffers: Sequence[Buffer], after: After | None = None) -> bool:
        if not (self._disk.writes_now and self._is_for_the_loop(buffers)):
            return False
        self._disk.timed(lambda: self._write_synced(pos, buffers, after))
        return True

    def _is_for_the_loop(self, buffers: Sequence[Buffer]) -> bool:
        """Whether the event loop would write so much to this file: then its duration tells whether it may."""
        return not self._disk.is_beside(self._writer) and sum(len(buffer) for buffer in buffers) <= WRITE_NOW_BYTES

    def _write_synced(self, pos: int, buffers: Sequence[Buffer], after: After | None) -> None:
        self._write_named(pos, buffers)
        _fdatasync(self._open_fd(), self._path)
        if after is not None:
            require(isinstance(after.file, RealFile), "a file of another disk")
            cast(RealFile, after.file)._write_named(after.pos, [after.data])

    def _write_named(self, pos: int, buffers: Sequence[Buffer]) -> None:
        with _naming(self._path):
            self._write(pos, buffers)

    def _write(self, pos: int, buffers: Sequence[Buffer]) -> None:
        if self._direct is None:
            _pwrite_all(self._open_fd(), pos, buffers)
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
            self._direct = self._direct_fd = None
            direct.close()
            _pwrite_all(self._open_fd(), pos, buffers)

    async def pread(self, pos: int, size: int) -> bytes:
        return await self._aside(lambda: self._read(pos, size))

    def _read(self, pos: int, size: int) -> bytes:
        fd = self._open_fd()
        with _naming(self._path):
            data = _pread_all(fd, pos, size)
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
        with _naming(self._path):
            return [_pread_all(self._open_fd(), pos, size) for pos, size in places]

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
        await self._writer.submit(lambda: _fdatasync(self._open_fd(), self._path))

    async def allocate(self, size: int, *, fill: bool) -> None:
        await self._aside(lambda: _allocate(self._open_fd(), self._direct_fd, size, fill, self._path))

    async def truncate(self, size: int) -> None:
        def truncate() -> None:
            with _naming(self._path):
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

        return await self._disk.aside(run)

    def _open_fd(self) -> int:
        require(self._fd >= 0, "file %s is used after it was closed", self._path)
        return self._fd


class RealDisk:
    """A data folder on this machine."""

    def __init__(self, folder: str, *, direct_folders: Sequence[str] = (), beside_folders: Sequence[str] = ()) -> None:
        self._folder = os.path.abspath(folder)
        self._direct_folders = tuple(direct_folders)
        self._beside_folders = tuple(beside_folders)
        self.stage = new_stage() if direct_folders else _NO_STAGE
        os.makedirs(self._folder, exist_ok=True)
        self._writer = _Workers("dledger-disk-write", 1)
        self._beside = _Workers("dledger-disk-beside", 1) if beside_folders else self._writer
        self._readers = _Workers("dledger-disk-read", READ_THREADS)
        self._pace = SyncPace(time.monotonic)

    def close(self) -> None:
        """End the threads after what was submitted.  Files still open keep their descriptors."""
        self._writer.stop()
        if self._beside is not self._writer:
            self._beside.stop()
        self._readers.stop()

    def writer_of(self, path: str) -> _Workers:
        """The thread that writes a file, or what is in a folder: in the order of submission."""
        return self._beside if path.partition("/")[0] in self._beside_folders else self._writer

    def is_beside(self, writer: _Workers) -> bool:
        """Whether a thread is the one beside that of the log: nothing waits for its writes, so none is worth the event loop's time."""
        return writer is not self._writer

    @property
    def writes_now(self) -> bool:
        """Whether the event loop may write and sync a little by itself: nothing waits for the write thread, and the disk is fast."""
        return self._writer.is_idle and self._pace.is_fast

    def timed(self, write_and_sync: Callable[[], None]) -> None:
        """Run a small write with its sync, on either thread, and note what it took."""
        blocked = BlockedTime()
        try:
            write_and_sync()
        finally:
            self._pace.took(blocked.so_far_s())

    async def aside(self, function: Callable[[], _T]) -> _T:
        """Run ``function`` beside the write thread."""
        return await self._readers.submit(function)

    async def open(self, path: str, *, create: bool = False) -> RealFile:
        local = self.local_path(path)
        direct = path.partition("/")[0] in self._direct_folders

        writer = self.writer_of(path)
        opened: list[RealFile] = []

        def open_file() -> None:
            fd = _open(local, create, self._folder)
            opened.append(RealFile(self, writer, fd, local, open_direct(local) if direct else None))

        def close_unwanted() -> None:
            for file in opened:
                file.close_now()

        try:
            await writer.submit(open_file)
        except asyncio.CancelledError:
            writer.submit(close_unwanted)  # behind the open, whose caller is gone
            raise
        return opened[0]

    async def exists(self, path: str) -> bool:
        local = self.local_path(path)
        return await self.writer_of(path).submit(lambda: os.path.exists(local))

    async def list(self, folder: str) -> list[str]:
        local = self.local_path(folder)
        return await self.writer_of(folder).submit(lambda: sorted(_names(local)))

    async def write_atomic(self, path: str, data: bytes) -> None:
        local = self.local_path(path)
        await self.writer_of(path).submit(lambda: _write_atomic(local, data, self._folder))

    async def rename(self, old: str, new: str) -> None:
        source, target = self.local_path(old), self.local_path(new)

        def rename() -> None:
            _make_folders(os.path.dirname(target), self._folder)
            os.rename(source, target)
            _sync_folder(os.path.dirname(target))
            if os.path.dirname(source) != os.path.dirname(target):
                _sync_folder(os.path.dirname(source))

        if self.writer_of(old) is not self.writer_of(new):
            await self.writer_of(old).submit(lambda: None)  # behind everything submitted there
        await self.writer_of(new).submit(rename)

    async def remove(self, path: str) -> None:
        local = self.local_path(path)

        def remove() -> None:
            os.unlink(local)
            _sync_folder(os.path.dirname(local))

        await self.writer_of(path).submit(remove)

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        local = self.local_path(folder)
        return await self.aside(lambda: _measured(local, below))

    async def sizes(self, folder: str) -> dict[str, int]:
        local = self.local_path(folder)
        return await self.aside(lambda: {os.path.relpath(path, self._folder): size for path, size in _sizes(local)})

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        local = [(each.path, each._replace(path=self.local_path(each.path))) for each in writes]
        await self._by_writer(local, lambda files: _write_files(files, self._folder))

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        def cut_all(files: Sequence[FileCut]) -> None:
            for local, keep, size in files:
                _cut_file(local, keep, size)

        await self._by_writer([(cut.path, cut._replace(path=self.local_path(cut.path))) for cut in cuts], cut_all)

    async def remove_files(self, paths: Sequence[str]) -> None:
        def remove_all(files: Sequence[str]) -> None:
            for local in files:
                os.unlink(local)

        await self._by_writer([(path, self.local_path(path)) for path in paths], remove_all)

    async def _by_writer(self, files: Iterable[tuple[str, _T]], function: Callable[[Sequence[_T]], None]) -> None:
        """Call ``function`` on the thread that writes a path, with what belongs to those of that thread."""
        by_writer: dict[_Workers, list[_T]] = {}
        for path, each in files:
            by_writer.setdefault(self.writer_of(path), []).append(each)
        for writer, those in by_writer.items():
            await writer.submit(partial(function, those))

    async def free_bytes(self) -> int:
        return await self.aside(lambda: _space(self._folder)[0])

    async def total_bytes(self) -> int:
        return await self.aside(lambda: _space(self._folder)[1])

    def local_path(self, path: str) -> str:
        require(not path.startswith("/") and ".." not in path.split("/"), "path %r leaves the data folder", path)
        return os.path.join(self._folder, path) if path else self._folder


def _open(local: str, create: bool, root: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return open_handle(local, flags)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        # Checks and dumps also read what they may not write.
        if create or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return open_handle(local, os.O_RDONLY | os.O_CLOEXEC)
    _make_folders(os.path.dirname(local), root)
    fd = open_handle(local, flags | os.O_CREAT, 0o644)
    _sync_folder(os.path.dirname(local))
    return fd


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error on a descriptor names no file; the operator needs the name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def _names(local: str) -> Iterator[str]:
    try:
        with with_handle(lambda: os.scandir(local)) as entries:
            for entry in entries:
                yield entry.name + ("/" if entry.is_dir() else "")
    except (FileNotFoundError, NotADirectoryError):
        return


def _pwrite_all(fd: int, pos: int, buffers: Sequence[Buffer]) -> None:
    pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    start = 0
    while start < len(pending):
        written = os.pwritev(fd, pending[start : start + IOV_MAX], pos)
        pos += written
        while start < len(pending) and written >= len(pending[start]):
            written -= len(pending[start])
            start += 1
        if written:
            pending[start] = pending[start][written:]


def _pread_all(fd: int, pos: int, size: int) -> bytes:
    data = os.pread(fd, size, pos)
    if len(data) == size or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < size and (data := os.pread(fd, size - done, pos + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def _fdatasync(fd: int, path: str) -> None:
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise SyncFailedError(error.errno, error.strerror, path) from error


def _allocate(fd: int, direct_fd: int | None, size: int, fill: bool, path: str) -> None:
    pos = os.fstat(fd).st_size
    if pos >= size:
        return
    with _naming(path):
        if not fill:
            os.posix_fallocate(fd, pos, size - pos)
            return
        if direct_fd is not None and pos % BLOCK == 0:
            pos = fill_direct(direct_fd, pos, size)
        while pos < size:
            step = min(FILL_STEP_BYTES, size - pos)
            _pwrite_all(fd, pos, [memoryview(_ZEROS)[:step]])
            pos += step
    _fdatasync(fd, path)


def _write_atomic(local: str, data: bytes, root: str) -> None:
    _make_folders(os.path.dirname(local), root)
    temporary = local + TEMPORARY_SUFFIX
    fd = open_handle(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with _naming(temporary):
            _pwrite_all(fd, 0, [data])
        _fdatasync(fd, temporary)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    os.rename(temporary, local)
    _sync_folder(os.path.dirname(local))


def _make_folders(local: str, root: str) -> None:
    """Make a folder and those above it, each durable in its parent, up to the data folder."""
    changed: set[str] = set()
    _make_unsynced(local, root, changed)
    _sync_folders(changed)


def _sync_folder(local: str) -> None:
    fd = open_handle(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _fdatasync_folder(fd, local)
    finally:
        os.close(fd)


def _fdatasync_folder(fd: int, local: str) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailedError(error.errno, error.strerror, local) from error


def _space(local: str) -> tuple[int, int]:
    """(bytes this process may still use, those and the used ones): as df counts, blocks reserved for root are neither."""
    facts = os.statvfs(local)
    used = facts.f_blocks - facts.f_bfree
    return facts.f_bavail * facts.f_frsize, (used + facts.f_bavail) * facts.f_frsize


def _sizes(local: str) -> Iterator[tuple[str, int]]:
    """Path and size of every file below a folder.  Files that are removed meanwhile do not count."""
    folders = [local]
    while folders:
        folder = folders.pop()
        try:
            with with_handle(partial(os.scandir, folder)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            yield entry.path, entry.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            continue


def _write_files(writes: Sequence[FileWrite], root: str) -> None:
    """Folders are synced at the end, each once: those of a batch share parents."""
    changed: set[str] = set()
    for path, pos, data, size in writes:
        try:
            fd = open_handle(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            folder = os.path.dirname(path)
            _make_unsynced(folder, root, changed)
            fd = open_handle(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
            changed.add(folder)
        try:
            with _naming(path):
                if data and pos == 0:
                    os.ftruncate(fd, size)
                _pwrite_all(fd, pos, [data])
            _fdatasync(fd, path)
        finally:
            os.close(fd)
    _sync_folders(changed)


def _sync_folders(folders: Iterable[str]) -> None:
    for folder in sorted(folders):  # those above first
        _sync_folder(folder)


def _make_unsynced(folder: str, root: str, changed: set[str]) -> None:
    """Make a folder and those above it, up to the data folder; ``changed``: the folders that are to be synced then."""
    if os.path.isdir(folder):
        return
    require(folder.startswith(root), "folder %s lies outside %s", folder, root)
    parent = os.path.dirname(folder)
    _make_unsynced(parent, root, changed)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    changed.add(parent)


def _cut_file(local: str, keep: int, size: int) -> None:
    fd = open_handle(local, os.O_RDWR | os.O_CLOEXEC)
    try:
        with _naming(local):
            held = os.fstat(fd).st_size
            if held >= keep and not (held == size and _is_zero(fd, keep)):
                os.ftruncate(fd, keep)
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _is_zero(fd: int, pos: int) -> bool:
    """Whether a file is known to hold nothing from ``pos`` on: zeros to the end of what is there of it, and a hole behind."""
    try:
        pos = os.lseek(fd, pos, os.SEEK_DATA)
        data = os.pread(fd, CHECK_BYTES, pos)
        if data.count(0) < len(data):
            return False
        os.lseek(fd, pos + len(data), os.SEEK_DATA)
    except OSError as error:
        return error.errno == errno.ENXIO  # no more data
    return False


def _measured(local: str, below: bool) -> FolderSize:
    """Files that are removed meanwhile do not count."""
    count = size = oldest_ns = 0
    for folder, folders, names in os.walk(local):
        if not below:
            folders.clear()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                facts = os.lstat(os.path.join(folder, name))
                count, size = count + 1, size + facts.st_size
                oldest_ns = min(oldest_ns or facts.st_mtime_ns, facts.st_mtime_ns)
    return FolderSize(count, size, oldest_ns // 1_000_000)
