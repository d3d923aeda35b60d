"""Raft's transport: one outgoing stream per peer, which carries every message of this node to it.

Owns connecting, reconnecting, the bounded send queues, the identity check on both ends, and the report that a peer is gone.  Messages
may be lost (queue full, no connection) but are never duplicated or reordered on one stream.  It does not interpret messages, except
that a later acknowledgement or heartbeat response supersedes one still in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dledger.core.messages import AppendResponse, HeartbeatResponse, Message
from dledger.core.types import NodeId
from dledger.log.hard_state import MAX_VOTE_BYTES
from dledger.membership import handshake
from dledger.membership.handshake import Handshake
from dledger_wire.addresses import is_address
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError, NotReadyError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Network, Server, connect_to
from dledger_wire.security import principal
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks

RECONNECT_MIN_S = 0.03
RECONNECT_MAX_S = 0.5
HELLO_TIMEOUT_S = 2.0
QUEUE_LIMIT = 512  # messages; the core keeps far fewer in flight, the rest would be old heartbeats

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a replica is: ``store_id`` is drawn when its data folder is made, so a folder that was wiped shows as another one."""

    cluster: str
    group: str
    node_id: NodeId
    store_id: str
    address: str

    def principal_of(self, member: NodeId) -> Principal:
        """The name that a member of this replica group has in its certificate."""
        return principal.node(self.cluster, self.group, member)


class LinkOwner(Protocol):
    """What the links call in their replica."""

    async def encode(self, message: Message) -> bytes | None:
        """The bytes of a message; None when it has become pointless (its entries are gone from the log)."""
        ...

    def received(self, source: NodeId, store: str, data: bytes) -> None:
        """A message from ``source`` on the data folder ``store``.  InvalidArgumentError ends the link."""
        ...

    def peer_lost(self, peer: NodeId) -> None: ...
    def handshake(self) -> Handshake:
        """What this replica sends about its own folder."""
        ...

    async def check_handshake(self, peer: NodeId, said: Handshake, *, dialled: bool) -> None:
        """InvalidArgumentError when ``peer`` may not connect with this folder.  ``dialled``: it was reached at its own address."""
        ...

    def link_refused(self, peer: NodeId, refusal: InvalidArgumentError) -> None:
        """A link to ``peer``, which was dialled, was refused by either side."""
        ...

    def address_of(self, peer: NodeId) -> str:
        """Where to dial a replica that some configuration names; else empty."""
        ...


def _supersedes(later: Message, earlier: Message) -> bool:
    if type(later) is AppendResponse and type(earlier) is AppendResponse:
        return later.success and earlier.success and later.term == earlier.term and later.match.index >= earlier.match.index
    if type(later) is HeartbeatResponse and type(earlier) is HeartbeatResponse:
        return later.term == earlier.term and later.round >= earlier.round
    return False


class _PeerLink:
    """The outgoing side to one peer.  While it is not connected whatever is sent is dropped: Raft sends it again when it matters."""

    def __init__(self, links: RaftLinks, peer: NodeId, address: str) -> None:
        self.peer = peer
        self.address = address
        self.connected = False
        self.store_id = ""  # of the folder it was on when it was connected last
        self._links = links
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._broken: DledgerError | None = None
        self._last_trouble = ""

    def send(self, message: Message) -> None:
        if not self.connected:
            return
        queue = self._queue
        if queue and _supersedes(message, queue[-1]):
            queue[-1] = message
        elif len(queue) < QUEUE_LIMIT:
            queue.append(message)
        self._wake.set()

    def retry_now(self) -> None:
        """The peer has just dialled us, so it is up: do not wait for the back-off to end."""
        self._retry.set()

    async def run(self) -> None:
        pause_s = RECONNECT_MIN_S
        while True:
            channel = connect_to(self._links.network, self.address, self._links.identity.principal_of(self.peer))
            try:
                await self._session(methods.RAFT_LINK.open(channel, metadata=self._links.metadata_for(self.peer)))
            except DledgerError as error:
                self._tell(error)
            finally:
                was_connected, self.connected = self.connected, False
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
        self.store_id = await self._links.check_hello(self.peer, hello)
        self._broken = None
        self.connected = True
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
                data = await encode(queue.popleft())
                if data is not None:
                    await stream.write(data)
            if self._broken is not None:
                raise self._broken
            wake.clear()
            await wake.wait()

    def _tell(self, error: DledgerError) -> None:
        if isinstance(error, InvalidArgumentError):
            self._links.refused(self.peer, error)
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


class RaftLinks:
    """All links of one replica: dialled ones by peer, and the streams that peers dialled.

    Dialled are the members of the configuration and, to be answered, whoever has dialled us: a replica that was away may know a
    configuration that neither the leader nor a candidate of today is in, and it is their messages that bring it the newer ones.
    """

    def __init__(self, identity: NodeIdentity, network: Network, tasks: BackgroundTasks, owner: LinkOwner) -> None:
        self.identity = identity
        self.network = network
        self.tasks = tasks
        self.owner = owner
        self._outgoing: dict[NodeId, _PeerLink] = {}
        self._runs: dict[NodeId, asyncio.Task[None]] = {}
        self._inbound: dict[tuple[NodeId, str], ByteStream] = {}  # by peer and data folder: one does not push out the other
        self._members: dict[NodeId, str] = {}
        self._callers: dict[NodeId, str] = {}  # where those are who have dialled us
        self._up: dict[NodeId, bool] = {}
        self._refusals: dict[str, None] = {}
        self._refused: dict[NodeId, str] = {}  # peers whose last link was refused, by them or by us, and why
        self._open = False

    def register(self, server: Server) -> None:
        """Serve the acceptor's side; peers are refused until ``start``."""
        methods.RAFT_LINK.serve(server, self._accept)

    def start(self) -> None:
        self._open = True

    def stop(self) -> None:
        """Refuse and drop everything; the tasks end with their owner."""
        self._open = False
        for link in self._outgoing.values():
            link.connected = False

    def set_peers(self, addresses: Mapping[NodeId, str]) -> None:
        """Dial these peers, and besides them only who has dialled us; own id is left out."""
        self._members = dict(addresses)
        self._dial()

    def _dial(self) -> None:
        addresses = {**self._callers, **self._members}
        for peer in [peer for peer, link in self._outgoing.items() if addresses.get(peer) != link.address]:
            del self._outgoing[peer]
            self._runs.pop(peer).cancel()
        for peer, address in addresses.items():
            if peer != self.identity.node_id and peer not in self._outgoing:
                link = self._outgoing[peer] = _PeerLink(self, peer, address)
                self._runs[peer] = self.tasks.spawn(link.run(), f"link-{peer}")

    def send(self, to: NodeId, message: Message) -> None:
        link = self._outgoing.get(to)
        if link is not None:
            link.send(message)

    def dialled_at(self, peer: NodeId) -> str:
        """Where ``peer`` is dialled; empty when it is not."""
        link = self._outgoing.get(peer)
        return link.address if link is not None else ""

    def connected(self, peer: NodeId) -> bool:
        link = self._outgoing.get(peer)
        return link is not None and link.connected

    def link_state(self, peer: NodeId) -> tuple[bool, str]:
        """Whether this node has a link to ``peer``, and if not, why one was refused, here or there; empty when none was refused."""
        connected = self.connected(peer)
        return connected, "" if connected else self._refused.get(peer, "")

    def store_of(self, peer: NodeId) -> str:
        """The folder of a connected peer."""
        link = self._outgoing.get(peer)
        return link.store_id if link is not None else ""

    def metadata_for(self, peer: NodeId) -> dict[str, str]:
        identity = self.identity
        return {
            "dledger-cluster": identity.cluster,
            "dledger-group": identity.group,
            "dledger-node": identity.node_id,
            "dledger-hello": self._hello().hex(),
            "dledger-address": identity.address,
            "dledger-to": peer,
        }

    def _hello(self) -> bytes:
        return self.owner.handshake().encode(self.identity.node_id)

    async def check_hello(self, peer: NodeId, data: bytes) -> str:
        """The folder that ``peer`` is on; InvalidArgumentError when it may not come with it."""
        node_id, said = handshake.decode(data)
        if node_id != peer:
            raise InvalidArgumentError(f"expected node {peer}, found node {node_id!r}")
        await self.owner.check_handshake(peer, said, dialled=True)
        return said.store_id

    def up(self, peer: NodeId) -> None:
        self._up[peer] = True
        self._refused.pop(peer, None)

    def refused(self, peer: NodeId, error: InvalidArgumentError) -> None:
        """A link to ``peer`` did not come about, since one of both knows the other otherwise."""
        self._refused[peer] = error.message

    def broke(self, peer: NodeId) -> None:
        """One stream from or to ``peer`` broke; both do when its process dies, and the first is the news."""
        if self._up.get(peer) and self._open:
            self._up[peer] = False
            self.owner.peer_lost(peer)

    async def _accept(self, stream: ByteStream, context: CallContext) -> None:
        if not self._open:
            raise NotReadyError(f"{self.identity.node_id} is not started")
        try:
            peer, store = caller = await self._checked_peer(context.metadata)
        except InvalidArgumentError as refusal:
            self._tell_refusal(context.peer, refusal)
            raise
        self._inbound[caller] = stream  # from here on nothing of an earlier stream counts, which the greeting does not know of
        self._note_caller(peer, context.metadata.get("dledger-address", ""))
        await stream.write(self._hello())
        self.up(peer)
        if peer in self._outgoing:
            self._outgoing[peer].retry_now()
        try:
            await self._receive_all(peer, store, stream)
        except InvalidArgumentError as refusal:
            self._tell_refusal(context.peer, refusal)
            raise
        except UnreachableError as error:
            _logger.info("%s: link from %s broke: %s", self.identity.node_id, peer, error.message)
        finally:
            if self._inbound.get(caller) is stream:  # not when the peer has dialled again meanwhile
                del self._inbound[caller]
            if all(other != peer for other, _store in self._inbound):
                self.broke(peer)
                if self._callers.pop(peer, "") and self._open:
                    self._dial()

    def _note_caller(self, peer: NodeId, told: str) -> None:
        place = self.owner.address_of(peer) or (told if is_address(told) else "")
        if place:
            self._callers[peer] = place
            self._dial()

    async def _receive_all(self, peer: NodeId, store: str, stream: ByteStream) -> None:
        received = self.owner.received
        while (data := await stream.read()) is not None:
            if not self._open or self._inbound.get((peer, store)) is not stream:
                return
            received(peer, store, data)

    async def _checked_peer(self, metadata: Mapping[str, str]) -> tuple[NodeId, str]:
        own = self.identity
        expected = {"dledger-cluster": own.cluster, "dledger-group": own.group, "dledger-to": own.node_id}
        for key, value in expected.items():
            if metadata.get(key) != value:
                raise InvalidArgumentError(f"{key.removeprefix('dledger-')}: expected {value!r}, got {metadata.get(key)!r}")
        peer = NodeId(metadata.get("dledger-node", ""))
        if not peer or peer == own.node_id:
            raise InvalidArgumentError(f"node: expected another node than {own.node_id!r}, got {peer!r}")
        if len(peer.encode(errors="replace")) > MAX_VOTE_BYTES or not peer.isprintable():
            raise InvalidArgumentError(f"node: expected at most {MAX_VOTE_BYTES} printable bytes, got {peer[:40]!r}")
        try:
            node_id, said = handshake.decode(bytes.fromhex(metadata.get("dledger-hello", "")))
        except ValueError:
            raise InvalidArgumentError(f"{peer}: malformed handshake") from None
        if node_id != peer:
            raise InvalidArgumentError(f"expected node {peer}, found node {node_id!r}")
        await self.owner.check_handshake(peer, said, dialled=False)
        return peer, said.store_id

    def _tell_refusal(self, address: str, refusal: InvalidArgumentError) -> None:
        # A caller's port differs at each attempt: log a reason once per host.
        key = f"{address.rpartition(':')[0]} {refusal.message}"
        if key not in self._refusals and len(self._refusals) < 100:
            self._refusals[key] = None
            _logger.warning(
                "%s: refused a link from %s: %s", self.identity.node_id, address, refusal.message, extra={"event": "link_refused"}
            )
