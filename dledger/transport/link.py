"""Raft's transport: one outgoing stream per peer, which carries every message of this node to it.

Owns which peers are dialled (``peer_link.py`` how), the identity check on both ends, and the report that a peer is gone.  Messages
may be lost (queue full, no connection) but are never duplicated or reordered on one stream.  It does not interpret messages, except
that a later acknowledgement or heartbeat response supersedes one still in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dledger.core.messages import Message
from dledger.core.types import NodeId
from dledger.log.hard_state import MAX_VOTE_BYTES
from dledger.membership import handshake
from dledger.membership.feature_levels import NO_LEVELS, FeatureLevels
from dledger.membership.handshake import Handshake
from dledger.transport.peer_link import PeerLink
from dledger_wire.addresses import host_of, is_address
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, UnreachableError
from dledger_wire.event_loop import loop_s
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Network, Server
from dledger_wire.security import principal
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks

IN_USE_S = 1.0  # a link that has brought a message since is in use

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of a replica: ``store_id`` is drawn when its data folder is made, so a folder that was wiped shows as another one.

    ``levels``: the feature levels of its build and of its group; peers that cannot do the group's are refused.
    """

    cluster: str
    group: str
    node_id: NodeId
    store_id: str
    address: str
    levels: FeatureLevels = NO_LEVELS

    def principal_of(self, member: NodeId) -> Principal:
        """The name that a member of this replica group has in its certificate."""
        return principal.node(self.cluster, self.group, member)


@dataclass(slots=True, eq=False)
class _Inbound:
    """A stream that a peer dialled: from which host, and when it brought a message last."""

    host: str
    received_s: float


class LinkOwner(Protocol):
    """What the links call in their replica."""

    async def encode(self, message: Message) -> bytes | None:
        """The bytes of a message; None when it has become pointless (its entries are gone from the log)."""
        ...

    def encode_now(self, message: Message) -> bytes | None:
        """The same, if no file has to be read for it; None when it has."""
        ...

    def receiver(self, source: NodeId, said: Handshake) -> Callable[[bytes], None]:
        """What takes the messages of a link from ``source``.  Its InvalidArgumentError ends the link."""
        ...

    def peer_lost(self, peer: NodeId) -> None: ...
    def handshake(self, peer: NodeId, *, dials: bool) -> Handshake:
        """What this replica sends to ``peer`` about its own folder; ``dials``: else that one has dialled."""
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

    def places_of(self, peer: NodeId, known: str, sent: str) -> tuple[str, ...]:
        """Where to dial a replica that is ``known`` to be at an address and sent another one when it dialled (empty: it has not), in the
        order to try them."""
        ...

    def reached(self) -> None:
        """A link with a peer is up, dialled by one of both."""
        ...


class RaftLinks:
    """All links of one replica: dialled ones by peer, and the streams that peers dialled.

    Dialled are the members of the configuration and, to be answered, peers that have dialled us: a replica that was away may know a
    configuration that neither the leader nor a candidate of today is in, and it is their messages that bring it the newer ones.
    """

    def __init__(self, identity: NodeIdentity, network: Network, tasks: BackgroundTasks, owner: LinkOwner) -> None:
        self.identity = identity
        self.network = network
        self.tasks = tasks
        self.owner = owner
        self._outgoing: dict[NodeId, PeerLink] = {}
        self._runs: dict[NodeId, asyncio.Task[None]] = {}
        self._inbound: dict[tuple[NodeId, str], _Inbound] = {}  # by peer and data folder: one does not push out the other
        self._members: dict[NodeId, str] = {}
        self._callers: dict[NodeId, str] = {}  # addresses of peers that have dialled us
        self._sent: dict[NodeId, str] = {}  # where they say that they are
        self._reached_at: dict[NodeId, str] = {}  # where they dialled us
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
        """Dial these peers, and besides them only callers; own id is left out."""
        self._members = dict(addresses)
        self._dial()

    def _dial(self) -> None:
        addresses = {**self._callers, **self._members}
        for peer in [peer for peer, link in self._outgoing.items() if addresses.get(peer) != link.known]:
            del self._outgoing[peer]
            self._runs.pop(peer).cancel()
        for peer, address in addresses.items():
            if peer != self.identity.node_id and peer not in self._outgoing:
                link = self._outgoing[peer] = PeerLink(self, peer, address)
                self._runs[peer] = self.tasks.spawn(link.run(), f"link-{peer}")

    def redial(self) -> None:
        """Greet every peer again: what this replica says of its folder is another thing now."""
        self._inbound.clear()  # they end with their next message
        for run in self._runs.values():
            run.cancel()
        self._outgoing.clear()
        self._runs.clear()
        self._dial()

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

    def places_of(self, link: PeerLink) -> tuple[str, ...]:
        """Where to dial a peer, in the order to try them."""
        return self.owner.places_of(link.peer, link.known, self._sent.get(link.peer, ""))

    def sent_addresses(self) -> dict[NodeId, str]:
        """Where the peers are that were reached where they say, or by an address that is only for links."""
        found = {}
        for peer, link in self._outgoing.items():
            sent = self._sent.get(peer, "")
            if link.connected and sent and (sent == link.address or sent not in self.places_of(link)):
                found[peer] = sent
        return found

    def is_reached_at(self, address: str) -> bool:
        """Whether a peer has dialled this node at that address."""
        return address in self._reached_at.values()

    def metadata_for(self, link: PeerLink) -> dict[str, str]:
        identity = self.identity
        return {
            "dledger-cluster": identity.cluster,
            "dledger-group": identity.group,
            "dledger-node": identity.node_id,
            "dledger-hello": self._hello(link.peer, dials=True).hex(),
            "dledger-address": identity.address,
            "dledger-at": link.address,
            "dledger-to": link.peer,
        }

    def _hello(self, peer: NodeId, *, dials: bool) -> bytes:
        return self.owner.handshake(peer, dials=dials).encode(self.identity.node_id)

    async def check_hello(self, link: PeerLink, data: bytes) -> str:
        """The folder that a peer is on; InvalidArgumentError when it may not come with it."""
        node_id, said = handshake.decode(data)
        if node_id != link.peer:
            raise InvalidArgumentError(f"expected node {link.peer}, found node {node_id!r}")
        await self.owner.check_handshake(link.peer, said, dialled=link.address == link.known)
        return said.store_id

    def up(self, peer: NodeId) -> None:
        self._up[peer] = True
        self._refused.pop(peer, None)
        self.owner.reached()

    def refused(self, peer: NodeId, error: DledgerError) -> None:
        """A link to ``peer`` did not come about, since one of both knows the other otherwise, or did not authenticate to it."""
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
            peer, said = await self._checked_peer(context.metadata)
            caller = (peer, said.store_id)
            self._refuse_second(caller, host_of(context.peer))
        except InvalidArgumentError as refusal:
            self._send_refusal(context, refusal)
            raise
        self._inbound[caller] = link = _Inbound(
            host_of(context.peer), loop_s()
        )  # from here on nothing of an earlier stream counts, which the greeting does not know of
        self._note_caller(peer, context.metadata.get("dledger-address", ""), context.metadata.get("dledger-at", ""))
        await stream.write(self._hello(peer, dials=False))
        self.up(peer)
        if peer in self._outgoing:
            self._outgoing[peer].retry_now()
        try:
            await self._receive_all(caller, link, stream, self.owner.receiver(peer, said))
        except InvalidArgumentError as refusal:
            self._send_refusal(context, refusal)
            raise
        except UnreachableError as error:
            _logger.info("%s: link from %s broke: %s", self.identity.node_id, peer, error.message)
        finally:
            if self._inbound.get(caller) is link:  # not when the peer has dialled again meanwhile
                del self._inbound[caller]
            if all(other != peer for other, _store in self._inbound):
                self.broke(peer)
                self._sent.pop(peer, None)
                self._reached_at.pop(peer, None)
                if self._callers.pop(peer, "") and self._open:
                    self._dial()

    def _note_caller(self, peer: NodeId, sent: str, at: str) -> None:
        self._sent[peer] = sent = sent if is_address(sent) else ""
        self._reached_at[peer] = at
        place = self.owner.address_of(peer) or sent
        if place:
            self._callers[peer] = place
            self._dial()

    def _refuse_second(self, caller: tuple[NodeId, str], host: str) -> None:
        """A link that is in use is not replaced by one from another host: a peer that moved has ended its own."""
        link = self._inbound.get(caller)
        if link is not None and link.host != host and loop_s() - link.received_s < IN_USE_S:
            raise InvalidArgumentError(f"link: {caller[0]} sends from {link.host}, and comes from {host} as well: stop one of both")

    async def _receive_all(self, caller: tuple[NodeId, str], link: _Inbound, stream: ByteStream, received: Callable[[bytes], None]) -> None:
        inbound, now_s = self._inbound, asyncio.get_running_loop().time

        def take(data: bytes) -> bool:
            if not self._open or inbound.get(caller) is not link:
                return False
            link.received_s = now_s()
            received(data)
            return True

        await stream.receive(take)

    async def _checked_peer(self, metadata: Mapping[str, str]) -> tuple[NodeId, Handshake]:
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
        return peer, said

    def _send_refusal(self, context: CallContext, refusal: InvalidArgumentError) -> None:
        key = f"{host_of(context.peer)} {refusal.message}"  # once per host
        if key not in self._refusals and len(self._refusals) < 100:
            self._refusals[key] = None
            _logger.warning(
                "%s: refused a link from %s: %s", self.identity.node_id, context.peer, refusal.message, extra={"event": "link_refused"}
            )
