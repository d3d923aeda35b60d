"""PySyncObj's TCP transport with bounds on what a peer without the password can make it keep.

Owns three of them: bytes of a message before the first one was decrypted, connections that have not said which name server they are, and
how long they may take.  PySyncObj itself has none, and stops listening for good when the process has no file handles left.

Owns, too, that a name server which moved to another address is found there: its name is looked up for every attempt, without holding up
PySyncObj's thread, and an attempt to reach an address that does not answer ends in time.

Uses private parts of PySyncObj, whose version is pinned for that: ``PRIVATE`` names them.
"""

from __future__ import annotations

import logging
from typing import Any

from pysyncobj.monotonic import monotonic
from pysyncobj.node import TCPNode
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from pysyncobj.transport import TCPTransport

from dledger_wire.tcp.resolver import RESOLVER

UNKNOWN_BYTES = 64 << 10
KNOWN_BYTES = 64 << 20  # a snapshot of what was spread is far below
MAX_UNKNOWN = 100
UNKNOWN_S = 5.0
WARN_S = 10.0
CONNECT_S = 2.0
PRIVATE = {
    TcpConnection: ("_TcpConnection__processRead",),
    TCPTransport: (
        "_onNewIncomingConnection",
        "_onTick",
        "_onIncomingMessageReceived",
        "_onDisconnected",
    ),
}

_logger = logging.getLogger(__name__)


class BoundedConnection(TcpConnection):  # type: ignore[misc]
    """An accepted connection."""

    def _TcpConnection__processRead(self) -> bool:
        go_on: bool = super()._TcpConnection__processRead()
        known = self.encryptor is None or self.sendRandKey is not None
        if len(self._TcpConnection__readBuffer) > (KNOWN_BYTES if known else UNKNOWN_BYTES):
            self.disconnect()
            return False
        return go_on


class FollowedNode(TCPNode):  # type: ignore[misc]
    """A name server, wherever its name leads at the time."""

    @property
    def ip(self) -> str | None:
        """None: not known yet; the next attempt asks again."""
        return RESOLVER.address_at_once(self.host)


class BoundedTransport(TCPTransport):  # type: ignore[misc]
    """Of one name server."""

    def __init__(self, *args: Any) -> None:
        self._since: dict[BoundedConnection, float] = {}  # of those that are not authenticated, oldest first
        self._refused = 0
        self._warned_s = 0.0
        super().__init__(*args)

    def _onNewIncomingConnection(self, conn: TcpConnection) -> None:
        conn.__class__ = BoundedConnection
        super()._onNewIncomingConnection(conn)
        self._since[conn] = monotonic()
        if len(self._since) > MAX_UNKNOWN:
            self._refuse(next(iter(self._since)))

    def _onTick(self) -> None:
        super()._onTick()
        before = monotonic() - UNKNOWN_S
        for conn, since in list(self._since.items()):
            if conn not in self._unknownConnections:
                del self._since[conn]
            elif since < before:
                self._refuse(conn)
        self._give_up_dialling()

    def _give_up_dialling(self) -> None:
        """The kernel would try for two minutes, and the name may lead elsewhere by now."""
        before = monotonic() - CONNECT_S
        for node, conn in list(self._connections.items()):
            if conn.state == CONNECTION_STATE.CONNECTING and self._lastConnectAttempt.get(node, 0.0) < before:
                conn.disconnect()

    def _onIncomingMessageReceived(self, conn: TcpConnection, message: Any) -> None:
        if self._is_unnamed(conn, message):
            self._since.pop(conn, None)  # no stranger: it knows the password
            _logger.warning(
                "the quorum of name servers: one comes as %s, which the cluster file did not name when this one was started",
                message,
                extra={"event": "quorum_unnamed"},
            )
        known = dict(self._connections)
        super()._onIncomingMessageReceived(conn, message)
        for node, before in known.items():
            if self._connections.get(node) is conn and before is not conn:
                before.disconnect()  # of the time before that name server came back

    def _is_unnamed(self, conn: TcpConnection, message: Any) -> bool:
        """Whether a connection that proved to know the password says that it is a name server which this one does not know."""
        return conn.sendRandKey is not None and isinstance(message, str) and message not in self._nodeAddrToNode

    def _onDisconnected(self, conn: TcpConnection) -> None:
        if self._since.pop(conn, None) is not None and conn in self._unknownConnections:
            self._log()
        super()._onDisconnected(conn)

    def _refuse(self, conn: BoundedConnection) -> None:
        conn.disconnect()  # calls ``_onDisconnected``
        self._since.pop(conn, None)

    def _log(self) -> None:
        self._refused += 1
        now_s = monotonic()
        if now_s - self._warned_s >= WARN_S:
            _logger.warning(
                "the quorum of name servers: %d connections were closed because they did not prove the password",
                self._refused,
                extra={"event": "quorum_strangers"},
            )
            self._refused, self._warned_s = 0, now_s
