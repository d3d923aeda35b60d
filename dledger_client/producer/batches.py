"""Batches of one producer, and the queue of batches that each topic queue has before they are sent.

Owns the data alone.  ``RecordAccumulator`` fills and empties a ``QueueBatcher`` under its lock; ``InFlightQueue`` keeps the order of what
was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dledger_client.message import Message
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.producer.send_metrics import TopicMetrics
from dledger_wire.checksum import Buffer
from dledger_wire.errors import DledgerError

UNSENT = -1
UNSEEN = -1
MESSAGE_OVERHEAD_BYTES = 160  # frame head, topic, unique id: close enough for limits


class Priority(int):
    """The priority of a message in the place of its key: it chooses the queue."""


BatchKey: TypeAlias = str | Priority | None  # None: bound to its queue


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Messages of one queue that are stored together or not at all.

    ``timed_out``: its deadline passed and its report is settled; the batch stays in flight until its result is known, to keep the order.
    ``maybe_stored``: an attempt was not acknowledged.  ``order`` is the sequence of its first message when it was last numbered; the parts
    of a refused batch keep their place by it.
    """

    batcher: QueueBatcher
    report: DeliveryReport
    created_ms: int = UNSEEN  # set when the sender first sees the batch
    deadline_ms: int = 0
    messages: Sequence[Message] = ()
    keys: dict[int, BatchKey] = field(default_factory=dict)  # by index, of the messages that have one
    is_atomic: bool = False  # sent as one batch by the application: never split
    size_bytes: int = 0
    attempts: int = 0
    first_sequence: int = UNSENT
    order: int = 0
    parts: list[Buffer] | None = None  # the encoded record
    in_flight: bool = False
    maybe_stored: bool = False
    timed_out: bool = False

    def part(self, batcher: QueueBatcher, first: int, end: int) -> ProducerBatch:
        """Messages ``first`` to ``end`` (exclusive) as a batch of ``batcher``, with a report of its own."""
        part = ProducerBatch(batcher, self.report.sibling(batcher.topic, batcher.replica_group, batcher.queue_id))
        part.created_ms, part.deadline_ms, part.is_atomic = self.created_ms, self.deadline_ms, self.is_atomic
        part.messages = self.messages[first:end]
        part.keys = {index - first: key for index, key in self.keys.items() if first <= index < end}
        part.order = self.order + first
        part.size_bytes = size_of(part.messages)
        return part

    def move_to(self, batcher: QueueBatcher) -> None:
        """Have all of it go to another queue, as if it had not been sent: it is known not to be stored."""
        self.batcher, self.order, self.first_sequence = batcher, 0, UNSENT
        self.attempts, self.in_flight, self.maybe_stored = 0, False, False
        self.report.replica_group, self.report.queue_id = batcher.replica_group, batcher.queue_id

    def is_expired(self, now_ms: int | None) -> bool:
        """Whether its deadline is over; None: at the end of time."""
        return now_ms is None or (self.created_ms != UNSEEN and now_ms >= self.deadline_ms)

    def succeed(self, first_offset: int, store_timestamp_ms: int, *, is_duplicate: bool) -> None:
        """Report that the batch is stored, unless a timeout was reported."""
        report = self.report
        report.first_offset, report.store_timestamp, report.duplicate = first_offset, store_timestamp_ms, is_duplicate
        if not self.timed_out:
            if self.batcher.metrics is not None:
                self.batcher.metrics.stored(len(self.messages), self.size_bytes, self.created_ms, self.attempts)
            report.settle()

    def time_out(self, error: DledgerError) -> None:
        """Report a timeout; the batch stays in flight."""
        self._fail(error)
        self.timed_out = True

    def fail(self, error: DledgerError) -> None:
        """Report ``error``, unless a timeout was reported."""
        if not self.timed_out:
            self._fail(error)

    def _fail(self, error: DledgerError) -> None:
        if self.batcher.metrics is not None:
            self.batcher.metrics.failed(len(self.messages), error, self.attempts)
        self.report.fail(error)


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of messages, as the limits of a producer count them."""
    return sum(len(each.body) + len(each.extras) + MESSAGE_OVERHEAD_BYTES for each in messages)


class QueueBatcher:
    """The batches of one queue before they are sent: ``open`` takes messages into ``open_messages``, ``ready`` are full or were closed."""

    __slots__ = ("metrics", "open", "open_messages", "queue_id", "ready", "replica_group", "topic")

    def __init__(self, topic: str, replica_group: str, queue_id: int, metrics: TopicMetrics | None = None) -> None:
        self.topic, self.replica_group, self.queue_id, self.metrics = topic, replica_group, queue_id, metrics
        self.open: ProducerBatch | None = None
        self.open_messages: list[Message] = []
        self.ready: deque[ProducerBatch] = deque()

    @property
    def is_empty(self) -> bool:
        """A snapshot, from any thread; an append that follows wakes the sender."""
        return self.open is None and not self.ready

    def unsent(self) -> list[ProducerBatch]:
        """All batches, in order.  Under the accumulator's lock."""
        return [*self.ready, *([self.open] if self.open is not None else [])]
