"""Bytes that connections have received and no reader has taken yet: one count and one limit for all of them.

Owns how many complete messages a stream may let wait, and which connection is refused when there are too many bytes all the same: the one
that holds the most, and one of a member of the cluster only where no other one holds any.  So neither can callers whose messages wait keep
out those of others, nor the replicas of a node each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger_wire.errors import BusyError
from dledger_wire.tcp.rare_warning import RareWarning

if TYPE_CHECKING:
    from dledger_wire.tcp.connection import Connection

RECEIVED_BYTES_LIMIT = 512 << 20
WAITING_BYTES = 8 << 20  # complete messages of one stream
SCARCE_BYTES = 256 << 10  # the same once half of the limit is in use


class ReceivedBytes:
    """Bytes received and not yet taken, over all connections that share this."""

    def __init__(self, limit: int = RECEIVED_BYTES_LIMIT) -> None:
        self.held = 0
        self._limit = limit
        self._unfinished: dict[Connection, int] = {}
        self._waiting: dict[Connection, int] = {}
        self._warning = RareWarning()

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of complete messages a stream may let wait before its connection is left alone."""
        return WAITING_BYTES if 2 * self.held <= self._limit else SCARCE_BYTES

    def hold(self, connection: Connection, size: int) -> None:
        """``connection`` has buffers of ``size`` bytes for a message that is not complete."""
        self.held += size - self._unfinished.pop(connection, 0)
        if size:
            self._unfinished[connection] = size
            self._look()

    def wait(self, connection: Connection, change: int) -> None:
        """So many bytes of complete messages of ``connection`` wait more than before, or, negative, less."""
        self.held += change
        waiting = self._waiting.pop(connection, 0) + change
        if waiting:
            self._waiting[connection] = waiting
        if change > 0:
            self._look()

    def _look(self) -> None:
        while self.held > self._limit and (holding := self._unfinished.keys() | self._waiting.keys()):
            largest = max(holding, key=lambda each: (not each.is_members, self._of(each)))
            self._warning.log(f"{largest.peer}: refused: {self.held >> 20} MiB received and not yet taken over all connections")
            largest.drop(BusyError("too many bytes received and not yet taken over all connections; nothing of what waited was kept"))
            self.held -= self._of(largest)
            self._unfinished.pop(largest, None)
            self._waiting.pop(largest, None)

    def _of(self, connection: Connection) -> int:
        return self._unfinished.get(connection, 0) + self._waiting.get(connection, 0)
