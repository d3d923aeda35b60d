"""Messages that a consumer has for a time: as the master sent them, with their leases.

Owns decoding of an answer to Receive: each run of messages of one queue is a chunk, which is checked as any other one.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dledger_client.cluster.responses import garbage
from dledger_client.fetch.records import OPENING, Chunk, CompressedMessage, ReceivedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_wire._pb import pop_pb2


class LeasedChunk(Chunk):
    """A chunk with the lease and the attempt of each message."""

    leases: list[int]
    attempts: list[int]


class LeasedMessage(ReceivedMessage):
    """A message that a ``SimpleConsumer`` received: no other consumer of the group gets it until its invisible time ends.

    Clients make it; do not construct it. What it is besides: see ``ReceivedMessage``.

    Examples:
        >>> for message in await consumer.receive():
        ...     print(message.attempt, message.body)
        ...     await consumer.ack(message)
    """

    __slots__ = ()

    @property
    def _chunk(self) -> LeasedChunk:
        return cast("LeasedChunk", self._rows.chunk)

    @property
    def attempt(self) -> int:
        """How often the group received it, with this time; 1: the first time."""
        return self._chunk.attempts[self._row]

    @property
    def lease(self) -> int:
        """Number of this delivery; another one for each."""
        return self._chunk.leases[self._row]

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: without the other messages of its chunk."""
        return _unpickled, (self._rows.alone(self._row), self.lease, self.attempt)


class _CompressedLeasedMessage(CompressedMessage, LeasedMessage):
    __slots__ = ()


OPENING[LeasedMessage] = _CompressedLeasedMessage


def _unpickled(chunk: Chunk, lease: int, attempt: int) -> LeasedMessage:
    place = chunk.topic, chunk.replica_group, chunk.queue_id, chunk.replica
    leased = LeasedChunk(*place, chunk.offsets, chunk.sizes, chunk.frames, chunk.next_offset)
    leased.topic_epoch, leased.leases, leased.attempts = chunk.topic_epoch, [lease], [attempt]
    (message,) = leased.messages(LeasedMessage)
    return cast("LeasedMessage", message)


def _runs(leases: list[pop_pb2.Lease]) -> list[tuple[int, int]]:
    """Where messages of one queue stand in the order of their offsets."""
    starts = [
        at
        for at, lease in enumerate(leases)
        if not at or leases[at - 1].queue_id != lease.queue_id or leases[at - 1].offset >= lease.offset
    ]
    return list(zip(starts, [*starts[1:], len(leases)], strict=False))


def leased_messages(
    topic: str, group: str, replica: str, response: pop_pb2.ReceiveResponse, wanted: Subscription
) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    """The messages of an answer that are wanted, and those that only have a hash in common with them.

    UnreachableError when any of them is damaged."""
    leases, frames = list(response.leases), memoryview(response.payload)
    if sum(lease.size for lease in leases) != len(frames):
        raise garbage(replica, f"{len(leases)} leased messages that are not the {len(frames)} bytes sent with them")
    found: list[LeasedMessage] = []
    others: list[LeasedMessage] = []
    at = 0
    for start, end in _runs(leases):
        part = leases[start:end]
        size = sum(lease.size for lease in part)
        offsets, sizes = np.array([(lease.offset, lease.size) for lease in part], np.int64).T
        chunk = LeasedChunk(topic, group, part[0].queue_id, replica, offsets, sizes, frames[at : at + size], part[-1].offset + 1)
        chunk.topic_epoch = response.incarnation
        chunk.leases, chunk.attempts = [lease.lease for lease in part], [lease.attempt for lease in part]
        if (bad := chunk.damaged_offset()) is not None:
            raise garbage(replica, f"message {bad} of queue {part[0].queue_id} of {topic} is damaged")
        for message in cast("list[LeasedMessage]", chunk.messages(LeasedMessage)):
            (found if not wanted.tags or message.tags in wanted.tags else others).append(message)
        at += size
    return found, others
