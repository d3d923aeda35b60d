"""Bytes that connections have received and nobody has taken yet: one count and one limit for all of them.

Owns which connection is refused when there are too many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger_wire.errors import BusyError
from dledger_wire.tcp.rare_warning import RareWarning

if TYPE_CHECKING:
    from dledger_wire.tcp.connection import Connection

RECEIVED_BYTES_LIMIT = 512 << 20


class ReceivedBytes:
    """Bytes received and not yet taken, over all connections that share this."""

    def __init__(self, limit: int = RECEIVED_BYTES_LIMIT) -> None:
        self.held = 0
        self._limit = limit
        self._unfinished: dict[Connection, int] = {}
        self._warning = RareWarning()

    def hold(self, connection: Connection, size: int) -> None:
        """``connection`` has buffers of ``size`` bytes for a message that is not complete."""
        self.held += size - self._unfinished.pop(connection, 0)
        if size:
            self._unfinished[connection] = size
        while self.held > self._limit and self._unfinished:
            largest = max(self._unfinished, key=self._unfinished.__getitem__)
            self._warning.tell(f"{largest.peer}: refused: {self.held >> 20} MiB received and not yet taken over all connections")
            largest.refuse(BusyError("too many bytes received and not yet taken over all connections; nothing of this message was kept"))
