"""The first byte of a connection at the port for RocketMQ's clients: it says which of the two protocols follows.

Owns what carries one that speaks HTTP/2 to the gRPC server of the process.  RocketMQ's other protocol begins with a length, whose first
byte is 0 or 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from dledger_wire.security.principal import Principal
from dledger_wire.tcp.connection import Connection
from dledger_wire.tcp.counted import Counted
from dledger_wire.tcp.joined_grpc import JoinedGrpc
from dledger_wire.tcp.listener import named
from dledger_wire.tcp.received_bytes import ReceivedBytes

HTTP2 = b"P"  # of its preface

Made = Callable[[Counted], asyncio.Protocol]


class FirstByte(asyncio.Protocol):
    """Stands for the protocol of a connection until something has come; ``remoting`` makes that of any other one."""

    def __init__(self, counted: Counted, grpc: JoinedGrpc, memory: ReceivedBytes, remoting: Made) -> None:
        self._counted, self._grpc, self._memory, self._remoting = counted, grpc, memory, remoting
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._counted.opened(self._transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._counted.lost()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None  # noqa: S101 - nothing comes without one
        if not data.startswith(HTTP2):
            other = self._remoting(self._counted)
            transport.set_protocol(other)
            other.connection_made(transport)
            other.data_received(data)
            return
        carried = _Carried(self._counted, self._memory)
        transport.set_protocol(carried)
        carried.connection_made(transport)
        if carried.is_open:
            self._grpc.join(carried, _anybody)
            if carried.raw is not None:
                carried.raw(data)


class _Carried(Connection):
    """A connection that speaks HTTP/2."""

    is_members = False

    def __init__(self, counted: Counted, memory: ReceivedBytes) -> None:
        super().__init__("a peer", memory)
        self._counted = counted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = named(transport.get_extra_info("peername"))
        self._counted.asked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.lost()
        super().connection_lost(exc)


def _anybody(_principal: Principal) -> bool:
    return True
