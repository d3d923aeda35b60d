"""Keeps ``identity.json`` at the replica group's feature level, so that a build that cannot do it refuses the folder at once.

The log and its snapshots say the same, later: a failed write is logged, and the next start makes up for it.
"""

from __future__ import annotations

import asyncio
import logging

from broker.process.identity import FolderIdentity, write_identity
from dledger.runtime.env import Disk
from dledger_wire.tasks import BackgroundTasks
from store.state.feature_level import FeatureLevelState

_logger = logging.getLogger(__name__)


class LevelStamp:
    """Of one node."""

    def __init__(self, disk: Disk, identity: FolderIdentity, level: FeatureLevelState, tasks: BackgroundTasks) -> None:
        self.identity = identity
        self._disk, self._level, self._tasks = disk, level, tasks
        self._writing = asyncio.Lock()

    def start(self) -> None:
        """Follow the level, which may have risen already."""
        self._level.changed = self._changed
        self._changed()

    def _changed(self) -> None:
        if self._level.level > self.identity.feature_level:
            self._tasks.spawn(self._write(), "feature level of the folder")

    async def _write(self) -> None:
        async with self._writing:
            now = self._level.now
            if now.level <= self.identity.feature_level:
                return
            stamped = self.identity.at_level(now.level, now.release)
            try:
                await write_identity(self._disk, stamped)
            except OSError as error:
                _logger.warning("the folder's feature level could not be written: %s", error, extra={"event": "file_not_written"})
                return
            self.identity = stamped
            text = "the replica group is at feature level %d; the data folder needs dledger %s or newer from here on"
            _logger.info(text, now.level, now.release, extra={"event": "feature_level"})
