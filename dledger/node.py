"""A replica of one group: the face of the replicated log.

Owns the wiring of log, core, driver, links and applier, and every future a caller waits on: proposals, read barriers, transfers and
membership changes.  When anything in here fails, the node stops taking part, every waiting future gets a typed error, and ``failed``
tells the owner.  Knows bytes and indexes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dledger.clock.clock_monitor import ClockMonitor
from dledger.clock.group_time import GroupTime
from dledger.core import events
from dledger.core.effects import (
    Diverged,
    Effect,
    FetchSnapshot,
    MembershipChanged,
    ReadFailed,
    ReadReady,
    Refused,
    RefusedReason,
    RoleChanged,
    Sound,
    TransferEnded,
    UnregisteredMember,
)
from dledger.core.messages import Message
from dledger.core.raft import Raft
from dledger.core.types import EntryId, EntryKind, EntryMeta, Membership, NodeId, Role
from dledger.driver import Driver, DriverHooks
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.membership.configuration_file import ConfigurationFile, content
from dledger.membership.folder_registration import FolderRegistration
from dledger.membership.members import Members
from dledger.repair import LogRepairer, PeerRepair, serve_entry
from dledger.replica.admission import PeerAdmission
from dledger.replica.applier import Applier, StateMachine
from dledger.replica.core_view import CoreLogView, saved_of
from dledger.replica.proposals import Payload, Proposals
from dledger.replica.read_barriers import ReadBarriers
from dledger.replica.refusals import refusal
from dledger.replica.unsynced import UnsyncedMark
from dledger.runtime.env import Buffer, Environment
from dledger.settings import RaftSettings, RaftStatus, peer_statuses
from dledger.snapshot import install
from dledger.snapshot.catch_up import CatchUp, CatchUpHooks
from dledger.snapshot.plan import SnapshotPlan
from dledger.snapshot.source import Captured, SnapshotSource
from dledger.transport.link import LinkHooks, NodeIdentity, RaftLinks
from dledger_wire.check import InvariantBrokenError, require
from dledger_wire.errors import (
    BusyError,
    DataDirectoryError,
    DeadlineExceededError,
    DledgerError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageDamagedError,
    StorageFullError,
)
from dledger_wire.layout import ENTRY_HEADER_SIZE
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.tasks import BackgroundTasks

__all__ = ["NodeIdentity", "Payload", "RaftNode", "RaftSettings", "RaftStatus", "StateMachine"]

# How long a member may be silent before the log's head no longer waits for it.
HEAD_WAIT_MS = 10_000
# How long what was written may take to reach the disk before a copy is put in the log's place.
INSTALL_PAUSE_S = 10.0

_logger = logging.getLogger(__name__)


class RaftNode:
    """One replica.  ``register`` before the server starts, then ``start``; ``failed`` resolves when the node stopped by itself."""

    log: Log
    _core: Raft
    failed: asyncio.Future[BaseException]

    def __init__(
        self,
        identity: NodeIdentity,
        settings: RaftSettings,
        env: Environment,
        state_machine: StateMachine,
        *,
        log_opened: Callable[[Log], Awaitable[None]] | None = None,
        state_paths: Sequence[str] = (),  # files and folders of the state machine
        time: GroupTime | None = None,
    ) -> None:
        self.identity = identity
        # Awaited with the open log before anything is applied: what is derived from the log recovers there.
        self._log_opened = log_opened
        self.role, self.term, self.commit_index = Role.FOLLOWER, 0, 0
        self.leader: NodeId | None = None
        self.is_confirmed_leader = False
        self.membership = settings.membership
        self._settings = settings
        self._env = env
        time = time or GroupTime(env.clock)
        self.clocks = ClockMonitor(identity.node_id, time, settings.core, self, lambda on: self._driver.step(events.Deprioritize(on)))
        self._machine = state_machine
        self._tasks = BackgroundTasks(identity.node_id, self._fail)
        self._configurations = ConfigurationFile(env.disk)
        self._members = Members(settings.peers, settings.links)
        self._folders = PeerAdmission(identity, env, settings, self._members, self._tasks, lambda: self._core, self._fail)
        self._unsynced = UnsyncedMark(env, (CONFIGURATION_PATH, *state_paths), sync_flush=settings.sync_flush)
        hooks = LinkHooks(
            encode=self._encode,
            received=self._received,
            lost=self._peer_lost,
            introduction=self._folders.introduction,
            check=self._folders.check,
            refused=self._folders.refused,
            place_of=lambda peer: self._members.links.get(peer, ""),
        )
        self._links = RaftLinks(identity, env.network, self._tasks, hooks)
        self._proposals = Proposals(
            join_bytes=settings.join_bytes,
            entry_bytes=min(settings.join_bytes, settings.core.max_append_bytes, settings.log.max_entry_bytes) - ENTRY_HEADER_SIZE,
            payload_bytes=min(settings.max_payload_bytes, settings.log.max_entry_bytes - ENTRY_HEADER_SIZE),
            limit_bytes=settings.max_pending_bytes,
            max_rounds=settings.max_rounds,
        )
        self._room = asyncio.Event()  # set whenever something of what waited went into the log, or nothing will any more
        self._offer_scheduled, self._offered = False, 0  # payloads the entry being proposed takes
        self._offered_configuration: Configuration | None = None
        self._naming = FolderRegistration(lambda: self._core, self._offer_configuration, settings.core.heartbeat_interval_ms / 1000)
        self._transferring = False
        self._transfer_ended: asyncio.Future[tuple[NodeId, bool]] | None = None
        self._reads = ReadBarriers()
        self._source = SnapshotSource(
            identity, env.clock, env.random, settings.snapshot_bytes_per_s, self._capture, lambda node: node in self.membership
        )
        copying = CatchUpHooks(
            lambda: self._core.snapshot_wanted, self._copy_sources, self._incompatibility, self._decide_copy, self._replace_log
        )
        self._catch_up = CatchUp(identity, env, self._tasks, copying)
        self._mending = LogRepairer(self._repair, lambda: self.log, self._tasks)
        self._running = False

    # Lifecycle

    def register(self, server: Server) -> None:
        """Serve the peers' links, entries to peers whose own are damaged, and copies."""
        self._links.register(server)
        self._source.register(server)
        methods.FETCH_ENTRY.serve_bytes(server, self._serve_entry)

    def _repair(self) -> PeerRepair:
        settings = self._settings
        return PeerRepair(
            self.identity, self._env, self._members.links, self._folders.stores, settings.log, limit_s=settings.repair_limit_s
        )

    async def _serve_entry(self, request: bytes, _context: CallContext) -> bytes:
        if not self._running:
            raise NotReadyError(f"{self.identity.node_id} is not running")
        return await serve_entry(self.identity, self.log, self.commit_index, request)

    async def start(self) -> None:
        """Open the log and take part.  Raises what is wrong with the folder."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        await self._unsynced.load()
        await install.finish(self._env.disk, CONFIGURATION_PATH)
        await self._catch_up.start()
        await self._folders.start()
        self.log, self.recovery = await Log.open(self._env.disk, self._settings.log)
        if self.recovery.damaged:
            self.log, self.recovery = await self._repair().run(self.log, self.recovery)
        if self._log_opened is not None:
            await self._log_opened(self.log)
        self._applier = Applier(self.log, self._machine, self._applied, self.mend)
        core = await self._make_core()
        hooks = DriverHooks(
            make_body=self._make_body,
            entries_added=self._entries_added,
            send=self._links.send,
            committed=self._committed,
            cut=self._cut,
            told=self._told,
            failed=self._fail,
            flushed=self._schedule_offer,
            clocks=self.clocks.clocks_for,
            clocks_told=self.clocks.told,
        )
        self._driver = Driver(core, self.log, self._env.clock, hooks, sync_flush=self._settings.sync_flush)
        self._core, self._running = core, True
        self._tasks.spawn(self._driver.run_writes(), "writes")
        self._applying = self._tasks.spawn(self._applier.run(), "apply")
        self._tasks.spawn(self._driver.run_background_sync(self._settings), "background-sync")
        self._links.start()
        self._connect_members()
        self._driver.start()

    async def _make_core(self) -> Raft:
        log, applied = self.log, self._machine.applied_index
        if applied > log.last.index:
            raise DataDirectoryError(f"the state machine has applied {applied}, but the log ends at {log.last.index}")
        configurations = await self._configurations.find_all(log, applied)
        for index, configuration in configurations:
            self._members.learn(index, configuration)
            if index <= applied:
                self._folders.settle(configuration.membership)
        self._members.committed(applied)
        saved = replace(saved_of(log, applied, configurations), suspect=self._unsynced.suspect)
        settings, env, now_ms = self._settings, self._env, self._env.clock.monotonic_ms()
        config = replace(settings.core, loses_unsynced=not settings.sync_flush)
        own, store, view = self.identity.node_id, self.identity.store_id, CoreLogView(lambda: self.log)
        core = Raft(config, own, settings.membership, saved, env.random, view, store=store, now_ms=now_ms)
        self.role, self.term, self.membership, self.commit_index = core.role, core.term, core.membership, core.commit
        return core

    async def stop(self, *, hand_over: bool) -> None:
        """Stop in order; with ``hand_over`` a leader first gives its leadership to a caught-up voter.  Idempotent."""
        if hand_over and self._running and self.role is Role.LEADER and len(self.membership.voters) > 1:
            try:
                await self.transfer(None, timeout_s=self._settings.core.election_timeout_ms / 1000)
            except DledgerError as error:
                _logger.warning("%s: leadership not handed over: %s", self.identity.node_id, error.message)
        self._end("the node is stopping")
        if (started := hasattr(self, "_driver")) and not self._settings.sync_flush:
            await self.log.make_durable(self.log.last.index)  # an orderly stop loses nothing, whatever happens to the machine then
        await self._tasks.stop()
        if started:
            await self._configurations.save()
            await self._unsynced.stopped(synced=self.log.durable == self.log.last)
        if (log := getattr(self, "log", None)) is not None:
            await log.close()  # a start may have failed with the log open

    def _fail(self, error: BaseException) -> None:
        """Something this node cannot go on without broke: leave the group, answer everybody, tell the owner.  Called once or often."""
        if self.failed.done():
            return
        self.failed.set_result(error)
        self._end(f"the node failed: {error}")
        self._tasks.spawn(self._tasks.stop(), "end")

    def _end(self, reason: str) -> None:
        if not self._running:
            return
        self._running = False
        self._driver.stop()
        self._naming.stop()
        self._links.stop()
        self._proposals.fail_pending(lambda: NotLeaderError(f"not stored: {reason}"))
        self._room.set()
        self._proposals.fail_rounds(reason)
        self._reads.fail_all(reason)
        self._applier.fail_waiters(lambda: NotReadyError(reason))
        self._finish_transfer(self.identity.node_id, done=False)
        was_leader, self.role, self.leader, self.is_confirmed_leader = self.role is Role.LEADER, Role.FOLLOWER, None, False
        if was_leader:
            self._machine.role_changed(RoleChanged(Role.FOLLOWER, self.term, None))

    # Proposals

    def propose(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Replicate ``payload``.  The future resolves once it is committed and applied here.

        NotLeaderError, BusyError, ReadOnlyError, MessageTooLargeError: certainly not stored.  OutcomeUnknownError: it may be.
        """
        future: asyncio.Future[EntryId] = self._loop.create_future()
        try:
            if self.role is not Role.LEADER:
                raise self._not_leader()
            self._proposals.add(payload, future)
        except DledgerError as error:
            future.set_exception(error)
            return future
        self._schedule_offer()
        return future

    async def wait_for_room(self) -> None:
        """Return when little enough waits that a proposal will not be BUSY.  At once on a node that does not lead: it refuses anyway."""
        while self._running and self.role is Role.LEADER and self._proposals.pending_bytes > self._settings.max_pending_bytes // 2:
            self._room.clear()
            await self._room.wait()

    async def drain_proposals(self, timeout_s: float) -> None:
        """Return when all that was proposed before is applied here, or certainly not stored, also what nobody waits for any more."""
        accepted = self._proposals.accepted
        while self._proposals.left < accepted:
            self._room.clear()
            await self._room.wait()
        await self.wait_applied(self.log.last.index, timeout_s)

    def _offer_due(self) -> bool:
        if self.log.unwritten_bytes > self._settings.max_unwritten_bytes:
            return False  # followers may be faster than this disk; what waits for it stays bounded
        return self._proposals.due(in_flight=self.log.last.index > self.commit_index)

    def _schedule_offer(self) -> None:
        if not self._offer_scheduled and self._offer_due():
            self._offer_scheduled = True
            # At the next iteration, so that everything which arrives in this one joins.
            self._loop.call_soon(self._offer)

    def _offer(self) -> None:
        self._offer_scheduled = False
        while self._running and not self._transferring and self._offer_due():
            if not self._offer_one():
                break
        self._room.set()

    def _offer_one(self) -> bool:
        """Make one entry of what waits; false when nothing did or the core refused."""
        self._offered, size_bytes = self._proposals.peek()
        if not self._offered:
            return False
        effects = self._driver.step(events.Propose(ENTRY_HEADER_SIZE + size_bytes))
        refused = next((effect for effect in effects if isinstance(effect, Refused)), None)
        if refused is not None:
            self._proposal_refused(refused)
        return refused is None

    def _proposal_refused(self, refused: Refused) -> None:
        if refused.reason in (RefusedReason.TRANSFERRING, RefusedReason.BUSY, RefusedReason.NOT_READY):
            return  # they wait: for the end of the transfer, for a commit
        if refused.reason is RefusedReason.STORAGE:
            self._proposals.fail_pending(lambda: ReadOnlyError("the leader's disk takes no writes; nothing was stored"))
        else:
            self._proposals.fail_pending(self._not_leader)

    def _make_body(self, meta: EntryMeta, pos: int, index: int, term: int) -> Sequence[Buffer]:
        """The body of the entry being proposed; its payloads learn their places now, in log order."""
        if meta.kind is EntryKind.CONFIG:
            configuration = self._offered_configuration
            if configuration is None:
                raise InvariantBrokenError(f"a configuration entry nobody asked for at {index}")
            return (configuration.encode(),)
        at = pos + ENTRY_HEADER_SIZE
        buffers: list[Buffer] = []
        for waiting in self._proposals.take(self._offered, EntryId(index, term)):
            payload = waiting.payload
            buffers.extend(payload.seal(at, index, term))
            at += payload.size_bytes
        return buffers

    # Reads

    async def read_barrier(self, timeout_s: float) -> int:
        """A linearizable read: everything committed before this call is applied here when it returns (that index).

        NotReadyError when leadership could not be confirmed, DeadlineExceededError when the time is over.
        """
        if not self._running:
            raise NotReadyError(f"{self.identity.node_id} is not running")
        try:
            async with asyncio.timeout(timeout_s):
                index = await self._reads.ask(lambda token: self._driver.step(events.ReadRequested(token)))
                return await self._applier.wait_for(index)
        except TimeoutError:
            raise DeadlineExceededError(f"read index not confirmed and applied within {timeout_s} s") from None

    async def wait_applied(self, index: int, timeout_s: float) -> int:
        """Wait until this replica has applied ``index``; DeadlineExceededError when it has not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._applier.wait_for(index)
        except TimeoutError:
            raise DeadlineExceededError(f"index {index} not applied within {timeout_s} s (at {self._applier.applied})") from None

    # Leadership and membership

    async def transfer(self, target: str | None, timeout_s: float) -> str:
        """Hand leadership over, to the best caught-up voter when ``target`` is None; returns who took it."""
        if self._transfer_ended is not None:
            raise BusyError("a leadership transfer is under way")
        if self.role is not Role.LEADER:
            raise self._not_leader()
        while self._offer_one():
            pass  # what came before the transfer goes before it
        ended = self._transfer_ended = self._loop.create_future()
        try:
            self._transferring = True
            taker = NodeId(target) if target is not None else self.clocks.best_successor(self.status().peers)
            self._raise_refused(self._driver.step(events.TransferRequested(taker)))
            async with asyncio.timeout(timeout_s):
                taken_by, done = await ended
        except TimeoutError:
            raise DeadlineExceededError(f"leadership was not taken over within {timeout_s} s") from None
        finally:
            self._transfer_ended = None
            self._transferring = False
            self._schedule_offer()
        if not done:
            raise NotReadyError(f"the transfer to {taken_by} was given up; {self.leader or 'nobody'} leads")
        return str(taken_by)

    async def change_members(
        self, voters: Sequence[str], learners: Sequence[str], addresses: Mapping[str, str], timeout_s: float
    ) -> Membership:
        """Replace the membership (one voter more or less, any learners); returns once the change is committed."""
        wanted = Membership(tuple(NodeId(node) for node in voters), tuple(NodeId(node) for node in learners))
        await self._naming.finished(timeout_s)
        future = self._offer_configuration(wanted, addresses)
        index, membership = self.log.last.index, self.membership
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise OutcomeUnknownError(f"the membership change at index {index} was not committed within {timeout_s} s") from None
        return membership

    def _offer_configuration(self, wanted: Membership, addresses: Mapping[str, str]) -> asyncio.Future[EntryId]:
        """Propose a configuration that names every folder known; the future resolves once it is committed.  Raises why not."""
        if self.role is not Role.LEADER:
            raise self._not_leader()
        membership = self._core.with_known_stores(wanted)
        configuration = self._members.changed(membership, addresses)
        self._offered_configuration = configuration
        try:
            size_bytes = ENTRY_HEADER_SIZE + len(configuration.encode())
            self._raise_refused(self._driver.step(events.ChangeRequested(membership, size_bytes)))
        finally:
            self._offered_configuration = None
        self._members.learn(self.log.last.index, configuration)
        self._connect_members()
        future: asyncio.Future[EntryId] = self._loop.create_future()
        self._proposals.add_round(self.log.last, future)
        return future

    def campaign(self) -> None:
        """Start an election now (operators, tests)."""
        self._driver.step(events.Campaign())

    # The log's head, and copies of the log

    def trim_limit(self) -> int:
        """The entry at which the log may begin at the latest: one that is applied here, needed by no copy and no member that follows us.

        Never one that may still be cut: the log's start would then be a place where the group's log has no entry.
        """
        limit = min(self._applier.applied, self.commit_index)
        pinned = self._source.pinned_index
        if pinned is not None:
            limit = min(limit, pinned)
        for peer in self._core.status().peers:
            # One that is away too long, or has yet to learn where its log parts from ours, gets what it needs as a copy.
            if peer.state != "copy" and self._links.connected(peer.node) and peer.silent_ms < HEAD_WAIT_MS:
                limit = min(limit, peer.match + 1)
        return limit

    async def truncate_head(self, last_index: int) -> int:
        """Delete whole sealed segments of entries up to ``last_index``, as far as ``trim_limit`` lets; returns the first entry left."""
        if not self._running:
            raise NotReadyError(f"{self.identity.node_id} is not running")
        log = self.log
        known_index = await self._configurations.write()
        if self.log is not log:
            raise NotReadyError(f"{self.identity.node_id}: the log was replaced by a copy")
        first_index = await log.trim(min(last_index + 1, known_index + 1, self.trim_limit()))
        self._driver.step(events.LogTrimmed(first_index, log.before))
        return first_index

    async def _capture(self) -> Captured:
        if not self._running or self._applying.done():
            raise NotReadyError(f"{self.identity.node_id} is not running")
        while self._applier.applied != self._machine.applied_index:
            await self._applier.wait_for(self._machine.applied_index)
        log, copying, (index, configuration) = self.log, self._machine.capture_state(), self._configurations.newest
        state = await copying
        if self.log is not log:
            raise NotReadyError(f"{self.identity.node_id}: the log was replaced by a copy")
        return Captured(log, state, configuration, index)

    def _incompatibility(self, plan: SnapshotPlan) -> str | None:
        """Why a copy may not take the place of this log now."""
        if not self._running or self._core.snapshot_wanted is None:
            return "the copy is not wanted any more"
        return plan.incompatibility(self.log, self.commit_index)

    async def _decide_copy(self, plan: SnapshotPlan) -> None:
        """Pause, look once more, and decide for the copy.

        The node goes on with its old log only when the decision certainly is not on the disk; else it ends here, still paused.
        """
        try:
            async with asyncio.timeout(INSTALL_PAUSE_S):
                await self._driver.pause()
            incompatibility = self._incompatibility(plan)
            if incompatibility is not None:
                raise NotReadyError(incompatibility)
            await install.check_whole(self._env.disk, plan)
        except BaseException as error:
            self._driver.resume(self.log)
            if isinstance(error, TimeoutError):
                raise NotReadyError(f"what was written is not on the disk after {INSTALL_PAUSE_S:g} s") from None
            raise
        record = content(plan.last.index, plan.configuration_index, plan.configuration)
        if not await install.decide(self._env.disk, install.installation_of(plan, record)):
            self._driver.resume(self.log)
            raise StorageFullError("the disk is full, the copy waits")

    async def _replace_log(self, plan: SnapshotPlan) -> None:
        """Put the copy in place and go on with it.  The node is paused and decided; a crash in here is finished by the next start."""
        self._applying.cancel()
        await asyncio.wait([self._applying])
        await self._machine.suspend()
        # Whether the copy has them is not known: it brings no terms of entries before its end.
        self._proposals.fail_rounds("a copy took the log's place with the write in flight")
        self._source.clear()
        await self.log.close()
        await install.finish(self._env.disk, CONFIGURATION_PATH)
        self.log, self.recovery = await Log.open(self._env.disk, self._settings.log)
        if self.recovery.damaged:
            self.log, self.recovery = await self._repair().run(self.log, self.recovery)
        await self._configurations.find_all(self.log, plan.last.index)
        self._members.cut(self.commit_index + 1)
        if plan.configuration is not None:
            self._members.learn(plan.configuration_index, plan.configuration)
            self._members.committed(plan.last.index)
            self._folders.settle(plan.configuration.membership, by_copy=True)
        membership = plan.configuration.membership if plan.configuration is not None else self._settings.membership
        log, before = self.log, self._applier
        self._applier = Applier(log, self._machine, self._applied, self.mend, self._state_replaced)
        self._applier.take_over(before)
        self._driver.resume(log, events.SnapshotInstalled(log.first_index, log.last, membership, log.before, tuple(log.terms())))
        self._applying = self._tasks.spawn(self._applier.run(), "apply")
        _logger.warning("%s: goes on behind entry %d, which a copy brought", self.identity.node_id, log.last.index)

    async def _state_replaced(self) -> None:
        if self._log_opened is not None:
            await self._log_opened(self.log)
        self._driver.applied(self._machine.applied_index)

    # What the driver and the links tell

    async def _encode(self, message: Message) -> bytes | None:
        try:
            return await self._driver.encode(message)
        except StorageDamagedError as damage:
            self._mending.found(damage)
            return None  # asked for again by the peer's next answer

    async def mend(self, damage: StorageDamagedError) -> bool:
        """Put the entry that ``damage`` names right with a peer's bytes; whether it is whole now."""
        return await self._mending.mend(damage)

    def _received(self, source: NodeId, store: str, data: bytes) -> None:
        if self._running:
            self._driver.received(source, store, data)

    def _peer_lost(self, peer: NodeId) -> None:
        if self._running:
            _logger.info("%s: lost %s", self.identity.node_id, peer)
            self._driver.peer_lost(peer)

    def _committed(self, index: int) -> None:
        self.commit_index = index
        if self._members.committed(index):
            self._connect_members()
        self._applier.commit_to(index)
        self._catch_up.entries_committed()
        self._schedule_offer()

    def _applied(self, entries: Sequence[RawEntry]) -> None:
        first = entries[0].index
        self._proposals.applied(entries[-1].index, lambda index: entries[index - first].term)
        self._driver.applied(entries[-1].index)
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self._folders.settle(Configuration.decode(entry.body_bytes()).membership)
        if self._configurations.applied(entries):
            self._tasks.spawn(self._configurations.save(), "save-configuration")

    def _entries_added(self, entries: Sequence[RawEntry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self._members.learn(entry.index, Configuration.decode(entry.body_bytes()))

    def _cut(self, from_index: int) -> None:
        self._proposals.cut(from_index)
        if self._members.cut(from_index):
            self._connect_members()

    def _told(self, effect: Effect) -> None:
        match effect:
            case RoleChanged():
                self._role_changed(effect)
            case ReadReady(token=token, index=index):
                self._reads.ready(token, index)
            case ReadFailed(token=token):
                self._reads.failed(token, "no leader confirmed the read")
            case TransferEnded(target=target, done=done):
                self._finish_transfer(target, done=done)
            case MembershipChanged(membership=membership):
                self.membership = membership
                self._connect_members()
            case UnregisteredMember():
                self._naming.soon()
            case FetchSnapshot():
                self._catch_up.offered()
            case Sound() | Diverged():
                self._tasks.spawn(self._unsynced.told(effect, self._fail), "unsynced")
            case _:
                require(isinstance(effect, Refused), "an effect the node does not know: %s", effect)

    def _role_changed(self, event: RoleChanged) -> None:
        was_leader, old_term = self.role is Role.LEADER, self.term
        self.role, self.term, self.leader, self.is_confirmed_leader = event.role, event.term, event.leader, event.confirmed
        text = f"{event.role.value} in term {event.term}, leader {event.leader or 'unknown'}{', confirmed' if event.confirmed else ''}"
        _logger.info("%s: %s", self.identity.node_id, text)
        if was_leader and (event.role is not Role.LEADER or event.term != old_term):
            self._leadership_lost(old_term)
        self._machine.role_changed(event)
        if event.role is Role.LEADER:
            self._schedule_offer()
            self._naming.soon()

    def _leadership_lost(self, term: int) -> None:
        self._transferring = False
        self._proposals.fail_pending(self._not_leader)
        self._room.set()
        self._reads.fail_all("leadership was lost")
        # The new leader's commits usually tell within an election timeout what became of the entries in flight.
        wait_s = self._settings.core.election_timeout_ms / 1000
        self._loop.call_later(wait_s, self._proposals.fail_rounds, "leadership was lost with the write in flight", term)

    # Helpers

    def _not_leader(self) -> NotLeaderError:
        leader = self.leader if self.leader != self.identity.node_id else None
        address = self.address_of(leader) if leader is not None else ""
        text = f"{self.identity.node_id} is not the leader of {self.identity.group}; nothing was stored"
        return NotLeaderError(text, leader_id=leader or "", leader_address=address)

    def _raise_refused(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Refused):
                if effect.reason is RefusedReason.NOT_LEADER:
                    raise self._not_leader()
                raise refusal(effect.reason)

    def _finish_transfer(self, target: NodeId, *, done: bool) -> None:
        self._transferring = False
        if self._transfer_ended is not None and not self._transfer_ended.done():
            self._transfer_ended.set_result((target, done))
        if self._running:
            self._schedule_offer()

    def _connect_members(self) -> None:
        self._links.set_peers(self._members.links_of(self.membership))

    def _copy_sources(self) -> dict[NodeId, str]:
        """The members, and the leader if it is none as far as this replica knows."""
        links, leader = self._members.links_of(self.membership), self.leader
        if leader is not None and (place := self._links.dialled_at(leader)):
            links.setdefault(leader, place)
        return links

    def behind(self) -> tuple[int, int | None]:
        return self._core.behind(self._machine.applied_index, self._env.clock.monotonic_ms())

    def address_of(self, node: NodeId) -> str:
        """Where a known replica serves; empty when it is not known."""
        return self._members.addresses.get(node, "")

    def status(self) -> RaftStatus:
        standing, timeout_ms = partial(self._folders.standing_of, self._links), self._settings.core.election_timeout_ms
        core, addresses = self._core.status(), self._members.addresses
        peers = peer_statuses(self.identity.node_id, self.membership, addresses, core, standing, timeout_ms)
        return RaftStatus(
            node_id=self.identity.node_id,
            group=self.identity.group,
            role=self.role,
            term=self.term,
            leader=self.leader,
            confirmed=self.is_confirmed_leader,
            first_index=self.log.first_index,
            last=self.log.last,
            durable=self.log.durable,
            commit_index=self.commit_index,
            applied_index=self._applier.applied,
            pending_bytes=self._proposals.pending_bytes,
            disk_full=self._driver.disk_full,
            damaged=tuple(self._mending.unrepaired),
            copying=self._catch_up.state,
            refused_messages=self._driver.refused_messages,
            failed=str(self.failed.result()) if self.failed.done() and not self.failed.cancelled() else "",
            peers=peers,
        )
