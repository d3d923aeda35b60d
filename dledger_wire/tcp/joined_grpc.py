"""A gRPC server of this process behind a port of it: connections that speak HTTP/2 are joined to it through a Unix socket.

Owns the socket, the bytes in both directions, and how many of them the server may hold.  Whoever accepts connections decides which ones
speak HTTP/2 (``mixed_network.py``, and the port for RocketMQ's clients).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable

from dledger_wire.rpc.grpc_callers import GrpcCallers, Reading
from dledger_wire.rpc.transport import StreamHandler, UnaryHandler
from dledger_wire.security.principal import Principal
from dledger_wire.tcp.authentication import MAX_FRAME, certified
from dledger_wire.tcp.connection import NO_RECEIVER, Connection, Receiver
from dledger_wire.tcp.http2_bytes import Http2Bytes
from dledger_wire.tcp.received_bytes import ReceivedBytes

FAR_WRITE_BUFFER = 1 << 20
OPENED_S = 5.0


class JoinedGrpc:
    """Implements ``Server``, but for accepting.  A socket ``name`` in ``folder``, or in a temporary one, leads to it; ``memory`` counts
    what goes through it."""

    def __init__(self, callers: GrpcCallers, folder: str, name: str, memory: ReceivedBytes) -> None:
        from dledger_wire.rpc.grpc_server import GrpcServer

        self._callers = callers
        self._memory = memory
        self._temporary = "" if folder else tempfile.mkdtemp(prefix="dledger-")
        self._folder: int | None = os.open(folder or self._temporary, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # By the descriptor, because a data folder may be deeper than the 107 bytes that the path of a socket may have.
        self._path = f"/proc/self/fd/{self._folder}/{name}"
        self._grpc = GrpcServer(f"unix:{self._path}", self._callers)
        self._joints: set[_Joint] = set()

    def join(self, connection: Connection, known: Callable[[Principal], bool]) -> None:
        """Serve a connection, of which nothing was read yet or what was read is given to its ``raw``."""
        # No other process can foresee it and bind it first.
        name = f"dledger-{secrets.token_hex(16)}"
        joint = _Joint(connection, self._path, name, self._memory)

        def on_known(principal: Principal, admitted: bool) -> bool:
            serves = not admitted or known(principal)  # a caller that asks for health alone must still authenticate in time
            if serves:
                joint.called(is_known=admitted)
            return serves

        if not self._callers.authenticates:
            joint.called(is_known=True)
        self._callers.joined(name, connection.peer, certified(connection.transport), on_known, joint)
        self._joints.add(joint)
        connection.closed.add_done_callback(lambda _: self._parted(joint, name))

    def _parted(self, joint: _Joint, name: str) -> None:
        self._joints.discard(joint)
        self._callers.parted(name)

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._grpc.add_unary(method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._grpc.add_stream(method, handler)

    async def start(self) -> None:
        await self._grpc.start()

    async def stop(self, grace_s: float) -> None:
        await self._grpc.stop(grace_s)
        self._remove_socket()

    def _remove_socket(self) -> None:
        folder, self._folder = self._folder, None
        if folder is None:  # stopped twice
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(folder)
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)


class _Joint(asyncio.Protocol, Receiver, Reading):
    """Carries bytes between an accepted connection (``near``) and the gRPC server; each side waits while the other is slow.

    Of an unauthenticated caller only ``MAX_FRAME`` bytes are carried: what follows waits until it is, or the connection's time is over.
    What gRPC may hold of callers that are known is counted over all connections: beyond the limit the one with the most is closed.
    """

    def __init__(self, near: Connection, path: str, name: str, memory: ReceivedBytes) -> None:
        self._near = near
        self._memory = memory
        self._bytes = Http2Bytes()
        self._counted = 0
        self._carried = 0
        self._known = False
        self._far_waits = False
        self._name = name
        self._far: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        near.receiver = self
        near.raw = self._forward
        near.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(path), name="connect to gRPC")

    async def _connect(self, path: str) -> None:
        try:
            async with asyncio.timeout(OPENED_S):
                await self._connect_named(path)
        except (OSError, TimeoutError):
            self._near.abort()
        else:
            self._resume_near()

    async def _connect_named(self, path: str) -> None:
        """Connect from a socket with an abstract name: the server distinguishes its callers by that."""
        loop = asyncio.get_running_loop()
        own = socket.socket(socket.AF_UNIX)
        try:
            own.setblocking(False)
            own.bind("\0" + self._name)
            await loop.sock_connect(own, path)
            await loop.create_unix_connection(lambda: self, sock=own)
        except BaseException:
            own.close()
            raise

    # -- near: the accepted connection's receiver

    def called(self, *, is_known: bool) -> None:
        """The caller may go on: for good when it is authenticated, else for as much again."""
        self._known = self._known or is_known
        self._carried = 0
        self._resume_near()

    def _resume_near(self) -> None:
        if self._far is not None and not self._far_waits and (self._known or self._carried < MAX_FRAME):
            self._near.resume_reading()

    def read(self, size: int) -> None:
        """A handler of a stream has read so many bytes."""
        self._bytes.read(size)
        self._count()

    def returned(self, size: int) -> None:
        """A handler that has read so many bytes in all has returned."""
        self._bytes.returned(size)

    def _count(self) -> None:
        change = (0 if self._near.receiver is not self else self._bytes.held) - self._counted
        if change:
            self._counted += change
            self._memory.wait(self._near, change)

    def _forward(self, data: bytes) -> None:
        self._bytes.asked(data)
        self._count()
        if self._near.receiver is not self:  # it held the most
            return
        self._carried += len(data)
        if not self._known and self._carried >= MAX_FRAME:
            self._near.pause_reading()
        if self._far is None:
            self._waiting.append(data)
        else:
            self._far.write(data)

    def shed(self) -> None:
        self._near.receiver = NO_RECEIVER
        self.lost()

    def lost(self) -> None:
        self._count()
        self._connecting.cancel()
        if self._far is not None:
            self._far.close()

    # -- far: the connection to the gRPC server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._far = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=FAR_WRITE_BUFFER)  # type: ignore[attr-defined]
        for data in self._waiting:
            transport.write(data)  # type: ignore[attr-defined]
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._bytes.answered(data)
        self._count()
        self._near.put_raw(data)
        held_back = self._near.held_back
        if held_back is not None and self._far is not None:
            self._far.pause_reading()
            held_back.add_done_callback(lambda _: self._resume_far())

    def _resume_far(self) -> None:
        if self._far is not None and not self._far.is_closing():
            with contextlib.suppress(RuntimeError):  # it reads already
                self._far.resume_reading()

    def pause_writing(self) -> None:
        self._far_waits = True
        self._near.pause_reading()

    def resume_writing(self) -> None:
        self._far_waits = False
        self._resume_near()

    def connection_lost(self, exc: Exception | None) -> None:
        self._far = None
        self._near.close_after_flush()
