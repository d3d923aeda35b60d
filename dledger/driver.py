"""Executes the core's effects as I/O: the ordering rule is implemented here and only here.

*Append and CutTail reach the disk in the order returned, as one stream of writes; SaveHardState is a stream of its own beside it.  A Send
with ``after_promise`` is sent when the hard state returned before it is on stable storage, one with ``after_sync`` when every write
returned before it is, too; everything else happens at once; a failed sync stops the node.*

So votes, heartbeats and their answers wait for one small write, never for data.  Why the two streams need no more order than this:

*No entry before its promise.*  A flush waits for the promises made before it began, so an entry of term T, and a cut that a leader of T
ordered, follow the hard state of T or a later one.  Recovery relies on it (a log above the hard state's term is an older copy's).
*A promise may be early.*  After a crash it stands above a log that lacks what was queued before it.  Of that nothing was acknowledged:
acknowledgements wait for both streams.  A term or a vote on its own binds no entry.
*A vote given* names what the voter must not do again in its term, which the hard state keeps.  It was given on the log in memory, which
may be longer than the one that a crash leaves: that only refused more candidates.
*A vote asked for* leaves once the candidate's own vote is durable, with the log in memory.  If a crash takes the end of that log, the hard
state remains: the node never stands again in that term, so no answer elects it with the shorter log.  What it leads with counts for a
commit only where it is durable, here as elsewhere.

Owns the write streams, the messages held for them, and the core's timer.  While one flush is in progress further writes queue in the log;
the next flush writes them together (group commit).  A flush that is quickly done (``Log.flush_now``) runs within the step that queued it,
or right behind it where links have to send first; a task runs the others, and another one the hard state's writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

from dledger.clock.group_time import Clocks
from dledger.core.effects import Append, CommitTo, CutTail, Effect, MessageRefused, SaveHardState, Send
from dledger.core.events import (
    Event,
    HardStateStored,
    LogTrimmed,
    Received,
    SnapshotInstalled,
    StorageFailed,
    StorageRecovered,
    Stored,
    Tick,
)
from dledger.core.messages import AppendRequest, AppendResponse, Message
from dledger.core.raft import Raft
from dledger.core.types import EntryKind, EntryMeta, NodeId, Role
from dledger.log.entry import RawEntry, encode_entry
from dledger.log.log import Flushed, Log
from dledger.measures import RaftMeasures
from dledger.runtime.env import Buffer, Clock
from dledger.settings import RaftSettings
from dledger.transport import codec
from dledger.transport.encoder import Encoder
from dledger_wire.check import InvariantBrokenError, require
from dledger_wire.errors import InvalidArgumentError, StorageDamagedError, StorageFailedError, StorageFullError

FULL_DISK_RETRY_S = 0.5
# While the log is about to be replaced, the core only gets the completions of what was begun before.
_WHEN_PAUSED = (Stored, HardStateStored, LogTrimmed, StorageFailed, StorageRecovered, SnapshotInstalled)

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class DriverOwner(Protocol):
    """What the driver calls in its replica."""

    def make_body(self, meta: EntryMeta, pos: int, index: int, term: int) -> Sequence[Buffer]:
        """The body of an entry this node proposes; ``pos`` is where the entry starts."""
        ...

    def entries_added(self, entries: Sequence[RawEntry]) -> None:
        """A follower's new entries, before the effects that follow."""
        ...

    def send(self, to: NodeId, message: Message) -> None: ...
    def committed(self, index: int) -> None: ...
    def log_cut(self, from_index: int) -> None: ...
    def on_effect(self, effect: Effect) -> None:
        """Every effect that needs no I/O."""
        ...

    def on_failure(self, error: BaseException) -> None: ...
    def flushed(self) -> None:
        """Queued writes reached the disk."""
        ...

    def stepped(self) -> None:
        """A step is over, its effects are executed."""
        ...

    def clocks_for(self, message: Message) -> Clocks | None:
        """The clocks that are sent with a message."""
        ...

    def clocks_received(self, source: NodeId, message: Message, clocks: Clocks) -> None:
        """A message came with clocks; the core has handled the message."""
        ...


class Driver:
    """Runs one core on one log."""

    def __init__(
        self, core: Raft, log: Log, clock: Clock, owner: DriverOwner, measures: RaftMeasures, *, sync_flush: bool, flush_bytes: int
    ) -> None:
        self._core = core
        self._measures = measures
        self._log = log
        self._clock = clock
        self._owner = owner
        self.encoder = Encoder(log, owner.clocks_for)
        self._sync_flush = sync_flush
        self._flush_bytes = flush_bytes
        # Otherwise a node whose disk fails in the background would take part until the next write.
        log.background_failed = self._storage_failed
        self._loop = asyncio.get_running_loop()
        self.is_stepping = False  # within a step no other one can be made
        self._stopped = False
        self.is_paused = False  # the log is being replaced, or is about to be
        self._drained = asyncio.Event()
        self._event: Event = Tick()
        self._incoming: Sequence[RawEntry] = ()
        # The write stream: numbers of the last write queued and of the last one on stable storage; and those of the hard state's.
        self._written = 0
        self._durable = 0
        self._promised = 0
        self._kept = 0
        self._sync_upto = 0  # the last write that counts only once it is synced, under ASYNC_FLUSH too
        self._flushing = False
        self._flush_due = False  # a step queued writes, and nothing flushes them yet
        self._held: deque[tuple[int, int, Send]] = deque()  # until a write and a promise are durable
        self._held_promises: deque[tuple[int, Send]] = deque()  # until a promise is
        self._wake = asyncio.Event()
        self._wake_promises = asyncio.Event()
        self._full_since_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self.refused_messages = 0
        self._contradicted: tuple[int, str] = (0, "")  # the commit index then, and what it was

    @property
    def contradicted(self) -> str:
        """What a leader has in the place of an entry that is committed here; empty once the replica follows a leader again."""
        at, text = self._contradicted
        return text if at == self._core.commit else ""

    @property
    def disk_full(self) -> bool:
        return self._full_since_ms is not None

    @property
    def disk_full_ms(self) -> int:
        """How long the disk has refused writes by now; 0 while it takes them."""
        return 0 if self._full_since_ms is None else self._clock.monotonic_ms() - self._full_since_ms

    def stop(self) -> None:
        """No step after this one."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def step(self, event: Event, incoming: Sequence[RawEntry] = ()) -> list[Effect]:
        """Step the core and execute its effects.  An error in here is a bug: the node is stopped, then it is raised."""
        if self._stopped or (self.is_paused and not isinstance(event, _WHEN_PAUSED)):
            return []
        if self.is_stepping:
            raise InvariantBrokenError(f"a step inside a step: {event} in {self._event}")
        self.is_stepping, self._event, self._incoming = True, event, incoming
        try:
            effects = self._core.step(event, self._clock.monotonic_ms())
            for effect in effects:
                self._execute(effect)
        except Exception as error:
            self._bug_found(f"the raft core failed on {type(event).__name__}", error)
            raise
        finally:
            self.is_stepping, self._incoming = False, ()
        self._arm_timer()
        if self._flush_due:
            self._flush_due = False
            if self._core.role is Role.LEADER:
                # Let the links send first: the entries then reach the other disks while this one syncs.
                self._loop.call_soon(self._flush_soon)
            else:
                self._flush_soon()
        self._owner.stepped()
        return effects

    def _bug_found(self, text: str, error: Exception) -> None:
        self.stop()
        _logger.exception(text, extra={"event": "core_failed"})
        self._owner.on_failure(error)

    # Replacing the log

    async def pause(self) -> None:
        """Drop all events (as a bad link would) and wait until everything written is on stable storage."""
        self.is_paused = True
        self.encoder.use(None)
        while self._durable < self._written or self._kept < self._promised:
            self._drained.clear()
            await self._drained.wait()

    def resume(self, log: Log, copy: SnapshotInstalled | None = None) -> None:
        """Resume, with the log that replaced the old one if ``copy`` is given."""
        if copy is not None:
            self._log = log
            log.background_failed = self._storage_failed
            self.step(copy)
        self.is_paused = False
        self.encoder.use(self._log)
        self._arm_timer()

    def received(self, source: NodeId, store: str, data: bytes) -> None:
        """A message from a peer on the data folder ``store``.

        InvalidArgumentError when it is none, or none that a correct peer sends: then nothing has changed.
        """
        try:
            self._receive(source, store, data)
        except InvalidArgumentError:
            self.refused_messages += 1
            raise

    def _receive(self, source: NodeId, store: str, data: bytes) -> None:
        message, entries, clocks = codec.decode(data)
        if self._stopped or self.is_paused:
            return
        if isinstance(message, AppendResponse) and message.success:
            self._measures.acknowledged(source, message.match.index)
        incompatibility = self._log.incompatibility(message.prev, entries) if isinstance(message, AppendRequest) and entries else None
        if incompatibility is not None:
            raise InvalidArgumentError(f"AppendRequest of term {message.term}: {incompatibility}")
        for effect in self.step(Received(source, message, store), entries):
            if isinstance(effect, MessageRefused):
                if effect.committed:
                    self._contradicted = (self._core.commit, f"{source}: {effect.reason}")
                raise InvalidArgumentError(effect.reason)
        if clocks is not None and not self._stopped:
            self._owner.clocks_received(source, message, clocks)

    # Effects

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Send():
                if isinstance(effect.message, AppendRequest) and effect.message.entries:
                    self._measures.sent(effect.to, effect.message)
                owes_promise = self._kept < self._promised
                if effect.after_sync and (owes_promise or self._durable < self._written):
                    self._held.append((self._written, self._promised, effect))
                elif effect.after_promise and owes_promise:
                    self._held_promises.append((self._promised, effect))
                else:
                    self._owner.send(effect.to, effect.message)
            case Append():
                self._append(effect)
                # A replica that lost power goes by the members that it remembers, so it forgets no configuration that it acknowledged.
                self._wrote(sync=any(meta.kind is EntryKind.CONFIG for meta in effect.entries))
            case CommitTo(index=index):
                self._owner.committed(index)
            case SaveHardState(term=term, vote=vote):
                self._log.save_hard_state(term, vote)
                self._promised += 1
                self._wake_promises.set()
            case CutTail(from_index=from_index):
                self._log.cut(from_index)
                self._owner.log_cut(from_index)
                self._wrote()
            case MessageRefused():
                pass  # raised by ``received``
            case _:
                self._owner.on_effect(effect)

    def _append(self, effect: Append) -> None:
        event = self._event
        if isinstance(event, Received) and isinstance(event.message, AppendRequest):
            new = self._incoming[len(self._incoming) - len(effect.entries) :]
            require(new and new[0].index == effect.first_index, "entries from %d asked for, message had others", effect.first_index)
            for entry in new:
                self._log.append(entry)
            self._owner.entries_added(new)
            return
        require(len(effect.entries) == 1, "a node's own append of %d entries", len(effect.entries))
        self._append_own(effect.first_index, effect.entries[0])

    def _append_own(self, index: int, meta: EntryMeta) -> None:
        log = self._log
        pos = log.place(meta.size_bytes)
        body = () if meta.kind is EntryKind.NO_OP else self._owner.make_body(meta, pos, index, meta.term)
        entry = encode_entry(index, meta.term, meta.kind, pos, log.chain_crc, body)
        require(entry.size_bytes == meta.size_bytes, "entry %d has %d bytes, announced %d", index, entry.size_bytes, meta.size_bytes)
        log.append(entry)

    # The write stream

    def _wrote(self, *, sync: bool = False) -> None:
        self._written += 1
        self._flush_due = True
        if sync:
            self._sync_upto = self._written

    def _flush_soon(self) -> None:
        """Flush what steps have queued: at once when that is quickly done, else by ``run_writes``."""
        if self._flushing or self._durable == self._written:
            return  # a flush under way sees to what came meanwhile
        number = self._written
        self._measures.slowest_flush.began()
        try:
            done = self._log.flush_now() if self._may_flush_now else None
        except StorageFullError:
            done = None  # everything stays queued, and ``run_writes`` meets the same and waits for room
        except StorageFailedError as error:
            self._storage_failed(error)
            return
        except Exception as error:
            self._bug_found("writing the log failed", error)
            raise
        self._measures.slowest_flush.ended(on_loop=True)
        if done is not None:
            self._flushed(done, number)
        else:
            self._wake.set()

    @property
    def _may_flush_now(self) -> bool:
        return self._sync_flush and self._full_since_ms is None and not self._stopped

    async def run_writes(self) -> None:
        """Flush whatever is queued, one flush at a time."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._durable < self._written:
                await self._flush_once()

    async def run_promises(self) -> None:
        """Write the hard state whenever it changed, beside ``run_writes``."""
        while True:
            await self._wake_promises.wait()
            self._wake_promises.clear()
            while self._kept < self._promised:
                await self._keep_promise()

    async def _keep_promise(self) -> None:
        hard_state = await self._on_disk(self._log.keep_promise())
        if hard_state is None:
            return
        if self._durable == self._written:
            self._has_room()  # otherwise a flush finds out
        self._kept = self._promised  # also of what came meanwhile
        self._release_held()
        self._drained.set()
        self.step(HardStateStored(hard_state.term, hard_state.vote))

    async def run_background_sync(self, settings: RaftSettings) -> None:
        """Under ASYNC_FLUSH: what was written becomes durable an interval later, little of it at the next thorough sync."""
        if self._sync_flush:
            return
        synced_pos, synced_ms = self._log.end_pos, self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(settings.flush_interval_ms / 1000)
            end_pos, now_ms = self._log.end_pos, self._clock.monotonic_ms()
            little = abs(end_pos - synced_pos) < settings.flush_least_bytes
            if self.is_paused or (little and now_ms - synced_ms < settings.flush_thorough_interval_ms):
                continue
            synced_pos, synced_ms = end_pos, now_ms
            try:
                await self._log.flush(sync=True)
            except StorageFullError:
                continue  # the write stream reports it to the core
            except StorageFailedError as error:
                self._storage_failed(error)
                return

    async def _flush_once(self) -> None:
        number = self._written
        self._flushing = True
        self._measures.slowest_flush.began()
        try:
            sync = self._sync_flush or self._durable < self._sync_upto
            done = await self._on_disk(self._log.flush(sync=sync, max_bytes=self._flush_bytes))
        finally:
            self._flushing = False
            self._measures.slowest_flush.ended()
        if done is None:
            return
        self._has_room()
        self._flushed(done, number)

    async def _on_disk(self, written: Awaitable[_T]) -> _T | None:
        """What a write returns; None after a pause when the disk is full: it is to be repeated."""
        try:
            return await written
        except StorageFullError as error:
            await self._wait_for_space(error)
        except StorageFailedError as error:
            self._storage_failed(error)
            await self._loop.create_future()  # nothing is written any more; the node is being stopped
        return None

    def _has_room(self) -> None:
        if self._full_since_ms is not None:
            self._full_since_ms = None
            _logger.warning("the disk accepts writes again", extra={"event": "disk_has_room"})
            self.step(StorageRecovered())

    def _flushed(self, done: Flushed, number: int) -> None:
        """Writes up to ``number`` reached the disk, if the flush was complete."""
        if done.complete:
            self._durable = max(self._durable, number)
            self._release_held()
            self._drained.set()
        self.step(Stored(done.last))
        self._owner.flushed()

    async def _wait_for_space(self, error: StorageFullError) -> None:
        if self._full_since_ms is None:
            self._full_since_ms = self._clock.monotonic_ms()
            _logger.error("the disk is full: %s", error, extra={"event": "disk_full"})
            self.step(StorageFailed(fatal=False))
        await asyncio.sleep(FULL_DISK_RETRY_S)

    def _storage_failed(self, error: StorageFailedError | StorageDamagedError) -> None:
        _logger.critical("storage failed, stopping this node: %s", error, extra={"event": "storage_failed"})
        self.step(StorageFailed(fatal=True))
        self.stop()
        self._owner.on_failure(error)

    def _release_held(self) -> None:
        promises, held, durable, kept = self._held_promises, self._held, self._durable, self._kept
        while promises and promises[0][0] <= kept:
            send = promises.popleft()[1]
            self._owner.send(send.to, send.message)
        while held and held[0][0] <= durable and held[0][1] <= kept:
            send = held.popleft()[2]
            # An acknowledgement of an older term may speak of truncated entries: drop it.
            if isinstance(send.message, AppendResponse) and send.message.term < self._core.term:
                continue
            self._owner.send(send.to, send.message)

    # Timer

    def _arm_timer(self) -> None:
        """One timer.  A deadline that moved away leaves it as it is: it fires early, finds nothing due, and is rearmed."""
        if self._stopped:
            return
        wakeup_ms = self._core.next_wakeup_ms()
        if wakeup_ms is None or (self._timer is not None and self._timer_at_ms <= wakeup_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = wakeup_ms
        delay_ms = max(wakeup_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        wakeup_ms = self._core.next_wakeup_ms()
        if wakeup_ms is not None and wakeup_ms > self._clock.monotonic_ms():
            self._arm_timer()  # the deadline moved away meanwhile, as it does with each message that comes
        else:
            self.step(Tick())

    def start(self) -> None:
        self._arm_timer()
