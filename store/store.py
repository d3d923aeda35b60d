"""The message store of one replica, laid over its replicated log: the face the broker works with, and the log's state machine.

Owns the wiring of the parts and their life.  The log holds the messages, there is no second copy: what is here are queues of
pointers into it, producer sequences and group state, all made of committed entries, alike on every replica.

    prepare -> propose (dledger) -> committed -> apply -> queues, sequences, topics -> readers woken
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from dledger.core.effects import RoleChanged
from dledger.log.bulk_turns import TakeTurn, at_once
from dledger.log.entry import RawEntry
from dledger.runtime.env import Buffer, Environment
from dledger.snapshot.plan import StateSnapshot
from dledger_wire.batches.batch import BatchView
from dledger_wire.errors import DledgerError, NotReadyError, ReadOnlyError, StorageDamagedError
from dledger_wire.tasks import BackgroundTasks
from store.append.dispatcher import Applied, Dispatcher
from store.append.message_log import MessageLog
from store.append.prepared import PreparedBatches, PreparedCommand
from store.commands.command import Command
from store.durability.expiry import Expiry, ExpiryTime, LogHead, TrimListener
from store.durability.persistence import Persistence, enter_running, leave_running
from store.durability.recovery import Recovering, StoreRecovery, rebuild_left_files, recover_state
from store.durability.retention_floor import RetentionFloor
from store.durability.snapshots import Snapshot, Snapshots
from store.key_index.indexer import KeyIndex
from store.key_index.message_query import MessageQuery
from store.log_view import ReadableLog, Repair
from store.queues.fetch_filter import EVERYTHING, FetchFilter
from store.queues.queue_reader import QueueReader
from store.queues.queue_table import QueueTable
from store.queues.queue_trim import QueueTrimmer
from store.queues.read import Chunk, Given
from store.queues.waiters import QueueWaiters
from store.settings import DiskLimit, StoreSettings
from store.state.log_time import LogTime
from store.state.sequences import QueueKey
from store.state.store_state import StoreState
from store.traffic import Traffic

_logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class MessageStore:
    """Implements ``dledger.replica.applier.StateMachine``.  ``recover`` is called with the open log before anything is applied."""

    def __init__(
        self,
        settings: StoreSettings,
        env: Environment,
        *,
        role_changed: Callable[[RoleChanged], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.settings = settings
        self._env = env
        self.role_changed = role_changed
        self.queues = QueueTable(settings, env.disk)
        self._state = state = StoreState(settings, self.queues.max_offset)
        self.traffic = Traffic(lambda topic: state.topics.get(topic) is not None)
        self.replica_group, self.feature_level = state.replica_group, state.feature_level
        self.security, self.quotas = state.security, state.quotas
        self.topics, self.sequences, self.transactions = state.topics, state.sequences, state.transactions
        self.consumer_offsets, self.offset_history = state.consumer_offsets, state.offset_history
        self.queue_locks, self.subscription_groups = state.queue_locks, state.subscription_groups
        self.delays, self.timers, self.send_backs, self.pop = state.delays, state.timers, state.send_backs, state.pop
        self.time = LogTime(env.clock)
        self.recovery = StoreRecovery()
        self._message_log = MessageLog(settings, self.time, self.topics, self.sequences, self.queues.max_offset, self.transactions)
        self._dispatcher = Dispatcher(state, self._message_log, self.queues, self.traffic, self._offer_to_index)
        self._snapshots, self._waiters = Snapshots(env.disk), QueueWaiters()
        self._tasks = BackgroundTasks("store", failed)
        self._reader: QueueReader | None = None
        self._persistence: Persistence | None = None
        self._expiry: Expiry | None = None
        self._head: LogHead | None = None
        self._followed: tuple[ReadableLog, list[TrimListener]] | None = None  # the open log, and what follows its head
        self._utc_offset_ms: Callable[[], int] = lambda: 0
        self._time_known: Callable[[], bool] = lambda: True
        self.disk_limit: Callable[[], DiskLimit] = DiskLimit  # asked at each look at the disk
        self._suspended = False
        self._repair: Repair | None = None
        self._take_turn: TakeTurn = at_once
        self._index: KeyIndex | None = None
        self._query: MessageQuery | None = None

    def _offer_to_index(self, index: int, pos: int, batch: BatchView) -> None:
        if self._index is not None:
            self._index.offer(index, pos, batch)

    # Life

    def expire_with(self, head: LogHead, utc_offset_ms: Callable[[], int], time_known: Callable[[], bool] = lambda: True) -> None:
        """Set what deletes the log's head, how far local time is ahead of UTC, and whether the clock shows the cluster time yet.

        Without this call nothing expires.
        """
        self._head, self._utc_offset_ms, self._time_known = head, utc_offset_ms, time_known
        self._start_expiry()

    def repair_with(self, repair: Repair, take_turn: TakeTurn = at_once) -> None:
        """Set what makes damaged entries of the log whole again for tasks of the store, and when they may read the next piece of what is
        old; without this call others have to."""
        self._repair, self._take_turn = repair, take_turn

    async def _turn(self, size_bytes: int) -> None:
        await self._take_turn(size_bytes)

    async def _repaired(self, damage: StorageDamagedError) -> bool:
        return self._repair is not None and await self._repair(damage)

    async def recover(self, log: ReadableLog) -> None:
        """Bring the derived state to where its newest snapshot says, and start making it durable."""
        disk = self._env.disk
        replaced, self._suspended = self._suspended, False
        clean = await enter_running(disk) or replaced
        parts = Recovering(disk, log, self._snapshots, self._state, self.queues, self._dispatcher, replaced)
        self.recovery = await recover_state(parts, clean=clean)
        self.time.seen(self.applied.store_ms)
        self._reader = reader = QueueReader(
            self.settings, log, self.topics, self.queues, lambda: self.applied.index, self._repaired, self._turn
        )
        self.queues.rebuild_with(reader.repair)
        if self.settings.messageIndexEnable:
            self._start_index(log)
        self._query = MessageQuery(self.settings, log, self.queues, reader, self._index, lambda: self.applied)
        index = self._index
        self._persistence = Persistence(
            self.settings,
            self._env,
            log,
            self.queues,
            self._snapshots,
            self._capture,
            indexed_ms=None if index is None else lambda: index.files.durable_ms,
        )
        await self._follow_head(log, reader)
        self._tasks.spawn(self._persistence.run(), "persistence")
        if self.recovery.left_files:
            self._tasks.spawn(rebuild_left_files(self.recovery.left_files, reader.repair), "queue files")
        _logger.info("recovered: %s", self.recovery)

    async def _follow_head(self, log: ReadableLog, reader: QueueReader) -> None:
        """Let everything that points into the log begin where the log does, now and whenever its head is deleted."""
        listeners: list[TrimListener] = [QueueTrimmer(self.queues, reader.repair)]
        if self._index is not None:
            listeners.append(self._index)
        for listener in listeners:
            try:
                await listener.follow(log.first_pos)
            except StorageDamagedError as damage:  # the rounds of expiry try again
                if damage.detail_int("index") <= 0:
                    raise
                _logger.warning("deleted messages are still listed: %s", damage.message, extra={"event": "apply_waits"})
        self._followed = log, listeners
        self._start_expiry()

    def _start_expiry(self) -> None:
        """Expire, once the log is open and something may delete its head."""
        head, followed, reader, persistence = self._head, self._followed, self._reader, self._persistence
        if head is None or followed is None or reader is None or persistence is None:
            return
        log, listeners = followed
        floor = RetentionFloor(log, self._repaired, self.queues, reader, self._state)
        time = ExpiryTime(self.time, self._utc_offset_ms, self._time_known)
        self._expiry = Expiry(self.settings, self._env, head, persistence, floor, listeners, time)
        self._expiry.room.limit = self.disk_limit
        self._tasks.spawn(self._expiry.run(), "expiry")

    def _start_index(self, log: ReadableLog) -> None:
        index = self._index = KeyIndex(self.settings, self._env.disk, self._env.clock, log, lambda: self.applied, self._repaired)
        self._tasks.spawn(index.run(), "key index")
        self._tasks.spawn(index.scrub(), "key index check")

    async def close(self) -> None:
        """Make everything durable and mark the stop as orderly.  Call it after the log's node has stopped."""
        self._message_log.resign()
        self._waiters.wake_all()
        if self._expiry is not None:
            await self._expiry.end()
        if self._index is not None:
            await self._index.close()
        await self._tasks.stop()
        persistence, self._persistence = self._persistence, None
        if persistence is None:
            return
        if self._reader is not None:
            await self._reader.settle()
        await persistence.save()
        await self.queues.close()
        await leave_running(self._env.disk)

    def _capture(self) -> Snapshot:
        applied = self.applied
        return Snapshot(
            applied.index,
            applied.term,
            applied.end_pos,
            applied.store_ms,
            applied.messages,
            sections=self._state.machine.capture(),
            queues=self.queues.capture(),
            sequences=self.sequences.capture(),
            queue_file_units=self.settings.queue_file_units,
            queues_begin_pos=self.queues.begin_pos,
        )

    # Copies: another replica takes the state from here, or this one was given one

    def capture_state(self) -> Awaitable[StateSnapshot]:
        return self._copied(self._capture())

    async def _copied(self, snapshot: Snapshot) -> StateSnapshot:
        return StateSnapshot(snapshot.index, await self._snapshots.files(snapshot))

    async def suspend(self) -> None:
        # Topics, users and the other sections stay as they were applied: `recover` puts the copy in their place at once.  No reader may see
        # or get the answer that there are none, since every connection of a user would end.
        reader, self._reader = self._reader, None
        expiry, self._expiry, self._query = self._expiry, None, None
        index, self._index = self._index, None
        self._message_log.resign()
        self._waiters.wake_all()
        if expiry is not None:
            await expiry.end()
        persistence, self._persistence = self._persistence, None
        if persistence is not None:
            await persistence.end()
        if index is not None:
            await index.close(save=False)
        await self._tasks.stop()
        if reader is not None:
            await reader.settle()
        await self.queues.clear()
        self._snapshots = Snapshots(self._env.disk)
        self._suspended = True

    # The log's state machine

    @property
    def applied(self) -> Applied:
        return self._dispatcher.applied

    @property
    def applied_index(self) -> int:
        return self.applied.index

    async def apply(self, entries: Sequence[RawEntry]) -> None:
        self._apply(entries)
        if not self.applies_now:
            await self._write_queues()

    @property
    def applies_now(self) -> bool:
        """Whether few enough queue units are in memory only that more may be made before some are written."""
        return self.queues.unwritten <= self.settings.max_unflushed_units

    def apply_now(self, entries: Sequence[RawEntry]) -> None:
        self._apply(entries)

    def _apply(self, entries: Sequence[RawEntry]) -> None:
        for entry in entries:
            self._dispatcher.apply(entry)
        applied = self._dispatcher.applied
        self.time.seen(applied.store_ms)
        self._message_log.applied_to(applied.end_pos)
        touched, self.queues.touched = self.queues.touched, {}
        if self._waiters.waiting:
            self._waiters.wake(touched)

    async def _write_queues(self) -> None:
        try:
            await self.queues.flush(sync=False)
        except (OSError, StorageDamagedError) as error:
            # Units stay in memory; the background flush logs it and retries.
            _logger.warning("queue files could not be written: %s", error, extra={"event": "queue_files_not_written"})

    # Writing, on the master

    def become_master(self, term: int) -> None:
        """Accept batches in ``term``; everything in the log must be applied."""
        self._message_log.become_master(term)

    def resign(self) -> None:
        self._message_log.resign()

    def prepare(
        self,
        records: Buffer,
        *,
        for_service: bool = False,
        check_writer: Callable[[str], object] = lambda _topic: None,
        check_producer: Callable[[str, str], object] = lambda _name, _owner: None,
    ) -> PreparedBatches:
        """Check a produce payload; see ``MessageLog.prepare``.  ReadOnlyError while the disk is too full for new messages.

        What services store again is not new: as long as it waits, the log's head cannot be deleted.
        """
        if not for_service:
            self.require_disk_room()
        return self._message_log.prepare(records, for_service=for_service, check_writer=check_writer, check_producer=check_producer)

    def nothing_new_waits_for(self, topic: str) -> AbstractContextManager[None]:
        """See ``MessageLog.nothing_new_waits_for``."""
        return self._message_log.nothing_new_waits_for(topic)

    def names_of_producer(self, producer_id: int) -> tuple[str, str]:
        """Name and owner of a registered producer id; empty when it has none, or is not known."""
        return self._message_log.names_of_producer(producer_id)

    def require_disk_room(self) -> None:
        """ReadOnlyError while the disk is too full for new messages and producers."""
        if self._expiry is not None and self._expiry.room.refuses_messages:
            raise ReadOnlyError(f"{self._expiry.room.reason}; nothing was stored")

    def command(self, command: Command[ResultT]) -> PreparedCommand[ResultT]:
        """A command to propose; refused here when it could never succeed, and while the group's feature level does not have it."""
        if self.feature_level.level < command.LEVEL:
            text = f"{command.KIND} needs feature level {command.LEVEL}, the replica group is at {self.feature_level.level}"
            raise NotReadyError(f"{text}: upgrade all nodes, then dledger cluster upgrade-finish")
        return self._message_log.command(command)

    # Expiry

    @property
    def expiry(self) -> Expiry:
        """NotReadyError before recovery, and on a store without retention."""
        if self._expiry is None:
            raise NotReadyError("the store is not recovered yet")
        return self._expiry

    @property
    def is_low_on_space(self) -> bool:
        """The disk is too full for new messages; a leader may still hand over."""
        return self._expiry is not None and self._expiry.room.is_low

    @property
    def head_waits_for_timers(self) -> bool:
        """A deletion of the log's head ended at a message with a delivery time.  The timer service clears it when it has moved them on."""
        return self._expiry is not None and self._expiry.waits_for_timers

    @head_waits_for_timers.setter
    def head_waits_for_timers(self, value: bool) -> None:
        if self._expiry is not None:
            self._expiry.waits_for_timers = value

    # Reading, on any replica

    @property
    def reader(self) -> QueueReader:
        """NotReadyError before recovery."""
        if self._reader is None:
            raise NotReadyError("the store is not recovered yet")
        return self._reader

    @property
    def query(self) -> MessageQuery:
        """Messages by key, id or position; NotReadyError before recovery."""
        if self._query is None:
            raise NotReadyError("the store is not recovered yet")
        return self._query

    @property
    def index(self) -> KeyIndex | None:
        """The key index; None where it is off (messageIndexEnable), and before recovery."""
        return self._index

    async def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int,
        fetch_filter: FetchFilter = EVERYTHING,
        for_service: bool = False,
        given: Given = Given.BYTES,
    ) -> Chunk:
        """See ``QueueReader.read``; ``max_messages`` 0 is no limit."""
        limits = {"max_messages": max_messages, "max_bytes": max_bytes}
        return await self.reader.read(topic, queue_id, offset, **limits, fetch_filter=fetch_filter, for_service=for_service, given=given)

    async def wait_for_messages(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        """Wait until the queue has messages from ``offset`` on; False when it has none in time, or the topic was deleted."""
        while True:
            try:
                _, high = self.reader.bounds(topic, queue_id)
            except DledgerError:
                return False
            if high > offset:
                return True
            before_ms = self._env.clock.monotonic_ms()
            if timeout_s <= 0 or not await self._waiters.changed((topic, queue_id), timeout_s):
                return False
            timeout_s -= (self._env.clock.monotonic_ms() - before_ms) / 1000

    async def wait_for_changes(self, queues: Collection[QueueKey], timeout_s: float) -> bool:
        """Wait until one of the queues has new messages, or was woken; False when the time was up."""
        return await self._waiters.any_changed(queues, timeout_s)

    def wake(self, queues: Collection[QueueKey]) -> None:
        """Let those that wait for these queues look again."""
        self._waiters.wake(queues)

    def wake_all(self) -> None:
        self._waiters.wake_all()
