"""Recovers the configurations in force at a start without reading the whole log.

Owns ``configuration.json``: the newest configuration among the entries applied so far, and the last index it covers.  It is only a
shortcut: the log is authoritative, a start scans what follows, and without the file it scans everything.  A log that ends before that
index has lost entries, and the node does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dledger.core.types import EntryKind
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.log.lost_end import check_log_reaches
from dledger.membership.configuration import Configuration
from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import CorruptEntryError, DataDirectoryError, StorageDamagedError

PATH = "configuration.json"
SAVE_EVERY = 50_000  # entries: what a start after a crash scans at most

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedConfiguration:
    """The newest ``configuration`` among the entries up to ``last_index``, and its ``index``; 0 and None: the initial membership."""

    last_index: int = 0
    index: int = 0
    configuration: Configuration | None = None


def _encode(saved: SavedConfiguration) -> dict[str, object]:
    body = saved.configuration.encode().decode() if saved.configuration is not None else ""
    return {"upto": saved.last_index, "index": saved.index, "configuration": body}


def _decode(data: Any) -> SavedConfiguration:
    body = str(data["configuration"])
    try:
        configuration = Configuration.decode(body.encode()) if body else None
    except CorruptEntryError as error:
        raise ValueError(str(error)) from error
    return SavedConfiguration(int(data["upto"]), int(data["index"]), configuration)


_FILE = JsonFile(PATH, _decode, _encode, indent=1)


def content(last_index: int, index: int, configuration: Configuration | None) -> str:
    """What the file says of the newest configuration among the entries up to ``last_index``."""
    return _FILE.content(SavedConfiguration(last_index, index, configuration)).decode()


class ConfigurationFile:
    """The newest applied configuration and its place in the log."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._index = 0  # of the configuration entry; 0: the initial membership still counts
        self._configuration: Configuration | None = None
        self._last_index = 0
        self._saved_index = 0
        self._log: Log | None = None

    async def find_all(self, log: Log, applied: int) -> list[tuple[int, Configuration]]:
        """(index, configuration) of the newest applied configuration and of every later one in the log, oldest first."""
        self._log = log
        self._index, self._configuration, self._last_index = 0, None, 0
        await self._load(log)
        if self._last_index + 1 < log.first_index:
            path = self._disk.local_path(PATH)
            raise StorageDamagedError(f"{path}: the configuration before entry {log.first_index} is not known", file=path, pos=0)
        found = [] if self._configuration is None else [(self._index, self._configuration)]
        for index in range(max(self._last_index + 1, log.first_index), log.last.index + 1):
            place = log.locate(index) or await log.find(index)
            if place.kind is EntryKind.CONFIG:
                (entry,) = await log.read(index, place.size, index)
                if entry.kind is EntryKind.CONFIG:  # the place may be that of an index unit, which has no checksum
                    found.append((index, Configuration.decode(entry.body_bytes())))
        for index, configuration in found:
            if index <= applied:
                self._index, self._configuration = index, configuration
        self._last_index = max(self._last_index, applied)
        return found

    def applied(self, entries: Sequence[RawEntry]) -> bool:
        """Note applied entries; true when it is time to save."""
        for entry in entries:
            # A replay after a crash passes the older ones again.  The file covers them, and would otherwise name one of them as the newest
            # up to ``_last_index``: a crash before the replay reaches the newest would make the next start use an old membership.
            if entry.kind is EntryKind.CONFIG and entry.index > self._index:
                self._index, self._configuration = entry.index, Configuration.decode(entry.body_bytes())
                self._saved_index = -SAVE_EVERY
        self._last_index = max(self._last_index, entries[-1].index)
        return self._last_index - self._saved_index >= SAVE_EVERY

    @property
    def newest(self) -> tuple[int, Configuration | None]:
        """(index, configuration) of the newest applied one; (0, None) while the initial membership counts.

        While a start applies again what was applied before, its entry may lie above what is applied since.
        """
        return self._index, self._configuration

    async def save(self) -> None:
        """Write the file; a failure is logged and costs the next start some time."""
        try:
            await self.write()
        except OSError as error:
            _logger.warning("cannot write %s: %s", PATH, error, extra={"event": "file_not_written"})

    async def write(self) -> int:
        """Write the file, as far as its entries are durable here; returns the last index it covers.

        What is deleted from the log's head must be in the file before.
        """
        last_index = min(self._last_index, self._log.durable.index) if self._log is not None else 0
        if self._index <= last_index:  # else the newest configuration is not on this disk yet
            await _FILE.write(self._disk, SavedConfiguration(last_index, self._index, self._configuration))
            self._saved_index = last_index
        return self._saved_index

    async def _load(self, log: Log) -> None:
        try:
            saved = await _FILE.read(self._disk) or SavedConfiguration()
        except DataDirectoryError as error:
            _logger.warning("%s; rebuilding it from the log", error, extra={"event": "file_rebuilt"})
            saved = SavedConfiguration()
        check_log_reaches(saved.last_index, log.last.index, self._disk.local_path(PATH))
        self._last_index = self._saved_index = saved.last_index
        self._index, self._configuration = saved.index, saved.configuration
