"""A list that a node or a name server keeps over its restarts, as one field of a small JSON file.

Owns when the file is written.  Nothing is decided by such a list: where the file cannot be read or written, its owner works as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dledger.runtime.env import Disk
from dledger_wire import strict_json
from dledger_wire.tasks import BackgroundTasks

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class JsonListFile:
    """``rows``: what the list is now, asked when it is written, ``write_after_s`` behind the first of some changes."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        field: str,
        rows: Callable[[], Sequence[Mapping[str, Any]]],
        *,
        max_bytes: int,
        write_after_s: float = 0.0,
    ) -> None:
        self._disk, self._path, self._field, self._rows = disk, path, field, rows
        self._max_bytes, self._write_after_s = max_bytes, write_after_s
        self._changed = asyncio.Event()

    async def open(self, tasks: BackgroundTasks, decode: Callable[[dict[str, Any]], T], *, lost: str) -> list[T]:
        """What earlier runs kept; from now on changes are written.  ``lost``: what a file that cannot be read means, for the log."""
        found: list[T] = []
        try:
            found = [decode(row) for row in await self._read()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            _logger.warning("%s cannot be read, %s: %s", self._disk.local_path(self._path), lost, error, extra={"event": "file_reset"})
        tasks.spawn(self._keep(), f"keep {self._path}")
        return found

    def changed(self) -> None:
        """The list is another one."""
        self._changed.set()

    async def close(self) -> None:
        """What was not written yet is, when this returns; call it when the tasks have ended."""
        if self._changed.is_set():
            await self._write()

    async def _read(self) -> list[dict[str, Any]]:
        if not await self._disk.exists(self._path):
            return []
        file = await self._disk.open(self._path)
        try:
            data = await file.pread(0, self._max_bytes)
        finally:
            await file.close()
        return list(strict_json.parse(data)[self._field])

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            if self._write_after_s:
                await asyncio.sleep(self._write_after_s)
            await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        data = json.dumps({self._field: list(self._rows())}).encode()
        try:
            await self._disk.write_atomic(self._path, data + b"\n")
        except OSError as error:
            _logger.info("%s cannot be written now: %s", self._disk.local_path(self._path), error)  # written with the next change
