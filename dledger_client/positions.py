"""Where a push consumer begins in a queue, and where it has come to: at the brokers for a group, in a file for a broadcast.

Owns the choice of the first position.  A queue nobody of the group has read begins where ``consume_from_where`` says, and that is committed
before anything is read: whoever takes the queue over knows the same place.  When the group knows other queues of the topic, the queue is
one that was added since, and begins at its start: what was sent before this consumer saw it belongs to the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger_client.answers import parse
from dledger_client.local_offsets import OffsetFile
from dledger_client.push_options import FIRST, LAST, PushOptions
from dledger_client.router import Router
from dledger_wire._pb import broker_pb2
from dledger_wire.allocation import MessageQueue
from dledger_wire.error_detail import from_detail
from dledger_wire.errors import DledgerError

OFFSETS = "/dledger.v1.Broker/Offsets"
COMMIT = "/dledger.v1.Broker/CommitOffsets"
POSITIONS = "/dledger.v1.Broker/GroupOffsets"
TIMEOUT_MS = 5000
NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where to read on, and the generation of that position."""

    offset: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """A position to commit."""

    queue: MessageQueue
    offset: int
    generation: int
    epoch: int


class Positions(Protocol):
    """Either kind."""

    async def find(self, queue: MessageQueue, epoch: int) -> Place: ...
    async def commit(self, rows: Sequence[Progress]) -> dict[MessageQueue, DledgerError]:
        """Remember; the queues whose position was refused, and why.  Raises when a replica group could not be reached."""
        ...

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        """Of every position in a replica group."""
        ...

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The queue ends before its position."""
        ...


async def first_offset(router: Router, options: PushOptions, queue: MessageQueue, *, added: bool) -> int:
    """Where a queue begins that has no position."""
    where = FIRST if added else options.consume_from_where
    searched = NO_TIME if where in (FIRST, LAST) else options.consume_timestamp
    refs = [broker_pb2.QueueRef(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=searched)]
    request = broker_pb2.OffsetsRequest(queues=refs).SerializeToString()
    answer = await router.call_leader(queue.group, OFFSETS, request, deadline_ms=_deadline_ms(router))
    (found,) = parse(broker_pb2.OffsetsResponse, answer, queue.group).queues
    return {FIRST: found.min_offset, LAST: found.max_offset}.get(where, found.offset_for_time)


class GroupPositions:
    """A clustering group's positions, at the masters."""

    def __init__(self, router: Router, group: str, options: PushOptions) -> None:
        self._router, self._group, self._options = router, group, options

    async def _known(self, group: str) -> dict[MessageQueue, Place]:
        request = broker_pb2.GroupOffsetsRequest(groups=[self._group]).SerializeToString()
        answer = await self._router.call_leader(group, POSITIONS, request, deadline_ms=_deadline_ms(self._router))
        return {
            MessageQueue(each.topic, group, each.queue_id): Place(each.offset, each.generation)
            for found in parse(broker_pb2.GroupOffsetsResponse, answer, group).groups
            for each in found.offsets
        }

    async def find(self, queue: MessageQueue, epoch: int) -> Place:
        known = await self._known(queue.group)
        if queue not in known:
            added = any(other.topic == queue.topic for other in known)
            offset = await first_offset(self._router, self._options, queue, added=added)
            request = broker_pb2.CommitOffsetsRequest(group=self._group, initial=True)
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset, lock_epoch=epoch)
            for error in (await self._send(queue.group, request)).values():
                raise error
            known = await self._known(queue.group)
        return known[queue]

    async def commit(self, rows: Sequence[Progress]) -> dict[MessageQueue, DledgerError]:
        refused: dict[MessageQueue, DledgerError] = {}
        for group in sorted({row.queue.group for row in rows}):
            request = broker_pb2.CommitOffsetsRequest(group=self._group)
            for row in rows:
                if row.queue.group == group:
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
        answer = await self._router.call_leader(group, COMMIT, request.SerializeToString(), deadline_ms=_deadline_ms(self._router))
        refused = parse(broker_pb2.CommitOffsetsResponse, answer, group).refused
        return {MessageQueue(each.topic, group, each.queue_id): from_detail(each.error) for each in refused}

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        return {queue: place.generation for queue, place in (await self._known(group)).items()}

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The brokers know what became of the topic; the position is looked up again."""


class LocalPositions:
    """A broadcast's positions, in a file of this client."""

    def __init__(self, router: Router, file: OffsetFile, options: PushOptions) -> None:
        self._router, self._file, self._options = router, file, options

    async def find(self, queue: MessageQueue, epoch: int) -> Place:
        known = self._file.offsets
        if queue not in known:
            added = any(other.topic == queue.topic for other in known)
            offset = await first_offset(self._router, self._options, queue, added=added)
            self._file.save({queue: offset})
        return Place(known[queue])

    async def commit(self, rows: Sequence[Progress]) -> dict[MessageQueue, DledgerError]:
        self._file.save({row.queue: row.offset for row in rows})
        return {}

    async def generations(self, group: str) -> dict[MessageQueue, int]:
        return {}

    async def beyond_end(self, queue: MessageQueue) -> None:
        """The topic was made anew since the file was written: all of it is news."""
        self._file.save({queue: 0})


def _deadline_ms(router: Router) -> int:
    return router.clock.monotonic_ms() + TIMEOUT_MS
