"""The outgoing side of Raft's transport to one peer: dialling it where it may be, its bounded send queue, the end of the connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from dledger.core.messages import AppendResponse, HeartbeatResponse, Message
from dledger.core.types import NodeId
from dledger_wire.errors import AuthenticationFailedError, DeadlineExceededError, DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, connect_to

if TYPE_CHECKING:
    from dledger.transport.link import RaftLinks

RECONNECT_MIN_S = 0.03
RECONNECT_MAX_S = 0.5
HELLO_TIMEOUT_S = 2.0
QUEUE_LIMIT = 512  # messages; the core keeps far fewer in flight, the rest would be old heartbeats

_logger = logging.getLogger(__name__)


def _supersedes(later: Message, earlier: Message) -> bool:
    if type(later) is AppendResponse and type(earlier) is AppendResponse:
        return later.success and earlier.success and later.term == earlier.term and later.match.index >= earlier.match.index
    if type(later) is HeartbeatResponse and type(earlier) is HeartbeatResponse:
        return later.term == earlier.term and later.round >= earlier.round
    return False


class PeerLink:
    """The outgoing side to one peer.  While it is not connected whatever is sent is dropped: Raft sends it again when it matters."""

    def __init__(self, links: RaftLinks, peer: NodeId, known: str) -> None:
        self.peer = peer
        self.known = known  # its address, by a configuration
        self.address = known  # where it is dialled now
        self._failed = 0  # dials since the last one that succeeded
        self.connected = False
        self.store_id = ""  # of the folder it was on when it was connected last
        self._links = links
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._broken: DledgerError | None = None
        self._last_trouble = ""
        self._stream: ByteStream | None = None  # while connected
        self._is_writing = False  # a message that was taken from the queue is being encoded or written

    def send(self, message: Message) -> None:
        if not self.connected:
            return
        if self._send_now(message):
            return
        queue = self._queue
        if queue and _supersedes(message, queue[-1]):
            queue[-1] = message
        elif len(queue) < QUEUE_LIMIT:
            queue.append(message)
        self._wake.set()

    def _send_now(self, message: Message) -> bool:
        """Write a message to the connection if nothing waits before it; whether it was written."""
        stream = self._stream
        if stream is None or self._queue or self._is_writing or self._broken is not None:
            return False
        data = self._links.owner.encode_now(message)
        return data is not None and stream.write_now(data)

    def retry_now(self) -> None:
        """The peer has just dialled us, so it is up, and has sent its address: do not wait for the back-off to end."""
        self._failed = 0
        self._retry.set()

    async def run(self) -> None:
        pause_s = RECONNECT_MIN_S
        while True:
            places = self._links.places_of(self)
            self.address = places[self._failed % len(places)]
            self._failed += 1
            channel = connect_to(self._links.network, self.address, self._links.identity.principal_of(self.peer))
            try:
                await self._session(methods.RAFT_LINK.open(channel, metadata=self._links.metadata_for(self)))
            except DledgerError as error:
                self._report(error)
            finally:
                was_connected, self.connected = self.connected, False
                self._stream = None
                self._queue.clear()
                await channel.close()
            if was_connected:
                pause_s = RECONNECT_MIN_S
                self._links.broke(self.peer)
            self._retry.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._retry.wait()
                pause_s = RECONNECT_MIN_S
            except TimeoutError:
                pause_s = min(2 * pause_s, RECONNECT_MAX_S)

    async def _session(self, stream: ByteStream) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await stream.read()
        except TimeoutError:
            raise DeadlineExceededError(f"{self.address}: no handshake within {HELLO_TIMEOUT_S} s") from None
        if hello is None:
            raise UnreachableError(f"{self.address}: closed before the handshake")
        self.store_id = await self._links.check_hello(self, hello)
        self._broken = None
        self._stream = stream
        self.connected = True
        self._failed = 0
        self._last_trouble = ""
        _logger.info("%s: connected to %s at %s", self._links.identity.node_id, self.peer, self.address)
        self._links.up(self.peer)
        watcher = self._links.tasks.spawn(self._watch(stream), f"watch-{self.peer}")
        try:
            await self._send_all(stream)
        finally:
            watcher.cancel()

    async def _watch(self, stream: ByteStream) -> None:
        """The acceptor says nothing after its greeting; the end of its side is the first sign that it died."""
        error = UnreachableError(f"{self.address}: {self.peer} closed the link")
        try:
            while await stream.read() is not None:
                pass
        except DledgerError as found:
            error = UnreachableError(found.message)
        self._broken = error
        self._wake.set()

    async def _send_all(self, stream: ByteStream) -> None:
        queue, wake, encode = self._queue, self._wake, self._links.owner.encode
        while True:
            while queue and self._broken is None:
                self._is_writing = True
                try:
                    data = await encode(queue.popleft())
                    if data is not None:
                        await stream.write(data)
                finally:
                    self._is_writing = False
            if self._broken is not None:
                raise self._broken
            wake.clear()
            await wake.wait()

    def _report(self, error: DledgerError) -> None:
        if isinstance(error, InvalidArgumentError | AuthenticationFailedError):
            self._links.refused(self.peer, error)
        if isinstance(error, InvalidArgumentError):
            self._links.owner.link_refused(self.peer, error)
        text = f"{type(error).__name__}: {error.message}"
        if text != self._last_trouble:  # once per reason, not twice a second
            self._last_trouble = text
            level = logging.INFO if isinstance(error, UnreachableError) else logging.WARNING
            _logger.log(
                level,
                "%s: link to %s at %s: %s",
                self._links.identity.node_id,
                self.peer,
                self.address,
                text,
                extra={"event": "link_failed"},
            )
