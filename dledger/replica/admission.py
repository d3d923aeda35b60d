"""Admission of peers by their data folder: what this replica says in a handshake, and which peers it lets connect.

Owns the checks when a link is opened, and what follows for this node when a peer refuses it.  They only keep folders out that cannot
count.  What counts is decided by the core, message by message, from the configuration in the log alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dledger.core.messages import AppendRequest, SnapshotOffer
from dledger.core.types import Membership, NodeId
from dledger.membership.boot_history import BootHistory
from dledger.membership.feature_levels import refuses_build_of
from dledger.membership.handshake import Handshake
from dledger.membership.lineage import Origin, is_left_behind, other_lineage
from dledger.membership.peer_stores import is_older_folder, older_folder
from dledger.replica.opening import OpenedFolder, ReplicaSetup
from dledger.transport import codec
from dledger.transport.link import RaftLinks
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.feature_levels import LEVEL_0, LevelRange
from dledger_wire.tasks import BackgroundTasks

_logger = logging.getLogger(__name__)


class PeerAdmission:
    """The folders of one replica and its peers."""

    def __init__(
        self,
        setup: ReplicaSetup,
        folder: OpenedFolder,
        tasks: BackgroundTasks,
        on_failure: Callable[[BaseException], None],
        on_left_behind: Callable[[], None],
    ) -> None:
        self.stores = folder.stores
        self._identity = setup.identity
        self._sync_flush = setup.settings.sync_flush
        self._members = folder.members
        self._boots = folder.boots
        self._lineage = folder.lineage
        self._is_joining = False
        self._core = folder.core
        self._tasks = tasks
        self._on_failure, self._on_left_behind = on_failure, on_left_behind
        self._levels = setup.identity.levels
        self._said: dict[NodeId, Handshake] = {}  # the newest of each peer that was let in

    def handshake(self, peer: NodeId, *, dials: bool) -> Handshake:
        """What ``peer`` is sent.  A dialler that is no member gets neither this node's starts nor a key: anyone can call.

        One that is dialled is sent both, though this node may not know yet that it is a member: they are of no use elsewhere.
        """
        is_known = dials or peer in self._core.membership or peer in self._members.addresses
        core, levels, now = self._core, self._levels, self._levels.group()
        return Handshake(
            store_id=self._identity.store_id,
            configuration=self._members.newest_index,
            term=core.term,
            last_index=core.last.index,
            boots=self._boots.shown_to(peer) if is_known else BootHistory(),
            key=self._boots.key_for(peer) if is_known else "",
            levels=levels.build,
            group_level=now.level,
            group_release=now.release,
            version=levels.version,
            origin=self._lineage.origin,
            may_lack=core.suspect or not self._sync_flush,
        )

    async def check(self, peer: NodeId, said: Handshake, *, dialled: bool) -> None:
        """InvalidArgumentError when ``peer`` may not connect with the folder in its handshake, or with its build."""
        self._check_lineage(peer, said)
        core, registered = self._core, self._members.settled_store(peer)
        self.stores.check(peer, said, registered, self._members.settled_index, dialled=dialled)
        promised = core.acknowledged(peer)
        if promised is not None and core.answers_from(peer) == said.store_id:
            if said.term < promised.term:
                raise older_folder(peer, f"it is in term {said.term}, and answered in term {promised.term}")
            if said.last_index < promised.index and not said.may_lack:
                raise older_folder(peer, f"its log ends at entry {said.last_index}, and it acknowledged entry {promised.index}")
        self._levels.check(peer, said)
        if dialled:
            self._said[peer] = said
        if dialled and peer in core.membership:
            try:
                self._levels.check_own(self._identity.node_id, said)
            except DataDirectoryError as error:
                self._on_failure(error)
                raise InvalidArgumentError(error.message) from None
            await self.stores.met(peer, said, registered)

    def _check_lineage(self, peer: NodeId, said: Handshake) -> None:
        if said.origin.lineage != self._lineage.id and not said.is_undecided and not self._is_undecided:
            raise other_lineage(peer, said.origin, self._identity.node_id, self._lineage.origin)

    @property
    def _is_undecided(self) -> bool:
        return not self._lineage.id and not self._core.last.index

    def receiver(
        self, peer: NodeId, said: Handshake, received: Callable[[NodeId, str, bytes], None], links: RaftLinks
    ) -> Callable[[bytes], None]:
        """What takes the messages of a link that was let in; ``received`` gets those that count.

        While this folder belongs to no lineage, the first leader that it is to store something of decides it.
        """
        store, may_join = said.store_id, self._is_undecided

        def take(data: bytes) -> None:
            nonlocal may_join
            if may_join:
                self._check_lineage(peer, said)
                if self._is_undecided and (said.origin.lineage or self._is_joining) and _brings_entries(data):
                    self._join(said.origin, links)  # the leader sends it again
                    return
                may_join = not self._lineage.id and not self._core.commit  # what is committed here stays
            received(peer, store, data)

        return take

    def _join(self, origin: Origin, links: RaftLinks) -> None:
        if not self._is_joining and origin.is_valid:
            self._is_joining = True
            self._tasks.spawn(self._joined(origin, links), "join-lineage")

    async def _joined(self, origin: Origin, links: RaftLinks) -> None:
        try:
            await self._lineage.join(origin)
        except OSError as error:
            _logger.warning("cannot write the lineage of the data folder: %s", error, extra={"event": "file_not_written"})
            return
        finally:
            self._is_joining = False
        links.redial()

    def refused(self, peer: NodeId, refusal: InvalidArgumentError) -> None:
        """A link to ``peer``, dialled at its address, was refused."""
        own = self._identity.node_id
        if is_older_folder(refusal, own) or refuses_build_of(refusal, own):
            # This node may have voted or acknowledged what its folder has forgotten, or its build cannot do what the group does.  Other
            # peers may not notice: it must stop.
            self._on_failure(DataDirectoryError(f"{refusal.message} (reported by {peer})"))
        elif is_left_behind(refusal, own) and peer in self._core.membership.voters and not self._core.left_behind:
            text = "%s: this node does not lead any more (reported by %s)"
            _logger.error(text, refusal.message, peer, extra={"event": "left_behind"})
            self._on_left_behind()

    def settle(self, committed: Membership, *, over_others: bool = False) -> None:
        """A configuration is committed; see ``PeerStores.settle``."""
        if self.stores.settle(committed, over_others=over_others):
            self._tasks.spawn(self.stores.save(), "save-peer-stores")

    def moved(self, links: RaftLinks) -> dict[str, str]:
        """Members on the folders that the configuration names, and at other addresses: peers where they say that they are, and this node
        once a peer has reached it there."""
        own, membership, known = self._identity, self._core.membership, self._members.addresses
        found = {peer: sent for peer, sent in links.sent_addresses().items() if membership.store_of(peer) == links.store_of(peer) != ""}
        if links.is_reached_at(own.address) and membership.store_of(own.node_id) == own.store_id:
            found[own.node_id] = own.address
        return {member: address for member, address in found.items() if member in membership and known.get(member) != address}

    def build_of(self, peer: NodeId) -> tuple[LevelRange, str]:
        """The feature levels and the version that a peer reported when it was last admitted."""
        if peer == self._identity.node_id:
            return self._levels.build, self._levels.version
        said = self._said.get(peer)
        return (said.levels, said.version) if said is not None else (LEVEL_0, "")

    def link_state(self, links: RaftLinks, peer: NodeId) -> tuple[bool, str]:
        """Whether a member is connected, and why it does not count as one."""
        connected, refused = links.link_state(peer)
        registered, store = self._core.membership.store_of(peer), links.store_of(peer)
        if connected and registered not in ("", store):
            refused = f"{peer} comes with data folder {store}, but the configuration names {registered}: its answers do not count"
        return connected, refused


def _brings_entries(data: bytes) -> bool:
    message, _entries, _clocks = codec.decode(data)
    return isinstance(message, SnapshotOffer) or (isinstance(message, AppendRequest) and bool(message.entries))
