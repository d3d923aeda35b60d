"""A data folder on this machine behind the ``Disk`` interface.

Owns which thread does what: files of the folders named beside are written by a thread of their own, and so is the one file that waits
for no sync of another one; all others by that of the log (``real_threads.py``).  Files in the folders named direct bypass the page cache
on writes where that is possible, and are read through it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from dledger.runtime.env import FileCut, FileWrite, FolderSize
from dledger.runtime.real_direct import DirectWriter, new_stage, open_direct
from dledger.runtime.real_file import RealFile
from dledger.runtime.real_system_calls import (
    cut_file,
    make_folders,
    measured,
    names_in,
    open_file,
    sizes_below,
    space,
    sync_folder,
    write_atomic,
    write_files,
)
from dledger.runtime.real_threads import DiskThreads, Workers
from dledger_wire.check import require

_T = TypeVar("_T")


class RealDisk:
    """A data folder on this machine."""

    def __init__(
        self, folder: str, *, direct_folders: Sequence[str] = (), beside_folders: Sequence[str] = (), own_thread: str = ""
    ) -> None:
        self._folder = os.path.abspath(folder)
        self._direct_folders = tuple(direct_folders)
        self._beside_folders = tuple(beside_folders)
        self._own_thread = own_thread  # the path of one file
        self._stage = new_stage() if direct_folders else None
        os.makedirs(self._folder, exist_ok=True)
        self._threads = DiskThreads(beside=bool(beside_folders), alone=bool(own_thread))

    def close(self) -> None:
        """End the threads after what was submitted.  Files still open keep their descriptors."""
        self._threads.stop()

    def writer_of(self, path: str) -> Workers:
        """The thread that writes a file, or what is in a folder: in the order of submission."""
        if path == self._own_thread:
            return self._threads.alone
        return self._threads.beside if path.partition("/")[0] in self._beside_folders else self._threads.writer

    async def open(self, path: str, *, create: bool = False) -> RealFile:
        local = self.local_path(path)
        stage = self._stage if path.partition("/")[0] in self._direct_folders else None
        writer = self.writer_of(path)
        opened: list[RealFile] = []

        def open_it() -> None:
            fd = open_file(local, create, self._folder)
            direct_fd = open_direct(local) if stage is not None else None
            direct = DirectWriter(fd, direct_fd, stage) if stage is not None and direct_fd is not None else None
            opened.append(RealFile(self._threads, writer, fd, local, direct))

        def close_unwanted() -> None:
            for file in opened:
                file.close_now()

        try:
            await writer.submit(open_it)
        except asyncio.CancelledError:
            writer.submit(close_unwanted)  # behind the open, whose caller is gone
            raise
        return opened[0]

    async def exists(self, path: str) -> bool:
        local = self.local_path(path)
        return await self.writer_of(path).submit(lambda: os.path.exists(local))

    async def list(self, folder: str) -> list[str]:
        local = self.local_path(folder)
        return await self.writer_of(folder).submit(lambda: sorted(names_in(local)))

    async def write_atomic(self, path: str, data: bytes) -> None:
        local = self.local_path(path)
        await self.writer_of(path).submit(lambda: write_atomic(local, data, self._folder))

    async def rename(self, old: str, new: str) -> None:
        source, target = self.local_path(old), self.local_path(new)

        def rename() -> None:
            make_folders(os.path.dirname(target), self._folder)
            os.rename(source, target)
            sync_folder(os.path.dirname(target))
            if os.path.dirname(source) != os.path.dirname(target):
                sync_folder(os.path.dirname(source))

        if self.writer_of(old) is not self.writer_of(new):
            await self.writer_of(old).submit(lambda: None)  # behind everything submitted there
        await self.writer_of(new).submit(rename)

    async def remove(self, path: str) -> None:
        local = self.local_path(path)

        def remove() -> None:
            os.unlink(local)
            sync_folder(os.path.dirname(local))

        await self.writer_of(path).submit(remove)

    async def measure(self, folder: str, *, below: bool = True) -> FolderSize:
        local = self.local_path(folder)
        return await self._threads.aside(lambda: measured(local, below))

    async def sizes(self, folder: str) -> dict[str, int]:
        local = self.local_path(folder)
        return await self._threads.aside(lambda: {os.path.relpath(path, self._folder): size for path, size in sizes_below(local)})

    async def write_files(self, writes: Sequence[FileWrite]) -> None:
        local = [(each.path, each._replace(path=self.local_path(each.path))) for each in writes]
        await self._by_writer(local, lambda files: write_files(files, self._folder))

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        def cut_all(files: Sequence[FileCut]) -> None:
            for local, keep, size in files:
                cut_file(local, keep, size)

        await self._by_writer([(cut.path, cut._replace(path=self.local_path(cut.path))) for cut in cuts], cut_all)

    async def remove_files(self, paths: Sequence[str]) -> None:
        def remove_all(files: Sequence[str]) -> None:
            for local in files:
                os.unlink(local)

        await self._by_writer([(path, self.local_path(path)) for path in paths], remove_all)

    async def _by_writer(self, files: Iterable[tuple[str, _T]], function: Callable[[Sequence[_T]], None]) -> None:
        """Call ``function`` on the thread that writes a path, with what belongs to those of that thread."""
        by_writer: dict[Workers, list[_T]] = {}
        for path, each in files:
            by_writer.setdefault(self.writer_of(path), []).append(each)
        for writer, those in by_writer.items():
            await writer.submit(partial(function, those))

    async def free_bytes(self) -> int:
        return await self._threads.aside(lambda: space(self._folder)[0])

    async def total_bytes(self) -> int:
        return await self._threads.aside(lambda: space(self._folder)[1])

    def local_path(self, path: str) -> str:
        require(not path.startswith("/") and ".." not in path.split("/"), "path %r leaves the data folder", path)
        return os.path.join(self._folder, path) if path else self._folder
