"""A replica of one group, as its callers see it: proposing, reading, leadership, membership, trimming, status.

Owns what is promised to callers and the errors they get.  ``dledger/replica`` has the machinery.  Knows bytes and indexes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from dledger.clock.clock_monitor import ClockMonitor
from dledger.clock.group_time import GroupTime
from dledger.core.causes import Cause
from dledger.core.events import Campaign, LogTrimmed, LowOnSpace
from dledger.core.types import EntryId, Membership, NodeId, Role
from dledger.log.log import Log
from dledger.log.report import RecoveryReport
from dledger.measures import RaftMeasures
from dledger.replica.applier import StateMachine
from dledger.replica.opening import ReplicaSetup, open_folder
from dledger.replica.proposals import Outcome, Payload
from dledger.replica.replica import Replica
from dledger.replica.status import status_of
from dledger.runtime.env import Environment
from dledger.settings import RaftSettings, RaftStatus
from dledger.transport.link import NodeIdentity
from dledger_wire.errors import DeadlineExceededError, DledgerError, NotReadyError, OutcomeUnknownError, StorageDamagedError
from dledger_wire.rpc.transport import Server

__all__ = ["NodeIdentity", "Payload", "RaftNode", "RaftSettings", "RaftStatus", "StateMachine"]

# A member that has not responded for this long no longer holds the log's head.
HEAD_WAIT_MS = 10_000

_logger = logging.getLogger(__name__)


class RaftNode:
    """One replica.  ``open`` it, ``register`` it with the servers; ``failed`` resolves when it stopped by itself."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.room = replica.proposer.room  # where streams of proposals wait for their turn; there is always room where no leader is
        self.window = replica.proposer.window
        self.bulk = replica.bulk  # turns of those who read what is old
        self.identity = replica.identity
        self.failed: asyncio.Future[BaseException] = replica.failed
        self.clocks: ClockMonitor = replica.clocks
        self.measures: RaftMeasures = replica.measures

    @classmethod
    async def open(
        cls,
        identity: NodeIdentity,
        settings: RaftSettings,
        env: Environment,
        state_machine: StateMachine,
        *,
        log_opened: Callable[[Log], Awaitable[None]] | None = None,
        state_paths: Sequence[str] = (),
        time: GroupTime | None = None,
    ) -> RaftNode:
        """Open the folder and take part in the group.  Raises what is wrong with the folder; nothing is left open then.

        ``log_opened`` is awaited with the open log before anything is applied: what is derived from the log recovers there.
        ``state_paths``: files and folders of the state machine.  Peers reach the replica once its server starts.
        """
        setup = ReplicaSetup(
            identity=identity,
            settings=settings,
            env=env,
            machine=state_machine,
            log_opened=log_opened,
            state_paths=state_paths,
            measures=RaftMeasures(env.stopwatch),
        )
        folder = await open_folder(setup)
        try:
            replica = Replica(setup, folder, time or GroupTime(env.clock))
            replica.start()
        except BaseException:
            await folder.log.close()
            raise
        return cls(replica)

    def register(self, server: Server) -> None:
        """Serve the peers on ``server``; call it before the server starts."""
        self._replica.register(server)

    async def stop(self, *, hand_over: bool) -> None:
        """Stop in order; with ``hand_over`` a leader first transfers leadership to a caught-up voter.  Idempotent."""
        replica = self._replica
        if hand_over and replica.running and self.role is Role.LEADER and len(self.membership.voters) > 1:
            try:
                await self.transfer(None, replica.settings.core.election_timeout_ms / 1000, Cause.STOPPING)
            except DledgerError as error:
                _logger.warning(
                    "%s: leadership not handed over: %s",
                    self.identity.node_id,
                    error.message,
                    extra={"event": "leadership_not_handed_over"},
                )
        await replica.stop()

    # What it is now

    @property
    def role(self) -> Role:
        return self._replica.role

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def leader(self) -> NodeId | None:
        return self._replica.leader

    @property
    def started_at_ms(self) -> int:
        """When this node was started, later than at every earlier start on its folder, whatever its clock showed."""
        return self._replica.folder.boots.at_ms

    @property
    def disk_full_ms(self) -> int:
        """How long the disk has refused writes of the log, in ms; 0 while it takes them."""
        return self._replica.driver.disk_full_ms

    @property
    def is_confirmed_leader(self) -> bool:
        """Leads, and has committed an entry of its own term."""
        return self._replica.is_confirmed_leader

    @property
    def membership(self) -> Membership:
        return self._replica.membership

    @property
    def commit_index(self) -> int:
        return self._replica.commit_index

    def committed_members(self) -> tuple[int, Membership]:
        """The index of the newest configuration that is known to be committed, and the membership in it."""
        index, membership = self._replica.members.settled
        return (index, membership) if index else (0, self._replica.settings.membership)

    def on_members(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever a configuration became committed."""
        self._replica.members_listener = listener

    @property
    def log(self) -> Log:
        """The log in use; a snapshot install replaces it."""
        return self._replica.log

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the log found."""
        return self._replica.recovery

    def behind(self) -> tuple[int, int | None]:
        """See ``Raft.behind``."""
        replica = self._replica
        return replica.core.behind(replica.machine.applied_index, replica.setup.env.clock.monotonic_ms())

    def address_of(self, node: NodeId) -> str:
        """Where a known replica serves; empty when it is not known."""
        return self._replica.members.addresses.get(node, "")

    def is_connected(self, node: NodeId) -> bool:
        """Whether a link with a member is up; true of this node itself."""
        return node == self._replica.identity.node_id or self._replica.admission.link_state(self._replica.links, node)[0]

    def status(self) -> RaftStatus:
        return status_of(self._replica)

    # Writing and reading

    def propose(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Replicate ``payload``.  The future resolves once it is committed and applied here.

        NotLeaderError, BusyError, ReadOnlyError, MessageTooLargeError: certainly not stored.  OutcomeUnknownError: it may be.
        """
        return self._replica.proposer.propose(payload)

    def propose_for(self, payload: Payload, outcome: Outcome) -> None:
        """As ``propose``, and raises what certainly was not stored; ``outcome`` is called in the callback in which the rest is known.

        That is when it is committed: it is applied before that callback ends, or was before ``outcome`` is called.
        """
        self._replica.proposer.propose_for(payload, outcome)

    async def drain_proposals(self, timeout_s: float) -> None:
        """Return when everything proposed before this call is applied here or certainly not stored, cancelled proposals included."""
        await self._replica.proposer.drain()
        await self.wait_applied(self.log.last.index, timeout_s)

    async def read_barrier(self, timeout_s: float) -> int:
        """A linearizable read: everything committed before this call is applied here when it returns (that index).

        NotReadyError when leadership could not be confirmed, DeadlineExceededError when the time is over.
        """
        return await self._replica.read_barrier(timeout_s)

    async def apply_all(self, timeout_s: float) -> None:
        """Return when everything committed or proposed before this call is applied here or certainly not stored.

        Raises what ``read_barrier`` and ``drain_proposals`` do; each has ``timeout_s``.
        """
        await self.read_barrier(timeout_s)
        await self.drain_proposals(timeout_s)

    async def wait_applied(self, index: int, timeout_s: float) -> int:
        """Wait until this replica has applied ``index``; DeadlineExceededError when it has not in time."""
        applier = self._replica.applier
        try:
            async with asyncio.timeout(timeout_s):
                return await applier.wait_for(index)
        except TimeoutError:
            applied = self._replica.applier.applied
            raise DeadlineExceededError(f"index {index} not applied within {timeout_s} s (at {applied})") from None

    async def repair_damage(self, damage: StorageDamagedError) -> bool:
        """Replace the entry that ``damage`` names by a peer's; whether it is intact now."""
        return await self._replica.repairer.repair(damage)

    def low_on_space(self, on: bool, *, sheds: bool = False) -> None:
        """Report whether new messages are refused for want of room: a leader then hands over to a voter with room, if there is one.

        ``sheds``: entries of any age may be deleted here for want of space.
        Of a node that fetches a snapshot only the room for that counts: it cannot lead before it has it.
        """
        catch_up = self._replica.catch_up
        self._replica.step(LowOnSpace(catch_up.lacks_room or (on and not catch_up.running), sheds))

    def may_hand_over(self) -> bool:
        """Whether this replica leads, and another voter is able to lead in its place."""
        others = (peer for peer in self.status().peers if peer.acknowledges and peer.voter and peer.node_id != self.identity.node_id)
        return self.role is Role.LEADER and any(peer.is_able_to_lead for peer in others)

    def kept_elsewhere(self) -> tuple[int, int]:
        """The first and the last of the entries that another replica has and deletes only by age; (0, 0): none is known."""
        return self._replica.core.status().kept

    @property
    def yields(self) -> Mapping[Cause, str]:
        """Why the node leads only as a last resort, in words; empty: nothing."""
        return self._replica.yields

    def yield_lead(self, cause: Cause, why: str) -> None:
        """Report that the node leads only as a last resort, and ``why``; empty: for this cause no more."""
        self._replica.yield_lead(cause, why)

    # Leadership and membership

    async def transfer(self, target: str | None, timeout_s: float, cause: Cause = Cause.TRANSFER) -> str:
        """Transfer leadership, to the best caught-up voter when ``target`` is None; returns the new leader.  ``cause`` is only reported."""
        replica = self._replica
        if self.role is not Role.LEADER and not replica.transfer.running:
            raise replica.not_leader()
        successor = NodeId(target) if target is not None else self.clocks.best_successor(self.status().peers)
        return str(await replica.transfer.run(successor, timeout_s, cause))

    async def change_members(
        self, voters: Sequence[str], learners: Sequence[str], addresses: Mapping[str, str], timeout_s: float
    ) -> Membership:
        """Replace the membership (one voter more or less, any learners); returns once the change is committed."""
        wanted = Membership(tuple(NodeId(node) for node in voters), tuple(NodeId(node) for node in learners))
        await self._replica.registration.finished(timeout_s)
        future = self._replica.offer_configuration(wanted, addresses)
        index, membership = self.log.last.index, self.membership
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise OutcomeUnknownError(f"the membership change at index {index} was not committed within {timeout_s} s") from None
        return membership

    def campaign(self) -> None:
        """Start an election now (operators, tests)."""
        self._replica.step(Campaign())

    # The log's head

    def trim_limit(self) -> int:
        """The highest first index the log may have: that entry is applied here, and no snapshot reader or connected follower needs less.

        Never beyond the commit index: an uncommitted entry may still be cut, and the log would then start where the group has no entry.
        """
        replica = self._replica
        limit = min(replica.applier.applied, self.commit_index)
        pinned = replica.source.pinned_index
        if pinned is not None:
            limit = min(limit, pinned)
        for peer in replica.core.status().peers:
            # A peer that is away for too long, or whose log diverges at an unknown point, gets what it needs by snapshot.
            if peer.state != "copy" and replica.links.connected(peer.node) and peer.silent_ms < HEAD_WAIT_MS:
                limit = min(limit, peer.match + 1)
        return limit

    async def truncate_head(self, last_index: int) -> int:
        """Delete whole sealed segments of entries up to ``last_index``, within ``trim_limit``; returns the first entry left."""
        replica, log = self._replica, self.log
        async with replica.moving_head:
            replica.require_running()
            if self.log is not log:
                raise NotReadyError(f"{self.identity.node_id}: the log was replaced by a snapshot")
            known_index = await replica.configurations.write()
            first_index = await log.trim(min(last_index + 1, known_index + 1, self.trim_limit()))
            replica.step(LogTrimmed(first_index, log.before))
            return first_index
