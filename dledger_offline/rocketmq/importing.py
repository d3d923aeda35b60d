"""Sending the messages of a RocketMQ store to a replica group, each once, whatever is stopped in between.

Owns the order of an import: topics, messages in the order of the old log, then what waits for a time, positions of groups, permissions.
Batches carry a producer id of the import's own, with sequences; every ``STEP_BYTES`` they are waited for, and the state file says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dledger_client.aio import Admin
from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.producer.idempotent_writer import IdempotentWriter, SequencedRecord, sequenced
from dledger_client.producer.producer_session import ProducerSession
from dledger_client.producer.settings import ProducerOptions
from dledger_offline.rocketmq.commit_log import StoredMessage
from dledger_offline.rocketmq.folder import StoreFolder
from dledger_offline.rocketmq.frames import OpenBatch, is_wide, moved, properties_of, timed
from dledger_offline.rocketmq.groups import GroupsMoved, move_groups
from dledger_offline.rocketmq.progress import Progress, QueueProgress
from dledger_offline.rocketmq.survey import Judge, Survey
from dledger_offline.rocketmq.topics import close_topics, open_topics
from dledger_wire.batches.batch import Sequence64
from dledger_wire.checksum import crc32c
from dledger_wire.errors import ConfigError, OutOfOrderSequenceError
from dledger_wire.names import SCHEDULE_TOPIC, TIMER_TOPIC

PRODUCER_GROUP = "import-rocketmq"
STEP_BYTES = 8 << 20
BATCH_BYTES, BATCH_MESSAGES = 1 << 20, 1000


@dataclass(slots=True)
class Imported:
    """What one run of an import did."""

    messages: int = 0
    size_bytes: int = 0
    delayed: int = 0
    groups: GroupsMoved = field(default_factory=GroupsMoved)


@dataclass(slots=True)
class Import:
    """One run of an import; ``found`` and ``judge`` are those of a survey of ``folder``.

    ``only_messages``: without what waits for a time, and without positions of groups: another copy of the same store will follow.
    """

    admin: Admin
    router: Router
    folder: StoreFolder
    found: Survey
    judge: Judge
    progress: Progress
    timeout_ms: int
    only_messages: bool = False
    on_progress: Callable[[Imported], object] = lambda _done: None
    done: Imported = field(default_factory=Imported)
    _session: ProducerSession = field(init=False)
    _writer: IdempotentWriter = field(init=False)
    _open: dict[tuple[str, int], OpenBatch] = field(default_factory=dict)
    _sent: list[tuple[QueueProgress, int, SequencedRecord]] = field(default_factory=list)
    _bytes: int = 0
    _timers: QueueProgress = field(default_factory=lambda: QueueProgress(TIMER_TOPIC, 0))

    async def run(self) -> Imported:
        """Do what is left to do.  Errors of the cluster are raised as they are; repeated, the import goes on."""
        self._check_same_store()
        self._check_delayed()
        await open_topics(self.admin, self.folder, self.found, self.progress)
        await self._register()
        async with IdempotentWriter(self.router, timeout_ms=self.timeout_ms) as self._writer:
            await self._send_messages()
            if self.only_messages:
                return self.done
            await self._send_delayed()
        self.done.groups = await move_groups(self.admin, self.found.groups, self.progress)
        await close_topics(self.admin, self.folder, self.progress)
        self.progress.finished = True
        self.progress.save()
        return self.done

    # Before anything is sent

    def _check_same_store(self) -> None:
        """ConfigError when the state file is of an import of another store, or of a newer copy of it."""
        progress, log = self.progress, self.folder.log
        if progress.anchor is None or progress.anchor[0] < log.first:
            return
        pos, crc = progress.anchor
        message = next(iter(log.read(pos=pos, dispatched=self.judge.dispatched)), None)
        if not isinstance(message, StoredMessage) or message.pos != pos or crc32c(message.frame) != crc:
            text = f"{self.folder.path}: not the store that {progress.path} is about, or an older copy of it"
            raise ConfigError(f"{text}: expected the message that was imported last, at {pos} of the log")

    def _check_delayed(self) -> None:
        begun = self.progress.delayed_of
        if begun and begun != self.found.fingerprint and not self.only_messages:
            raise ConfigError(
                f"{self.folder.path}: delayed messages of an earlier copy were sent already; those that the old broker delivered since "
                "would be stored twice: expected that copy, or --only-messages"
            )

    async def _register(self) -> None:
        """Take the import's producer id, which ends every other run of it, and learn what is stored."""
        progress, clock = self.progress, self.router.clock
        options = ProducerOptions(PRODUCER_GROUP, producer_id=progress.producer_id)
        self._session = ProducerSession(self.router, progress.replica_group, options)
        async for attempt in until(clock.monotonic_ms() + self.timeout_ms, clock, self.router.random):
            with attempt:
                await self._session.register()
        held = await self.admin.offsets_of_topics({topic for topic, _ in progress.queues})
        ends = {
            (topic, queue.queue_id): queue.max_offset
            for topic, queues in held.items()
            for queue in queues
            if queue.replica_group == progress.replica_group
        }
        for key, row in progress.queues.items():
            self._reconcile(row, self._session.stored.get(key, 0), ends.get(key, 0))
        self._timers.unrecorded = self._session.stored.get((TIMER_TOPIC, 0), 0) - progress.delayed
        if self._timers.unrecorded < 0 and not progress.finished:
            raise OutOfOrderSequenceError(
                f"the cluster has forgotten how many of {progress.delayed} delayed messages it stored, as it does after a week: "
                f"expected a new import, without {progress.path} and the topics that were imported"
            )
        progress.save()

    def _reconcile(self, row: QueueProgress, counted: int, end: int) -> None:
        """Compare what the file says of a queue with what the cluster says."""
        stored = row.forgotten + counted
        if stored >= row.count:
            row.unrecorded = stored - row.count
            return
        if end != row.end:
            raise OutOfOrderSequenceError(
                f"{row.topic}/{row.queue_id}: {self.progress.path} says that {row.count} messages are stored, up to offset {row.end}; the "
                f"cluster knows of {stored}, and the queue ends at {end}: the topic was deleted, or this is another cluster"
            )
        row.forgotten += row.count - stored

    # Messages

    async def _send_messages(self) -> None:
        progress, last = self.progress, None
        for each in self.folder.log.read(pos=progress.pos, dispatched=self.judge.dispatched):
            if not isinstance(each, StoredMessage):
                continue  # the survey reported it
            last = each
            if not self.judge.why_left_out(each):
                row = progress.queues[each.topic, each.queue_id]
                if each.queue_offset >= row.next_offset:
                    row.next_offset = each.queue_offset + 1
                    await self._take(row, each, each.queue_offset)
            if self._bytes >= STEP_BYTES:
                await self._step(each)
        if last is not None:
            await self._step(last)

    async def _step(self, last: StoredMessage) -> None:
        """Return when everything up to ``last`` is stored, and the state file says so."""
        for row, first, record in await self._stored():
            row.add(first, record.first_offset, record.count)
            self.done.messages += record.count
        self.progress.pos, self.progress.anchor = last.end, (last.pos, crc32c(last.frame))
        self.progress.save()
        self.on_progress(self.done)

    async def _take(self, row: QueueProgress, message: StoredMessage, offset: int, due_ms: int = 0) -> None:
        """Send a message, unless a run that ended before it could write that down has stored it.  ``due_ms``: when it is delivered."""
        if row.unrecorded:
            row.unrecorded -= 1
            row.add(offset, -1, 1)
            return
        properties = properties_of(message)
        frame = moved(message)
        if due_ms:
            frame, properties = timed(message, properties, due_ms)
        key, wide = (row.topic, row.queue_id), is_wide(message)
        batch = self._open.get(key)
        if batch is not None:
            is_full = batch.size_bytes + len(frame) > BATCH_BYTES or batch.count >= BATCH_MESSAGES
            if is_full or batch.wide != wide or batch.first + batch.count != offset:
                await self._send(row, batch)
                batch = None
        if batch is None:
            batch = self._open[key] = OpenBatch(row.topic, row.queue_id, offset, wide=wide)
        batch.add(frame, properties)
        self._bytes += len(frame)

    async def _send(self, row: QueueProgress, batch: OpenBatch) -> None:
        del self._open[row.topic, row.queue_id]
        sequence = Sequence64(self._session.producer_id, self._session.epoch, row.sequence)
        row.sequence += batch.count
        record = sequenced(batch.record(), sequence)
        self._sent.append((row, batch.first, record))
        await self._writer.send(self.progress.replica_group, record)
        self.done.size_bytes += batch.size_bytes

    async def _stored(self) -> list[tuple[QueueProgress, int, SequencedRecord]]:
        """What was sent since the last time, once it is stored: the queue, the old offset and the record of each batch."""
        for batch in list(self._open.values()):
            await self._send(self.progress.queues.get((batch.topic, batch.queue_id), self._timers), batch)
        await self._writer.flush()
        self._bytes = 0
        sent, self._sent = self._sent, []
        return sent

    # Messages that wait

    async def _send_delayed(self) -> None:
        progress, found = self.progress, self.found
        if not found.delayed:
            return
        if not progress.delayed_of:
            progress.delayed_of, progress.delayed_pos = found.fingerprint, found.delayed_at
            progress.save()
        count, last = progress.delayed, None
        for each in self.folder.log.read(pos=progress.delayed_pos, dispatched=self.judge.dispatched):
            if not isinstance(each, StoredMessage):
                continue
            last = each
            waiting = self.judge.waiting(each) if each.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else None
            if waiting is not None and not self.judge.why_not_delayed(*waiting):
                await self._take(self._timers, each, count, waiting[0])
                count += 1
            if self._bytes >= STEP_BYTES:
                await self._delayed_step(each, count)
        if last is not None:
            await self._delayed_step(last, count)

    async def _delayed_step(self, last: StoredMessage, count: int) -> None:
        self.done.delayed += sum(record.count for _, _, record in await self._stored())
        self.progress.delayed, self.progress.delayed_pos = count, last.end
        self.progress.save()
        self.on_progress(self.done)
