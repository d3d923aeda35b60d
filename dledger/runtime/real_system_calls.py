"""System calls on descriptors and paths, as the disk's threads make them: whole or OSError, and the error names its file.

Owns what is durable when: a file whose data was synced, a folder that was synced behind every name made, moved or removed in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from dledger.runtime.env import Buffer, FileWrite, FolderSize, SyncFailedError
from dledger.runtime.real_direct import DirectWriter
from dledger.runtime.real_handles import open_handle, with_handle
from dledger_wire.check import require

IOV_MAX = 1024  # what Linux takes in one pwritev
FILL_STEP_BYTES = 1 << 20
_ZEROS = bytes(FILL_STEP_BYTES)
CHECK_BYTES = 64 << 10
TEMPORARY_SUFFIX = ".tmp"


def open_file(local: str, create: bool, root: str) -> int:
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
    make_folders(os.path.dirname(local), root)
    fd = open_handle(local, flags | os.O_CREAT, 0o644)
    sync_folder(os.path.dirname(local))
    return fd


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """An error on a descriptor names no file; the operator needs the name, and why a file that was opened for reading cannot be changed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EBADF, errno.EINVAL):
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        if error.filename is None:
            error.filename = path
        raise


def names_in(local: str) -> Iterator[str]:
    try:
        with with_handle(lambda: os.scandir(local)) as entries:
            for entry in entries:
                yield entry.name + ("/" if entry.is_dir() else "")
    except (FileNotFoundError, NotADirectoryError):
        return


def pwrite_all(fd: int, pos: int, buffers: Sequence[Buffer]) -> None:
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


def pread_all(fd: int, pos: int, size: int) -> bytes:
    data = os.pread(fd, size, pos)
    if len(data) == size or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < size and (data := os.pread(fd, size - done, pos + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def fdatasync(fd: int, path: str) -> None:
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise SyncFailedError(error.errno, error.strerror, path) from error


def allocate(fd: int, direct: DirectWriter | None, size: int, fill: bool, path: str) -> None:
    pos = os.fstat(fd).st_size
    if pos >= size:
        return
    with naming(path):
        if not fill:
            os.posix_fallocate(fd, pos, size - pos)
            return
        if direct is not None:
            pos = direct.fill(pos, size)
        while pos < size:
            step = min(FILL_STEP_BYTES, size - pos)
            pwrite_all(fd, pos, [memoryview(_ZEROS)[:step]])
            pos += step
    fdatasync(fd, path)


def write_atomic(local: str, data: bytes, root: str) -> None:
    make_folders(os.path.dirname(local), root)
    temporary = local + TEMPORARY_SUFFIX
    fd = open_handle(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with naming(temporary):
            pwrite_all(fd, 0, [data])
        fdatasync(fd, temporary)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    os.rename(temporary, local)
    sync_folder(os.path.dirname(local))


def make_folders(local: str, root: str) -> None:
    """Make a folder and those above it, each durable in its parent, up to the data folder."""
    changed: set[str] = set()
    _make_unsynced(local, root, changed)
    _sync_folders(changed)


def sync_folder(local: str) -> None:
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


def space(local: str) -> tuple[int, int]:
    """(bytes this process may still use, those and the used ones): as df counts, blocks reserved for root are neither."""
    facts = os.statvfs(local)
    used = facts.f_blocks - facts.f_bfree
    return facts.f_bavail * facts.f_frsize, (used + facts.f_bavail) * facts.f_frsize


def sizes_below(local: str) -> Iterator[tuple[str, int]]:
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


def write_files(writes: Sequence[FileWrite], root: str) -> None:
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
            with naming(path):
                if data and pos == 0:
                    os.ftruncate(fd, size)
                pwrite_all(fd, pos, [data])
            fdatasync(fd, path)
        finally:
            os.close(fd)
    _sync_folders(changed)


def _sync_folders(folders: Iterable[str]) -> None:
    for folder in sorted(folders):  # those above first
        sync_folder(folder)


def _make_unsynced(folder: str, root: str, changed: set[str]) -> None:
    """Make a folder and those below the data folder ``root``; ``changed``: the folders that are to be synced then.

    The data folder itself was there at the start.  Made again, it would be one without anything that the node promised.
    """
    if os.path.isdir(folder):
        return
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, "the data folder is gone", root)
    require(folder.startswith(root), "folder %s lies outside %s", folder, root)
    parent = os.path.dirname(folder)
    _make_unsynced(parent, root, changed)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    changed.add(parent)


def cut_file(local: str, keep: int, size: int) -> None:
    fd = open_handle(local, os.O_RDWR | os.O_CLOEXEC)
    try:
        with naming(local):
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


def measured(local: str, below: bool) -> FolderSize:
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
