"""Offset stores of push consumers: at the brokers for a clustering group, in a local file for a broadcast.

Owns when a group begins; ``initial_offsets`` owns where.  A group initializes a topic **once** on each replica group.  The first member
that finds no offset proposes one for every queue of the topic, by ``consume_from_where``, in one log entry that takes effect only while the
group has no offset in the topic.  So all members agree on the initial offsets before anything is read.  A queue without an offset in an
initialized topic was added later: it is read from its first message, because everything sent to it belongs to the group.  A broadcast does
the same in its file.

A replica group into which a topic grew has offsets for every consumer group that read the topic before (``admin/topic_changes``), so that
no member chooses for them.  A broadcast remembers which replica groups its topic had when it began: it reads the others from their first
message.  What its file says of a topic that was deleted and created again counts no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dledger_client.cluster.router import Router
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.initial_offsets import CommittedOffset, InitialOffsets
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.settings import PushOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotReadyError, OffsetsResetError, TopicNotFoundError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail

MAX_COMMITS = 10_000  # offsets that a broker accepts in one request
TIMEOUT_MS = 5000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """An offset to commit."""

    queue: MessageQueue
    offset: int
    generation: int
    epoch: int


class OffsetStore:
    """Committed offsets of one consumer group."""

    def __init__(self, router: Router, options: PushOptions) -> None:
        self._router = router
        self._initial = InitialOffsets(router, options)

    async def fix_ends(self, topics: Collection[str], limit_s: float) -> None:
        """Before the consumer starts: a group that begins at the end of the topics does so now."""
        await self._initial.fix(topics, lambda queue: self.find(queue, 0), limit_s)

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset:
        """The committed offset of a queue, or its initial offset, which is committed first."""
        raise NotImplementedError

    async def commit(self, rows: Sequence[OffsetCommit]) -> dict[MessageQueue, DledgerError]:
        """Commit; returns the queues whose offset was refused, and why.  Raises when a replica group could not be reached."""
        raise NotImplementedError

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        """The generation of every offset in a replica group, where offsets have one."""
        return {}

    async def handle_shortened(self, queue: MessageQueue) -> None:
        """The queue ends before its committed offset.  Brokers know the new topic, and ``find`` asks them."""

    def topic_missing(self, topic: str) -> None:
        """The topic does not exist now."""
        self._initial.topic_missing(topic)


@dataclass(frozen=True, slots=True)
class _Known:
    """A group's offsets in a replica group, and the topics that it has any in: one queue after the other asks for its own."""

    offsets: dict[MessageQueue, CommittedOffset]
    topics: set[str]


@dataclass(slots=True)
class _Reads:
    """Reads of a group's offsets: the one that is under way, or was the last, and the one that follows it."""

    running: asyncio.Task[_Known] | None = None
    next: asyncio.Task[_Known] | None = None


class BrokerOffsetStore(OffsetStore):
    """A clustering group's offsets, at the leaders of the replica groups (RocketMQ's RemoteBrokerOffsetStore)."""

    def __init__(self, router: Router, group: str, options: PushOptions) -> None:
        super().__init__(router, options)
        self._group = group
        self._initializing: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)  # by topic and replica group
        self._initialized: Counter[tuple[str, str]] = Counter()  # by topic and replica group: how often
        self._reads: defaultdict[str, _Reads] = defaultdict(_Reads)  # by replica group

    async def _known(self, group: str) -> _Known:
        """The offsets in a replica group, as they are now or later: queues that ask while a request is under way share the next one."""
        reads = self._reads[group]
        if reads.next is None:
            reads.next = asyncio.get_running_loop().create_task(self._read_behind(reads.running, group), name=f"offsets of {self._group}")
            reads.next.add_done_callback(lambda done: done.cancelled() or done.exception())  # queues may have stopped waiting for it
        return await asyncio.shield(reads.next)

    async def _read_behind(self, before: asyncio.Task[Any] | None, group: str) -> _Known:
        if before is not None:
            await asyncio.wait([before])
        reads = self._reads[group]
        reads.running, reads.next = reads.next, None
        return await self._read(group)

    async def _read(self, group: str) -> _Known:
        request = broker_pb2.GroupOffsetsRequest(groups=[self._group])
        answer = await self._router.call_leader(group, methods.GROUP_OFFSETS, request, deadline_ms=_deadline_ms(self._router))
        offsets = {
            MessageQueue(each.topic, group, each.queue_id): CommittedOffset(each.offset, each.generation, each.incarnation)
            for found in answer.groups
            for each in found.offsets
        }
        return _Known(offsets, {queue.topic for queue in offsets})

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset:
        topic = (queue.topic, queue.replica_group)
        seen, known = self._initialized[topic], await self._known(queue.replica_group)
        if queue.topic not in known.topics:
            async with self._initializing[topic]:
                if self._initialized[topic] == seen:  # else another queue of this consumer has done it meanwhile
                    await self._initialize(queue)
            known = await self._known(queue.replica_group)
        if queue.topic not in known.topics:
            raise NotReadyError(f"{queue}: group {self._group} has no offsets in {queue.topic} yet")
        self._initial.had_offsets(queue)
        if queue not in known.offsets:
            request = broker_pb2.CommitOffsetsRequest(group=self._group)
            request.offsets.append(_begins(queue, await self._initial.of_added(queue), epoch))
            for error in (await self._send(queue.replica_group, request)).values():
                raise error
            known = await self._known(queue.replica_group)
        if queue not in known.offsets:
            raise OffsetsResetError(f"{queue}: its offset was removed; the topic was deleted")
        return known.offsets[queue]

    async def _initialize(self, queue: MessageQueue) -> None:
        """Propose initial offsets for the topic of ``queue``; without effect when another member has done so."""
        request = broker_pb2.CommitOffsetsRequest(group=self._group, initial=True)
        request.offsets.extend(_begins(each, first) for each, first in (await self._initial.of_topic(queue)).items())
        try:
            await self._send(queue.replica_group, request)
        except TopicNotFoundError:  # recreated since: whatever is in it came while this consumer was there
            self._initial.topic_missing(queue.topic)
            raise
        self._initialized[queue.topic, queue.replica_group] += 1

    async def commit(self, rows: Sequence[OffsetCommit]) -> dict[MessageQueue, DledgerError]:
        refused: dict[MessageQueue, DledgerError] = {}
        for group in sorted({row.queue.replica_group for row in rows}):
            request = broker_pb2.CommitOffsetsRequest(group=self._group)
            for row in rows:
                if row.queue.replica_group == group:
                    request.offsets.add(
                        topic=row.queue.topic,
                        queue_id=row.queue.queue_id,
                        offset=row.offset,
                        generation=row.generation,
                        lock_epoch=row.epoch,
                    )
            refused |= await self._send(group, request)
        return refused

    async def _send(self, group: str, request: broker_pb2.CommitOffsetsRequest) -> dict[MessageQueue, DledgerError]:
        refused: dict[MessageQueue, DledgerError] = {}
        for page in commit_pages(request):
            answer = await self._router.call_leader(group, methods.COMMIT_OFFSETS, page, deadline_ms=_deadline_ms(self._router))
            for each in answer.refused:
                refused[MessageQueue(each.topic, group, each.queue_id)] = from_detail(each.error)
        return refused

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        return {queue: committed.generation for queue, committed in (await self._known(group)).offsets.items()}


class LocalOffsetStore(OffsetStore):
    """A broadcast's offsets, in a file of this client (RocketMQ's LocalFileOffsetStore)."""

    def __init__(self, router: Router, file: OffsetFile, options: PushOptions) -> None:
        super().__init__(router, options)
        self._file = file
        self._began: dict[str, set[str]] = {}  # by topic: its replica groups when this broadcast began to read it
        self._is_failing = False  # which was logged

    async def _is_added(self, queue: MessageQueue) -> bool:
        """Whether the replica group of the queue joined its topic after this broadcast had begun to read it."""
        if queue.topic not in self._began:
            known = {each.replica_group for each in self._file.offsets if each.topic == queue.topic}
            self._began[queue.topic] = known or await self._initial.groups_of(queue.topic)
        return queue.replica_group not in self._began[queue.topic]

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset:
        file, topic_epoch = self._file, await self._topic_epoch(queue)
        if (queue.topic, queue.replica_group) not in file.begun:
            starts = await self._initial.of_topic(queue, is_added=await self._is_added(queue))
            if (queue.topic, queue.replica_group) not in file.begun:  # another queue of this consumer may have done it meanwhile
                await self._store({each: first.offset for each, first in starts.items()}, topic_epoch)
        if queue not in file.offsets or file.topic_epochs.get(queue) != topic_epoch:
            await self._store({queue: (await self._initial.of_added(queue)).offset}, topic_epoch)
        return CommittedOffset(file.offsets[queue], topic_epoch=topic_epoch)

    async def _store(self, starts: dict[MessageQueue, int], topic_epoch: str) -> None:
        """Initial offsets.  They are tried again and again; the reason is logged once."""
        try:
            await self._file.save(starts, topic_epoch)
        except DledgerError as error:
            if not self._is_failing:
                self._is_failing = True
                _logger.warning("consuming starts once the initial offsets are stored: %s", error.message)
            raise
        self._is_failing = False

    async def _topic_epoch(self, queue: MessageQueue) -> str:
        """Of the topic as it is now; NotReadyError when the queue's replica group has left it."""
        for routes in await self._router.topic(queue.topic, _deadline_ms(self._router)):
            if routes.replica_group == queue.replica_group:
                return routes.topic_epoch
        raise NotReadyError(f"{queue}: the topic has no queues there now")

    async def commit(self, rows: Sequence[OffsetCommit]) -> dict[MessageQueue, DledgerError]:
        await self._file.save({row.queue: row.offset for row in rows})
        return {}

    async def handle_shortened(self, queue: MessageQueue) -> None:
        """The topic was created again since the file was written: all of it is unread."""
        await self._file.save({queue: 0})


def commit_pages(request: broker_pb2.CommitOffsetsRequest) -> Iterator[broker_pb2.CommitOffsetsRequest]:
    """The request, split to the size that a broker accepts."""
    for first in range(0, len(request.offsets), MAX_COMMITS):
        rows = request.offsets[first : first + MAX_COMMITS]
        yield broker_pb2.CommitOffsetsRequest(group=request.group, reset=request.reset, initial=request.initial, offsets=rows)


def _begins(queue: MessageQueue, first: CommittedOffset, epoch: int = 0) -> broker_pb2.GroupOffset:
    """Where a group is to begin."""
    return broker_pb2.GroupOffset(
        topic=queue.topic, queue_id=queue.queue_id, offset=first.offset, generation=first.generation, lock_epoch=epoch
    )


def _deadline_ms(router: Router) -> int:
    return router.clock.monotonic_ms() + TIMEOUT_MS
