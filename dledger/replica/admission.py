"""Who may come with which data folder: what this replica says of its own, and what it lets in of its peers'.

Owns the checks when a link is opened, and what follows for this node when a peer refuses it.  They keep folders out that count for nothing;
what counts is decided by the core, message by message, from the configuration in the log alone.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.core.raft import Raft
from dledger.core.types import Membership, NodeId
from dledger.membership.boot_history import BootHistory, record_boot
from dledger.membership.handshake import Handshake
from dledger.membership.members import Members
from dledger.membership.peer_stores import PeerStores, is_older_folder, older_folder
from dledger.runtime.env import Environment
from dledger.settings import RaftSettings
from dledger.transport.link import NodeIdentity, RaftLinks
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.tasks import BackgroundTasks


class PeerAdmission:
    """The folders of one replica and its peers."""

    def __init__(
        self,
        identity: NodeIdentity,
        env: Environment,
        settings: RaftSettings,
        members: Members,
        tasks: BackgroundTasks,
        core: Callable[[], Raft],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.stores = PeerStores(env.disk, identity.node_id)
        self._identity = identity
        self._env = env
        self._members = members
        self._tasks = tasks
        self._core = core
        self._failed = failed
        self._sync_flush = settings.sync_flush
        self._lives = BootHistory()

    async def start(self) -> None:
        """Read what is known of the peers, and count this start."""
        await self.stores.load()
        self._lives = await record_boot(self._env.disk, self._env.random)

    def introduction(self) -> Handshake:
        core = self._core()
        return Handshake(self._identity.store_id, self._members.newest_index, core.term, core.last.index, self._lives)

    async def check(self, peer: NodeId, said: Handshake, dialled: bool) -> None:
        """InvalidArgumentError when ``peer`` may not come with the folder it introduces."""
        core, named = self._core(), self._members.settled_store(peer)
        self.stores.check(peer, said, named, self._members.settled_index)
        promised = core.acknowledged(peer)
        if promised is not None and core.answers_from(peer) == said.store_id:
            if said.term < promised.term:
                raise older_folder(peer, f"it is in term {said.term}, and answered in term {promised.term}")
            if said.last_index < promised.index and self._sync_flush:
                raise older_folder(peer, f"its log ends at entry {said.last_index}, and it acknowledged entry {promised.index}")
        if dialled and peer in core.membership:
            await self.stores.met(peer, said, named)

    def refused(self, peer: NodeId, refusal: InvalidArgumentError) -> None:
        """A link to ``peer``, called at its address, did not come about."""
        if is_older_folder(refusal, self._identity.node_id):
            # It may have voted or acknowledged what this folder has forgotten, and others may not know: nothing more of that.
            self._failed(DataDirectoryError(f"{refusal.message} (told by {peer})"))

    def settle(self, committed: Membership, *, by_copy: bool = False) -> None:
        """A configuration is committed; see ``PeerStores.settle``."""
        if self.stores.settle(committed, by_copy=by_copy):
            self._tasks.spawn(self.stores.save(), "save-peer-stores")

    def standing_of(self, links: RaftLinks, peer: NodeId) -> tuple[bool, str]:
        """Whether a member is connected, and why it does not count as one."""
        connected, refused = links.standing_of(peer)
        named, store = self._core().membership.store_of(peer), links.store_of(peer)
        if connected and named not in ("", store):
            refused = f"{peer} comes with data folder {store}, but the configuration names {named}: its answers do not count"
        return connected, refused
