"""Where a push consumer begins in a queue, and where it has come to: at the brokers for a group, in a file for a broadcast.

Owns the choice of the first position.  A group begins a topic, on each replica group, **once**: the first member that finds no position of
the topic proposes the start of every queue that there is now, by ``consume_from_where``, in one command of the log, which counts only while
the group has no position in the topic.  So all members have the same starts before anything is read, whoever comes first and whatever is
repeated; and a queue without a position, in a topic that has some, was added since the group began: it is read from its first message, for
what was sent before a consumer saw it belongs to the group.  A broadcast does the same in its file.

A group's retry topic is made by sending back, for this group alone: it is read from its first message always.  Whoever wants the last
messages only gets those of a topic from its first one, too, when the topic was made, or made anew, while this consumer was there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.settings import FIRST, LAST, PushOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotReadyError, OffsetsResetError
from dledger_wire.names import RETRY_PREFIX
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail

COMMIT_MOST = 10_000  # offsets that a broker takes in one request
TIMEOUT_MS = 5000
NO_TIME = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where to read on, and the generation of that position."""

    offset: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A position to commit."""

    queue: MessageQueue
    offset: int
    generation: int
    epoch: int


class OffsetStore(Protocol):
    """Either kind."""

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset: ...
    async def commit(self, rows: Sequence[OffsetCommit]) -> dict[MessageQueue, DledgerError]:
        """Remember; the queues whose position was refused, and why.  Raises when a replica group could not be reached."""
        ...

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        """Of every position in a replica group."""
        ...

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The queue ends before its position."""
        ...

    def is_absent(self, topic: str) -> None:
        """There is no such topic now."""
        ...


class _InitialOffsets:
    """Where queues begin.  Remembers the topics that had positions, where one that has none any more was made anew, and those that were
    not there, where everything is new."""

    def __init__(self, router: Router, options: PushOptions) -> None:
        self._router, self._options = router, options
        self._known: set[tuple[str, str]] = set()
        self._absent: set[str] = set()

    def began(self, queue: MessageQueue) -> None:
        """The queue's topic has positions."""
        self._known.add((queue.topic, queue.replica_group))

    def is_absent(self, topic: str) -> None:
        """There is no such topic now."""
        self._absent.add(topic)

    async def of_topic(self, queue: MessageQueue) -> dict[MessageQueue, int]:
        """Of every queue that the topic of ``queue`` has in its replica group, which the group has no position in."""
        count = queue.queue_id + 1
        for routes in await self._router.topic(queue.topic, _deadline_ms(self._router), fresh=True):
            if routes.replica_group == queue.replica_group:
                count = routes.read_queues
        where = self._options.consume_from_where
        is_new = queue.topic in self._absent or (queue.topic, queue.replica_group) in self._known
        if queue.topic.startswith(RETRY_PREFIX) or (where == LAST and is_new):
            where = FIRST
        return await self._look_up([MessageQueue(queue.topic, queue.replica_group, number) for number in range(count)], where)

    async def of_added(self, queue: MessageQueue) -> int:
        """Of a queue that was added after the group began."""
        return (await self._look_up([queue], FIRST))[queue]

    async def _look_up(self, queues: list[MessageQueue], where: str) -> dict[MessageQueue, int]:
        group = queues[0].replica_group
        searched = NO_TIME if where in (FIRST, LAST) else self._options.consume_timestamp
        refs = [broker_pb2.QueueRef(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=searched) for queue in queues]
        request = broker_pb2.OffsetsRequest(queues=refs).SerializeToString()
        answer = await self._router.call_leader(group, methods.QUEUE_OFFSETS.path, request, deadline_ms=_deadline_ms(self._router))
        return {
            MessageQueue(each.topic, group, each.queue_id): {FIRST: each.min_offset, LAST: each.max_offset}.get(where, each.offset_for_time)
            for each in parse(broker_pb2.OffsetsResponse, answer, group).queues
        }


class BrokerOffsetStore:
    """A clustering group's positions, at the masters."""

    def __init__(self, router: Router, group: str, options: PushOptions) -> None:
        self._router, self._group = router, group
        self._starts = _InitialOffsets(router, options)
        self._beginning = asyncio.Lock()
        self._begun: Counter[tuple[str, str]] = Counter()  # by topic and replica group: how often

    async def _known(self, group: str) -> dict[MessageQueue, CommittedOffset]:
        request = broker_pb2.GroupOffsetsRequest(groups=[self._group]).SerializeToString()
        answer = await self._router.call_leader(group, methods.GROUP_OFFSETS.path, request, deadline_ms=_deadline_ms(self._router))
        return {
            MessageQueue(each.topic, group, each.queue_id): CommittedOffset(each.offset, each.generation)
            for found in parse(broker_pb2.GroupOffsetsResponse, answer, group).groups
            for each in found.offsets
        }

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset:
        place = (queue.topic, queue.replica_group)
        begun, known = self._begun[place], await self._known(queue.replica_group)
        if not _has_topic(known, queue):
            async with self._beginning:
                if self._begun[place] == begun:  # else another queue of ours may have done it meanwhile
                    await self._begin(queue)
            known = await self._known(queue.replica_group)
        if not _has_topic(known, queue):
            raise NotReadyError(f"{queue}: group {self._group} has not begun {queue.topic} yet")
        self._starts.began(queue)
        if queue not in known:
            request = broker_pb2.CommitOffsetsRequest(group=self._group)
            offset = await self._starts.of_added(queue)
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset, lock_epoch=epoch)
            for error in (await self._send(queue.replica_group, request)).values():
                raise error
            known = await self._known(queue.replica_group)
        if queue not in known:
            raise OffsetsResetError(f"{queue}: its position went away; the topic was deleted")
        return known[queue]

    async def _begin(self, queue: MessageQueue) -> None:
        """Begin the topic of ``queue``, unless somebody has meanwhile."""
        request = broker_pb2.CommitOffsetsRequest(group=self._group, initial=True)
        for each, offset in (await self._starts.of_topic(queue)).items():
            request.offsets.add(topic=each.topic, queue_id=each.queue_id, offset=offset)
        await self._send(queue.replica_group, request)
        self._begun[queue.topic, queue.replica_group] += 1

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
            answer = await self._router.call_leader(
                group, methods.COMMIT_OFFSETS.path, methods.encode(page), deadline_ms=_deadline_ms(self._router)
            )
            for each in parse(broker_pb2.CommitOffsetsResponse, answer, group).refused:
                refused[MessageQueue(each.topic, group, each.queue_id)] = from_detail(each.error)
        return refused

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        return {queue: place.generation for queue, place in (await self._known(group)).items()}

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The brokers know what became of the topic; the position is looked up again."""

    def is_absent(self, topic: str) -> None:
        self._starts.is_absent(topic)


class LocalOffsetStore:
    """A broadcast's positions, in a file of this client."""

    def __init__(self, router: Router, file: OffsetFile, options: PushOptions) -> None:
        self._file = file
        self._starts = _InitialOffsets(router, options)

    async def find(self, queue: MessageQueue, epoch: int) -> CommittedOffset:
        if not _has_topic(self._file.offsets, queue):
            starts = await self._starts.of_topic(queue)
            if not _has_topic(self._file.offsets, queue):  # another queue of ours may have done it meanwhile
                await self._file.save(starts)
        if queue not in self._file.offsets:
            await self._file.save({queue: await self._starts.of_added(queue)})
        return CommittedOffset(self._file.offsets[queue])

    async def commit(self, rows: Sequence[OffsetCommit]) -> dict[MessageQueue, DledgerError]:
        await self._file.save({row.queue: row.offset for row in rows})
        return {}

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        return {}

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The topic was made anew since the file was written: all of it is news."""
        await self._file.save({queue: 0})

    def is_absent(self, topic: str) -> None:
        self._starts.is_absent(topic)


def commit_pages(request: broker_pb2.CommitOffsetsRequest) -> Iterator[broker_pb2.CommitOffsetsRequest]:
    """The same request in parts that a broker takes."""
    for first in range(0, len(request.offsets), COMMIT_MOST):
        rows = request.offsets[first : first + COMMIT_MOST]
        yield broker_pb2.CommitOffsetsRequest(group=request.group, reset=request.reset, initial=request.initial, offsets=rows)


def _has_topic(known: Iterable[MessageQueue], queue: MessageQueue) -> bool:
    """Whether any queue of the same topic and replica group has a position."""
    return any((other.topic, other.replica_group) == (queue.topic, queue.replica_group) for other in known)


def _deadline_ms(router: Router) -> int:
    return router.clock.monotonic_ms() + TIMEOUT_MS
