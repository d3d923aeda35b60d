"""One frame whose last bytes go from a file to the socket, around the transport.

Owns the order on the connection meanwhile: the transport has to be empty before, and what is put while the frame is under way waits
behind it (``Connection.go_around``).  The socket is duplicated, so that a thread that still sends when its caller is gone never meets a
number that belongs to another connection.  A frame that cannot be finished breaks the connection.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from dledger_wire.rpc.stored import OpenBytes, StoredBytes
from dledger_wire.tcp.connection import FRAME, Connection


class _Duplicate:
    """A ``SocketHandle``: closed by its last holder, be it the loop or a thread."""

    def __init__(self, found: socket.socket) -> None:
        self.socket = socket.fromfd(found.fileno(), found.family, found.type)
        self.socket.setblocking(False)

    def fileno(self) -> int:
        return self.socket.fileno()

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()


def sends_stored(connection: Connection) -> bool:
    """Whether bytes may go from a file to this connection's socket: no encryption on the way."""
    transport = connection.transport
    if transport is None or not sys.platform.startswith("linux"):
        return False
    return transport.get_extra_info("ssl_object") is None and transport.get_extra_info("socket") is not None


async def put_stored(connection: Connection, kind: int, head: bytes, stored: StoredBytes) -> None:
    """Write one frame of ``head`` and the stored bytes.  UnreachableError when the connection is lost."""
    async with stored.opened() as opened:
        await connection.flushed()
        transport = connection.transport
        if transport is None or not connection.is_open:
            raise connection.gone()
        try:
            frame = _StoredFrame(connection, _Duplicate(transport.get_extra_info("socket")))
        except OSError:  # no handle is left
            connection.put(kind, head + await opened.read(0))
            return
        whole = False
        connection.go_around()
        try:
            await frame.send_head(FRAME.pack(kind, len(head) + stored.size) + head)
            await frame.send_stored(opened, stored.size)
            whole = True
        finally:
            frame.over()
            if not whole:
                connection.abort()
            connection.come_back()


class _StoredFrame:
    def __init__(self, connection: Connection, target: _Duplicate) -> None:
        self._connection = connection
        self._target = target
        self._held_back = False

    async def send_head(self, head: bytes) -> None:
        left = memoryview(head)
        while left:
            try:
                sent = self._target.socket.send(left, socket.MSG_MORE)
            except BlockingIOError:
                await self._writable()
            except OSError:
                raise self._connection.gone() from None
            else:
                left = left[sent:]
        self._connection.sent_around(len(head))

    async def send_stored(self, opened: OpenBytes, size: int) -> None:
        connection, done = self._connection, 0
        while done < size:
            if not connection.is_connected:
                raise connection.gone()
            try:
                sent = await opened.send(self._target, done)
            except ConnectionError:
                raise connection.gone() from None
            except OSError:
                # Not every file system can, and a disk may fail: reading reports it, and is repaired where that is possible.
                rest = await opened.read(done)
                self.go_on()
                connection.put_raw(rest)  # by the transport again
                return
            if not sent:
                await self._writable()
            done += sent
            connection.sent_around(sent)
            await asyncio.sleep(0)  # others have their turn

    async def _writable(self) -> None:
        """Wait until the socket takes more, or the connection is lost.  Meanwhile it is one whose other side does not read."""
        connection = self._connection
        if not connection.is_connected:
            raise connection.gone()
        if not self._held_back:
            self._held_back = True
            connection.pause_writing()
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not writable.done():
                writable.set_result(None)

        loop.add_writer(self._target.fileno(), wake)
        connection.closed.add_done_callback(wake)
        try:
            await writable
        finally:
            connection.closed.remove_done_callback(wake)
            loop.remove_writer(self._target.fileno())

    def over(self) -> None:
        self.go_on()
        del self._target  # a kept error does not keep the connection

    def go_on(self) -> None:
        """The other side has read what it was waited for."""
        if self._held_back:
            self._held_back = False
            self._connection.resume_writing()
