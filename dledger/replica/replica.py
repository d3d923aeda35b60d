"""One running replica: log, core, driver, links and state machine, wired together.

Owns the wiring and every transition: roles, commits, cuts, and the failure that ends the replica.  An instance is complete: everything it
works with was opened before (``opening.py``).  ``RaftNode`` is what callers see of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from dledger.clock.clock_monitor import CLOCK_IS_OFF, ClockMonitor
from dledger.clock.group_time import GroupTime
from dledger.core.causes import Cause
from dledger.core.effects import (
    ContradictionKind,
    Diverged,
    Effect,
    FetchSnapshot,
    MembershipChanged,
    PeerContradicts,
    ReadFailed,
    ReadReady,
    Refused,
    RoleChanged,
    Sound,
    TransferEnded,
    UnregisteredMember,
)
from dledger.core.events import Applied, Deprioritize, LeftBehind, PeerLost, ReadRequested, SnapshotInstalled
from dledger.core.messages import AppendRequest, HeartbeatResponse, Message
from dledger.core.types import EntryId, EntryKind, Membership, NodeId, Role
from dledger.driver import Driver
from dledger.log.bulk_turns import MOST_S, BulkTurns
from dledger.log.entry import RawEntry
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import content
from dledger.membership.handshake import Handshake
from dledger.membership.lineage import Origin, other_lineage
from dledger.membership.member_registration import MemberRegistration
from dledger.repair import LogRepairer, PeerRepair, serve_entry
from dledger.replica.admission import PeerAdmission
from dledger.replica.applier import Applier
from dledger.replica.opening import OpenedFolder, ReplicaSetup, open_log, peer_repair
from dledger.replica.proposer import Proposer
from dledger.replica.read_barriers import ReadBarriers
from dledger.replica.transfer import LeadershipTransfer
from dledger.snapshot import install
from dledger.snapshot.catch_up import CatchUp
from dledger.snapshot.plan import SnapshotPlan
from dledger.snapshot.source import Budget, Captured, SnapshotSource
from dledger.transport.link import RaftLinks
from dledger_wire.check import require
from dledger_wire.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotLeaderError,
    NotReadyError,
    StorageDamagedError,
    StorageFullError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.tasks import BackgroundTasks

# How long queued writes may take to reach the disk before a snapshot is installed.
INSTALL_PAUSE_S = 10.0
STUCK_S = 0.1  # writes that wait longer wait for a disk, or for the very follower that is being sent old entries

_logger = logging.getLogger(__name__)


class Replica:
    """Implements the protocols of its parts (``DriverOwner``, ``LinkOwner``, ``SnapshotTarget`` and others).  ``start`` it once.

    What one part asks for and another one answers is that one's method: ``step``, ``make_body``, ``handshake`` ...
    """

    def __init__(self, setup: ReplicaSetup, folder: OpenedFolder, time: GroupTime) -> None:
        identity, settings, env = setup.identity, setup.settings, setup.env
        self.setup, self.folder, self.measures = setup, folder, setup.measures
        self.identity, self.settings, self.machine = identity, settings, setup.machine
        core = self.core = folder.core
        self.log, self.recovery = folder.log, folder.recovery
        self.members, self.configurations = folder.members, folder.configurations
        self.role, self.term, self.membership, self.commit_index = core.role, core.term, core.membership, core.commit
        self.leader: NodeId | None = None
        self.is_confirmed_leader = False
        self._reported_contradictions: dict[NodeId, ContradictionKind] = {}
        self._lost_term = 0  # led last, and no later leader is known
        self.running = False
        self.moving_head = asyncio.Lock()  # the log's head is deleted, or the log replaced by a snapshot
        self.members_listener: Callable[[], None] = lambda: None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = BackgroundTasks(identity.node_id, self.on_failure)
        self.clocks = ClockMonitor(identity.node_id, time, settings.core, self, self._clock_is_off)
        self.clocks_for, self.clocks_received = self.clocks.clocks_for, self.clocks.received
        self.yields: dict[Cause, str] = {}  # why this node leads only as a last resort, in words
        self.admission = PeerAdmission(setup, folder, self.tasks, self.on_failure, self._left_behind)
        admission = self.admission
        self.handshake, self.check_handshake, self.link_refused = admission.handshake, admission.check, admission.refused
        self.places_of = self.members.places_of
        self.links = RaftLinks(identity, env.network, self.tasks, self)
        sync_flush, flush_bytes = settings.sync_flush, settings.log.flush_bytes
        self.driver = Driver(core, self.log, env.clock, self, self.measures, sync_flush=sync_flush, flush_bytes=flush_bytes)
        self.step, self.encode_now = self.driver.step, self.driver.encoder.encode_now
        self.proposer = Proposer(self, settings, self.measures)
        self.make_body, self.flushed = self.proposer.make_body, self.proposer.schedule
        self.transfer = LeadershipTransfer(self, self.proposer, self.measures)
        delay_s = settings.core.heartbeat_interval_ms / 1000
        self.registration = MemberRegistration(core, lambda: self.admission.moved(self.links), self.offer_configuration, delay_s)
        self.reads = ReadBarriers()
        self.repairer = LogRepairer(self.new_repair, lambda: self.log, self.tasks)
        self.applier = Applier(self.log, self.machine, self._committed, self._applied, self.repairer.repair)
        self.bulk = BulkTurns(self)
        budget = Budget(env.clock, settings.snapshot_bytes_per_s, self.bulk)
        self.source = SnapshotSource(identity, env.clock, env.random, budget, self.capture, self._check_copier, self.read_barrier)
        self.catch_up = CatchUp(identity, env, self.tasks, self, unfinished=folder.unfinished_snapshot)

    # Lifecycle

    def start(self) -> None:
        """Take part in the group."""
        self.running = True
        if self.folder.stores_changed:
            self.tasks.spawn(self.admission.stores.save(), "save-peer-stores")
        self.tasks.spawn(self.driver.run_writes(), "writes")
        self.tasks.spawn(self.driver.run_promises(), "promises")
        self.applying = self.tasks.spawn(self.applier.run(), "apply")
        self.tasks.spawn(self.driver.run_background_sync(self.settings), "background-sync")
        self.links.start()
        self.connect_members()
        self.driver.start()

    def register(self, server: Server) -> None:
        """Serve the peers' links, entries for their repairs, and snapshots."""
        self.links.register(server)
        self.source.register(server)
        methods.FETCH_ENTRY.serve_bytes(server, self._serve_entry)

    async def _serve_entry(self, request: bytes, _context: CallContext) -> bytes:
        self.require_running()
        return await serve_entry(self.identity, self.folder.lineage, self.log, self.commit_index, request)

    def require_running(self) -> None:
        if not self.running:
            raise NotReadyError(f"{self.identity.node_id} is not running")

    async def stop(self) -> None:
        """Stop in order.  Idempotent."""
        self._end("the node is stopping")
        if not self.settings.sync_flush:
            await self.log.make_durable(self.log.last.index)  # an orderly stop loses nothing, even if the machine then fails
        await self.tasks.stop()
        await self.configurations.save()
        await self.folder.unsynced.stopped(synced=self.log.durable == self.log.last)
        await self.log.close()

    def on_failure(self, error: BaseException) -> None:
        """The replica cannot continue: it leaves the group, fails every caller and resolves ``failed``.  Later calls do nothing."""
        if self.failed.done():
            return
        self.failed.set_result(error)
        self._end(f"the node failed: {error}")
        self.tasks.spawn(self.tasks.stop(), "end")

    def _left_behind(self) -> None:
        self.step(LeftBehind())

    def _end(self, reason: str) -> None:
        if not self.running:
            return
        self.running = False
        self.driver.stop()
        self.registration.stop()
        self.links.stop()
        self.proposer.stop(reason)
        self.reads.fail_all(reason)
        self.applier.fail_waiters(lambda: NotReadyError(reason))
        self.transfer.ended(self.identity.node_id, done=False)
        was_leader, self.role, self.leader, self.is_confirmed_leader = self.role is Role.LEADER, Role.FOLLOWER, None, False
        if was_leader:
            self.machine.role_changed(RoleChanged(Role.FOLLOWER, self.term, None))

    # The driver's owner

    def send(self, to: NodeId, message: Message) -> None:
        if isinstance(message, HeartbeatResponse):
            message.copied_bytes = self.catch_up.copied_bytes  # the core knows nothing of how a snapshot comes
            if message.seekers:  # a candidate that asks this node and gets no answer does not elect it
                message.seekers = tuple(node for node in message.seekers if self.links.connected(node))
        self.links.send(to, message)

    def entries_added(self, entries: Sequence[RawEntry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self.members.learn(entry.index, Configuration.decode(entry.body_bytes()))

    def committed(self, index: int) -> None:
        self.commit_index = index
        if self.members.committed(index):
            self.connect_members()
            self.members_listener()
        self.applier.commit_to(index)
        if self.catch_up.has_leftover:
            self.catch_up.entries_committed()
        self.proposer.schedule()

    def log_cut(self, from_index: int) -> None:
        self.proposer.proposals.cut(from_index)
        if self.members.cut(from_index):
            self.connect_members()

    def stepped(self) -> None:
        """A leader's clients wait until it has applied; a follower's leader waits for its acknowledgement, which goes out first."""
        if self.applier.applied == self.applier.commit_index:
            return
        try:
            self.applier.apply_soon(at_once=self.role is Role.LEADER and not self.driver.is_paused)
        except Exception as error:
            _logger.critical("%s: applying failed", self.identity.node_id, exc_info=error, extra={"event": "task_failed"})
            self.on_failure(error)

    @property
    def is_stepping(self) -> bool:
        return self.driver.is_stepping

    def yield_lead(self, cause: Cause, why: str) -> None:
        """The node leads only as a last resort, and ``why``; empty: for this cause no more."""
        if why != self.yields.get(cause, ""):
            self.yields = {each: text for each, text in (self.yields | {cause: why}).items() if text}
            self.step(Deprioritize("; ".join(self.yields.values())))

    def _clock_is_off(self, on: bool) -> None:
        self.yield_lead(Cause.CLOCK, CLOCK_IS_OFF if on else "")

    def on_effect(self, effect: Effect) -> None:
        match effect:
            case RoleChanged():
                self._role_changed(effect)
            case ReadReady(token=token, index=index):
                self.reads.ready(token, index)
            case ReadFailed(token=token):
                self.reads.failed(token, "no leader confirmed the read")
            case TransferEnded(target=target, done=done):
                self.transfer.ended(target, done=done)
            case MembershipChanged(membership=membership):
                self.membership = membership
                self.connect_members()
            case UnregisteredMember():
                self.registration.schedule()
            case FetchSnapshot():
                self.catch_up.offered()
            case PeerContradicts():
                self._contradicts(effect)
            case Sound() | Diverged():
                self.tasks.spawn(self.folder.unsynced.record(effect, self.on_failure), "unsynced")
            case _:
                require(isinstance(effect, Refused), "unknown effect: %s", effect)

    def _contradicts(self, found: PeerContradicts) -> None:
        self.measures.contradictions[found.kind] += 1
        if self._reported_contradictions.get(found.source) != found.kind:  # one that goes on is reported once
            self._reported_contradictions[found.source] = found.kind
            text = f"{found.source} {found.text}"
            _logger.error("%s: %s", self.identity.node_id, text, extra={"event": "peer_contradicts", "peer": found.source})

    def _role_changed(self, event: RoleChanged) -> None:
        was_leader, old_term = self.role is Role.LEADER, self.term
        self.measures.role_changed(event, self.role)
        self.role, self.term, self.leader, self.is_confirmed_leader = event.role, event.term, event.leader, event.confirmed
        text = f"{event.role.value} in term {event.term}, leader {event.leader or 'unknown'}{', confirmed' if event.confirmed else ''}"
        _logger.info("%s: %s", self.identity.node_id, text)
        if was_leader and (event.role is not Role.LEADER or event.term != old_term):
            self._leadership_lost(old_term)
        self._doubt_writes(event)
        self.machine.role_changed(event)
        if event.role is Role.LEADER:
            self.proposer.schedule()
            self.registration.schedule()

    def _leadership_lost(self, term: int) -> None:
        self.proposer.held = False
        self.proposer.fail_pending()
        self.reads.fail_all("leadership was lost")
        # The next leader usually settles the entries in flight by its commits.
        self._lost_term = term
        self._give_up_writes(term, self.settings.core.election_timeout_ms)

    def _doubt_writes(self, event: RoleChanged) -> None:
        """What was in flight when leadership was lost is settled by the next leader's commits soon after that one is known, or not for
        long: no later than after a heartbeat."""
        if self._lost_term and event.term > self._lost_term and event.leader not in (None, self.identity.node_id):
            self._give_up_writes(self._lost_term, self.settings.core.heartbeat_interval_ms)
            self._lost_term = 0

    def _give_up_writes(self, term: int, wait_ms: int) -> None:
        """Answer what is in flight of terms up to ``term`` in ``wait_ms``, unless it is settled before."""
        fail = self.proposer.proposals.fail_rounds
        asyncio.get_running_loop().call_later(wait_ms / 1000, fail, "leadership was lost with the write in flight", term)

    def not_leader(self) -> NotLeaderError:
        leader = self.leader if self.leader != self.identity.node_id else None
        address = self.members.addresses.get(leader, "") if leader is not None else ""
        text = f"{self.identity.node_id} is not the leader of {self.identity.group}; nothing was stored"
        return NotLeaderError(text, leader_id=leader or "", leader_address=address)

    # Applying and membership

    def _committed(self, entries: Sequence[RawEntry]) -> None:
        self.proposer.proposals.committed(entries[-1].index, _terms_of(entries))

    def _applied(self, entries: Sequence[RawEntry]) -> None:
        self.proposer.proposals.applied(entries[-1].index, _terms_of(entries))
        if self.proposer.room.waiting:
            self.proposer.room.grant()
        self.step(Applied(entries[-1].index))
        for entry in entries:
            # What a start applies again up to the newest configuration is the past: a member that was out of the group once would be taken
            # for a new one, with any folder.  The newest itself may not have been written by replicas that have seen it applied.
            if entry.kind is EntryKind.CONFIG and entry.index >= (newest := self.configurations.newest[0]):
                by_replay = entry.index == newest
                self.admission.settle(Configuration.decode(entry.body_bytes()).membership, over_others=by_replay)
        if self.configurations.applied(entries):
            self.tasks.spawn(self.configurations.save(), "save-configuration")

    def offer_configuration(self, wanted: Membership, addresses: Mapping[str, str]) -> asyncio.Future[EntryId]:
        """Propose a configuration that registers every folder known; the future resolves once it is committed.  Raises why not."""
        if self.role is not Role.LEADER:
            raise self.not_leader()
        configuration = self.members.changed(self.core.with_known_stores(wanted), addresses)
        self.proposer.offer_configuration(configuration, moves=self.members.moves(configuration))
        self.members.learn(self.log.last.index, configuration)
        self.connect_members()
        return self.proposer.await_entry(self.log.last)

    def connect_members(self) -> None:
        self.links.set_peers(self.members.links_of(self.membership))

    def new_repair(self) -> PeerRepair:
        return peer_repair(self.setup, self.members, self.admission.stores, self.folder.lineage)

    # The links' owner

    @property
    def writes_wait(self) -> bool:
        since_s = self.proposer.window.waits_since_s
        return self.measures.stopwatch() - since_s < STUCK_S if since_s else self.log.unwritten_bytes > 0

    @property
    def commit_s(self) -> float:
        return self.proposer.window.recent_s(self.measures.stopwatch())

    @property
    def end_pos(self) -> int:
        return self.log.end_pos

    async def encode(self, message: Message) -> bytes | None:
        try:
            if isinstance(message, AppendRequest) and message.entries and message.prev.index + 1 < self.log.cached_index:
                await self.bulk.take(sum(meta.size_bytes for meta in message.entries), MOST_S)  # heartbeats wait behind it
            return await self.driver.encoder.encode(message)
        except StorageDamagedError as damage:
            self.repairer.found(damage)
            return None  # the peer's next response requests it again

    def receiver(self, source: NodeId, said: Handshake) -> Callable[[bytes], None]:
        return self.admission.receiver(source, said, self._received, self.links)

    def _received(self, source: NodeId, store: str, data: bytes) -> None:
        if self.running:
            self.driver.received(source, store, data)

    def peer_lost(self, peer: NodeId) -> None:
        if self.running:
            _logger.info("%s: lost connection to %s", self.identity.node_id, peer)
            self.step(PeerLost(peer))

    def address_of(self, peer: NodeId) -> str:
        return self.members.links.get(peer, "")

    def reached(self) -> None:
        if self.running:
            self.registration.schedule()

    # Snapshots

    @property
    def snapshot_wanted(self) -> FetchSnapshot | None:
        return self.core.snapshot_wanted

    @property
    def lineage(self) -> str:
        return self.folder.lineage.id

    def snapshot_sources(self) -> dict[NodeId, str]:
        """The members, and the leader even if this replica does not know it as a member."""
        links, leader = self.members.links_of(self.membership), self.leader
        if leader is not None and (address := self.links.dialled_at(leader)):
            links.setdefault(leader, address)
        return links

    async def read_barrier(self, timeout_s: float) -> int:
        """Everything committed before this call is applied here when it returns (that index).

        NotReadyError when leadership could not be confirmed, DeadlineExceededError when the time is over.
        """
        self.require_running()
        try:
            async with asyncio.timeout(timeout_s):
                index = await self.reads.ask(lambda token: self.step(ReadRequested(token)))
                return await self.applier.wait_for(index)
        except TimeoutError:
            raise DeadlineExceededError(f"read index not confirmed and applied within {timeout_s} s") from None

    def _check_copier(self, node: str, lineage: str) -> None:
        """InvalidArgumentError unless it is a member, and of the same lineage."""
        own, ours = self.identity, self.folder.lineage.origin
        if node not in self.membership:
            raise InvalidArgumentError(f"{own.node_id} knows no member {node!r} of {own.group}")
        if lineage != ours.lineage:
            raise other_lineage(node, Origin(lineage), own.node_id, ours)

    async def capture(self) -> Captured:
        """The log, the state at its applied end, and the configuration there."""
        if not self.running or self.applying.done():
            raise NotReadyError(f"{self.identity.node_id} is not running")
        while self.applier.applied != self.machine.applied_index:
            await self.applier.wait_for(self.machine.applied_index)
        index, configuration = self.configurations.newest
        if index > self.machine.applied_index:
            # A start has read the newest applied configuration and is still applying what lies before it.  Which one counts at the state's
            # end is not known here, and a snapshot with one from behind its end would hide those in between from the receiver.
            raise NotReadyError(f"{self.identity.node_id}: applying again what it had applied before the start; retry")
        log, capturing = self.log, self.machine.capture_state()
        state = await capturing
        if self.log is not log:
            raise NotReadyError(f"{self.identity.node_id}: the log was replaced by a snapshot")
        return Captured(log, state, configuration, index)

    def incompatibility(self, plan: SnapshotPlan) -> str | None:
        """Why a snapshot may not replace this log now; None when it may."""
        if not self.running or self.core.snapshot_wanted is None:
            return "the snapshot is no longer needed"
        return plan.incompatibility(self.log, self.commit_index)

    async def decide_snapshot(self, plan: SnapshotPlan) -> None:
        """Pause, check again, and commit to installing the snapshot.

        The replica resumes with its old log only when the decision is certainly not on disk; otherwise it ends here, still paused.
        """
        disk = self.setup.env.disk
        try:
            async with asyncio.timeout(INSTALL_PAUSE_S):
                await self.driver.pause()
            incompatibility = self.incompatibility(plan)
            if incompatibility is not None:
                raise NotReadyError(incompatibility)
            await install.check_whole(disk, plan)
        except BaseException as error:
            self.driver.resume(self.log)
            if isinstance(error, TimeoutError):
                raise NotReadyError(f"queued writes did not reach the disk within {INSTALL_PAUSE_S:g} s") from None
            raise
        record = content(plan.last.index, plan.configuration_index, plan.configuration)
        if not await install.decide(disk, install.installation_of(plan, record)):
            self.driver.resume(self.log)
            raise StorageFullError("the disk is full; the snapshot is not installed yet")

    async def replace_log(self, plan: SnapshotPlan) -> None:
        """Install the snapshot and resume behind it.  The replica is paused; after a crash the next start finishes the install."""
        async with self.moving_head:
            await self._replace_log(plan)
        _logger.warning(
            "%s: resumed at entry %d after snapshot install", self.identity.node_id, plan.last.index, extra={"event": "snapshot_resumed"}
        )

    async def _replace_log(self, plan: SnapshotPlan) -> None:
        self.applying.cancel()
        await asyncio.wait([self.applying])
        await self.machine.suspend()
        # The snapshot has no terms of entries before its end, so whether it contains them is not known.
        self.proposer.proposals.fail_rounds("a snapshot replaced the log with the write in flight")
        self.source.clear()
        await self.log.close()
        await install.finish(self.setup.env.disk, CONFIGURATION_PATH)
        self.log, self.recovery = await open_log(self.setup, self.new_repair())
        self.folder.view.log = self.log
        await self.configurations.find_all(self.log, plan.last.index)
        membership = self._learn_members(plan)
        log, before = self.log, self.applier
        self.applier = Applier(log, self.machine, self._committed, self._applied, self.repairer.repair, self._state_replaced)
        self.applier.take_over(before)
        self.driver.resume(log, SnapshotInstalled(log.first_index, log.last, membership, log.before, tuple(log.terms())))
        self.applying = self.tasks.spawn(self.applier.run(), "apply")

    def _learn_members(self, plan: SnapshotPlan) -> Membership:
        """The membership at the snapshot's end; later configurations of the old log are forgotten."""
        self.members.cut(self.commit_index + 1)
        if plan.configuration is None:
            return self.settings.membership
        self.members.learn(plan.configuration_index, plan.configuration)
        self.members.committed(plan.last.index)
        self.admission.settle(plan.configuration.membership, over_others=True)
        return plan.configuration.membership

    async def _state_replaced(self) -> None:
        await self.setup.recover_state(self.log)
        self.step(Applied(self.machine.applied_index))


def _terms_of(entries: Sequence[RawEntry]) -> Callable[[int], int]:
    """The term of an entry of these, which follow each other, by its index."""
    first = entries[0].index
    return lambda index: entries[index - first].term
