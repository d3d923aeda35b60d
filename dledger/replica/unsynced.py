"""State of a replica under ASYNC_FLUSH that must survive a power loss: that it may have lost what it acknowledged.

Owns ``unsynced.json``, which exists while such a replica runs.  It holds the machine's boot id (a killed process loses nothing it wrote; a
new boot means that memory was lost) and whether the replica is suspect (``core/soundness.py``).  If the group has another entry in the
place of one that was committed here, it also says that log and state must be rebuilt from scratch at the next start, and from then on that
they were: such a replica knows no configuration but the first one.  The file is removed by an orderly stop, and by a start under SYNC_FLUSH
once what stands in the log is synced.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from dledger.core.effects import Diverged, Sound
from dledger.log import quarantine
from dledger.log.segment import UNITS_FOLDER
from dledger.log.start import LOG_START_PATH
from dledger.runtime.env import Environment
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import DataDirectoryError, StorageDamagedError

PATH = "unsynced.json"
DIVERGED = "diverged-"  # of the old log's segments, kept in quarantine

_logger = logging.getLogger(__name__)


class LogDivergedError(StorageDamagedError):
    """Power was lost before a majority had synced an entry that was committed here; the next start begins from scratch."""


class UnsyncedMark:
    """The file of one replica.  ``derived``: files and folders that are made from the log.

    Where the machine's boot is not known, every life but one with an orderly end counts as ended by a loss of power.
    """

    def __init__(self, env: Environment, derived: Sequence[str], *, sync_flush: bool) -> None:
        self._disk = env.disk
        self._boot_id = env.boot_id
        self._derived = derived
        self._sync_flush = sync_flush
        self.suspect = False
        self.discarded = False  # suspect, and its log began from scratch
        self._diverged = False

    async def load(self) -> None:
        """At a start, before the log is opened."""
        found = await self._read()
        if found is not None:
            if found.get("diverged"):
                await self._start_over()
            self.discarded = bool(found.get("diverged") or found.get("discarded"))
            other_boot = not self._boot_id or found.get("boot") != self._boot_id
            self.suspect = bool(found.get("diverged") or found.get("suspect") or other_boot)
        if self.suspect:
            _logger.warning(
                "power was lost with unsynced entries: not counted in elections until the missing ones are fetched",
                extra={"event": "power_lost"},
            )
        if self._is_needed:
            await self._write()

    async def log_opened(self) -> None:
        """What a former life under ASYNC_FLUSH left in the log is on stable storage now."""
        if not self._is_needed:
            await self._remove_mark()

    async def record(self, effect: Sound | Diverged, failed: Callable[[BaseException], None]) -> None:
        """What the core found out."""
        if isinstance(effect, Sound):
            self.suspect = self.discarded = False
            await (self._write() if self._is_needed else self._remove_mark())
            _logger.warning(
                "recovered every entry that may have been acknowledged before the power loss", extra={"event": "power_loss_recovered"}
            )
            return
        index, leader, self._diverged = effect.index, effect.source, True
        await _FILE.write(self._disk, {"boot": self._boot_id, "suspect": True, "diverged": index})
        why = "power was lost before a majority had synced it"
        failed(LogDivergedError(f"entry {index}, committed here, is another one at leader {leader}: {why}; restart this node"))

    async def stopped(self, *, synced: bool) -> None:
        """The replica has stopped; ``synced``: with its whole log."""
        if synced and not self.suspect and not self._diverged:
            await self._remove_mark()

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await _FILE.read(self._disk)
        except DataDirectoryError:
            return {"suspect": True}

    @property
    def _is_needed(self) -> bool:
        return self.suspect or not self._sync_flush

    async def _write(self) -> None:
        await _FILE.write(self._disk, {"boot": self._boot_id, "suspect": self.suspect, "discarded": self.discarded})

    async def _remove_mark(self) -> None:
        if await self._disk.exists(PATH):
            await self._disk.remove(PATH)

    async def _start_over(self) -> None:
        """Promises and identities stay, the old log is kept in quarantine.  May be done again after a crash in the middle of it."""
        disk = self._disk
        for name in await disk.list(LOG_FOLDER):
            kept = f"{quarantine.FOLDER}/{DIVERGED}{name}"
            if await disk.exists(kept):
                await disk.remove(kept)
            await disk.rename(f"{LOG_FOLDER}/{name}", kept)
        for path in (UNITS_FOLDER, SNAPSHOT_FOLDER, LOG_START_PATH, *self._derived):
            await self._remove(path)
        _logger.warning(
            "the previous log is kept in %s; this replica starts from scratch",
            disk.local_path(quarantine.FOLDER),
            extra={"event": "log_diverged"},
        )

    async def _remove(self, path: str) -> None:
        for name in await self._disk.list(path):
            await self._remove(f"{path}/{name.rstrip('/')}")
        if await self._disk.exists(path) and not await self._disk.list(path):
            with contextlib.suppress(IsADirectoryError, PermissionError):  # an empty folder
                await self._disk.remove(path)


def _decode(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, found {type(data).__name__}")
    return data


_FILE = JsonFile(PATH, _decode, dict)
