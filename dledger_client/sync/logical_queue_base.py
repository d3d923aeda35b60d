"""A writer of a logical queue that is open as soon as it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from dledger_client.aio.logical_queue import LogicalQueueWriter as AsyncLogicalQueueWriter
from dledger_client.sync.base import SyncClient


class LogicalQueueWriterBase(SyncClient[AsyncLogicalQueueWriter]):
    """The hand-written part of ``LogicalQueueWriter``."""

    _sync_notes: ClassVar[str] = """
    The writer is open when it is made: the constructor calls ``open``.
    """

    def _open(self, make: Callable[[], AsyncLogicalQueueWriter]) -> None:
        super()._open(make)
        try:
            self._run(self._inner.open())
        except BaseException:
            self._finish(self._inner.close)
            raise
