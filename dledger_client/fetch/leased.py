"""Messages that a consumer leased: what they have beside other messages, and how they come out of a response."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import CorruptFrameError


class LeasedMessage:
    """A message that is this consumer's for a time: until then no other consumer of the group gets it.

    Attributes:
        message: The message: ``body``, ``keys``, ``tags``, ``properties`` and the place where it is stored.
        attempt: How often it was delivered to the group, with this time.
        lease: Identifies this delivery.
        invisible_until_ms: When other consumers may get it, milliseconds since 1970, by the clock of the cluster.

    Examples:
        >>> for leased in await consumer.receive():
        ...     print(leased.attempt, leased.body)
    """

    __slots__ = ("attempt", "invisible_until_ms", "lease", "message")

    def __init__(self, message: ReceivedMessage, attempt: int, lease: int, invisible_until_ms: int) -> None:
        self.message, self.attempt, self.lease, self.invisible_until_ms = message, attempt, lease, invisible_until_ms

    @property
    def body(self) -> bytes:
        """The content; decompressed when the producer compressed it."""
        return self.message.body

    @property
    def receipt(self) -> pop_pb2.Receipt:
        """What names this delivery in a request."""
        return pop_pb2.Receipt(queue_id=self.message.queue_id, offset=self.message.queue_offset, lease=self.lease)

    def __repr__(self) -> str:
        return f"LeasedMessage({self.message!r}, attempt={self.attempt})"


def leased_messages(topic: str, replica_group: str, header: pop_pb2.ReceiveResponse, payload: memoryview) -> list[LeasedMessage]:
    """The messages of a response; those that are damaged are left out, and come again."""
    found: list[LeasedMessage] = []
    at = 0
    for queue_id, rows in groupby(header.leases, key=lambda lease: lease.queue_id):
        leases = list(rows)
        size = sum(lease.size for lease in leases)
        if at + size > len(payload):
            raise CorruptFrameError(f"{len(header.leases)} messages in {len(payload)} bytes")
        found += _of_queue(topic, replica_group, queue_id, leases, payload[at : at + size], header)
        at += size
    return found


def _of_queue(
    topic: str,
    replica_group: str,
    queue_id: int,
    leases: Sequence[pop_pb2.Lease],
    frames: memoryview,
    header: pop_pb2.ReceiveResponse,
) -> list[LeasedMessage]:
    offsets = np.array([lease.offset for lease in leases], np.int64)
    chunk = Chunk(topic, replica_group, queue_id, "", offsets, np.array([lease.size for lease in leases]), frames)
    chunk.topic_epoch = header.incarnation
    if len(leases) > 1 and chunk.damaged_offset() is not None:
        ends = np.cumsum([lease.size for lease in leases]).tolist()
        parts = zip(leases, [0, *ends], ends, strict=False)
        return [each for lease, at, end in parts for each in _of_queue(topic, replica_group, queue_id, [lease], frames[at:end], header)]
    if chunk.damaged_offset() is not None:
        return []
    return [
        LeasedMessage(message, lease.attempt, lease.lease, header.invisible_until_ms)
        for message, lease in zip(chunk.messages(), leases, strict=True)
    ]
