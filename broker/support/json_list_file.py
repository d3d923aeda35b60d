"""A list that a node or a name server keeps over its restarts, as one field of a small JSON file.

Owns when the file is written.  Nothing is decided by such a list: where the file cannot be read or written, its owner works as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import DataDirectoryError
from dledger_wire.tasks import BackgroundTasks

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class JsonListFile(Generic[T]):
    """``rows``: what the list is now, asked when it is written, ``write_after_s`` behind the first of some changes."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        field: str,
        rows: Callable[[], Sequence[T]],
        *,
        decode: Callable[[dict[str, Any]], T],
        encode: Callable[[T], Mapping[str, Any]],
        write_after_s: float = 0.0,
    ) -> None:
        self._disk, self._rows, self._write_after_s = disk, rows, write_after_s
        self._file = JsonFile[Sequence[T]](
            path, lambda data: [decode(row) for row in data[field]], lambda rows: {field: [encode(row) for row in rows]}
        )
        self._changed = asyncio.Event()

    async def open(self, tasks: BackgroundTasks, *, lost: str) -> Sequence[T]:
        """What earlier runs kept; from now on changes are written.  ``lost``: what a file that cannot be read means, for the log."""
        found: Sequence[T] = ()
        try:
            found = await self._file.read(self._disk) or ()
        except (OSError, DataDirectoryError) as error:
            where = self._disk.local_path(self._file.path)
            _logger.warning("%s cannot be read, %s: %s", where, lost, error, extra={"event": "file_reset"})
        tasks.spawn(self._keep(), f"keep {self._file.path}")
        return found

    def changed(self) -> None:
        """The list is another one."""
        self._changed.set()

    async def close(self) -> None:
        """What was not written yet is, when this returns; call it when the tasks have ended."""
        if self._changed.is_set():
            await self._write()

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            if self._write_after_s:
                await asyncio.sleep(self._write_after_s)
            await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        try:
            await self._file.write(self._disk, self._rows())
        except OSError as error:
            where = self._disk.local_path(self._file.path)
            _logger.info("%s cannot be written now: %s", where, error)  # written with the next change
