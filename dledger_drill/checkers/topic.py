"""What a history says of one topic: all that is kept in memory until the topic is judged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from dledger_drill.history.records import Operation, OperationKind, Outcome

SENDS = frozenset({OperationKind.SEND, OperationKind.DELAYED, OperationKind.TRANSACTION})


class Queue(NamedTuple):
    group: str
    number: int

    def __str__(self) -> str:
        return f"{self.group}/{self.number}"


class Message(NamedTuple):
    value: str
    key: str | None


class Sighting(NamedTuple):
    """A message that a client was answered stands at an offset."""

    queue: Queue
    offset: int
    value: str
    by: Operation


@dataclass(slots=True)
class TopicHistory:
    """Operations of one topic.  ``stored``: what its queues held in the end; empty when it was not read."""

    name: str
    sends: dict[str, Operation] = field(default_factory=dict)  # by value
    deliveries: list[Operation] = field(default_factory=list)
    reads: list[Operation] = field(default_factory=list)
    spark: list[Operation] = field(default_factory=list)
    offsets: list[Operation] = field(default_factory=list)
    stored: dict[Queue, dict[int, Message]] = field(default_factory=dict)
    audits: dict[Queue, Operation] = field(default_factory=dict)
    differing: list[Sighting] = field(default_factory=list)  # two audits of one offset
    subscribed: set[str] = field(default_factory=set)  # consumer groups that are to be given everything
    altered: bool = False  # its queues changed, so keys may have changed theirs

    def take(self, operation: Operation) -> None:
        kind = operation.kind
        if kind in SENDS:
            self.sends[operation.data["value"]] = _slim(operation)
        elif kind is OperationKind.DELIVER:
            self.deliveries.append(_slim(operation))
        elif kind is OperationKind.READ and operation.outcome is Outcome.OK:
            self.reads.append(_slim(operation))
        elif kind is OperationKind.SPARK and operation.outcome is Outcome.OK:
            self.spark.append(operation)
        elif kind in (OperationKind.COMMIT_OFFSET, OperationKind.FETCH_OFFSET):
            self.offsets.append(_slim(operation))
        elif kind is OperationKind.STORED:
            self._take_stored(operation)

    def _take_stored(self, operation: Operation) -> None:
        queue = queue_of(operation)
        content = self.stored.setdefault(queue, {})
        self.audits.setdefault(queue, operation)
        for offset, message in enumerate(_messages(operation), operation.data["first_offset"]):
            if content.setdefault(offset, message) != message:
                self.differing.append(Sighting(queue, offset, message.value, self.excerpt(queue, offset)))

    def forget_audit(self) -> None:
        self.stored.clear()
        self.audits.clear()

    @property
    def is_audited(self) -> bool:
        return bool(self.audits)

    def places(self) -> dict[str, list[tuple[Queue, int]]]:
        """Where each value is stored, lowest offset first."""
        found: dict[str, list[tuple[Queue, int]]] = {}
        for queue, content in sorted(self.stored.items()):
            for offset in sorted(content):
                found.setdefault(content[offset].value, []).append((queue, offset))
        return found

    def excerpt(self, queue: Queue, offset: int) -> Operation:
        """The audit's word on one offset: what shows a violation, without the thousands beside it."""
        message = self.stored[queue].get(offset)
        values, keys = ([message.value], [message.key]) if message else ([], [])
        data = {"topic": self.name, "group": queue.group, "queue": queue.number, "first_offset": offset, "values": values, "keys": keys}
        return replace(self.audits[queue], data=data)

    def sightings(self) -> Iterator[Sighting]:
        """All that clients were answered about what stands where, but for the audit."""
        for send in self.sends.values():
            if (place := acknowledged_place(send)) is not None:
                yield Sighting(*place, send.data["value"], send)
        for delivery in self.deliveries:
            # A message that was sent back comes from the retry topic of the consumer group, with an offset there.
            if not delivery.data["redelivered"]:
                yield Sighting(queue_of(delivery), delivery.data["offset"], delivery.data["value"], delivery)
        for seen, start in ((self.reads, "from_offset"), (self.spark, "first_offset")):
            for operation in seen:
                queue = queue_of(operation)
                for offset, value in enumerate(operation.data["values"], operation.data[start]):
                    yield Sighting(queue, offset, value, operation)


def queue_of(operation: Operation) -> Queue:
    return Queue(operation.data["group"], operation.data["queue"])


def acknowledged_place(send: Operation) -> tuple[Queue, int] | None:
    """Queue and offset that an acknowledgement named.  Those of delayed and transactional messages are of a place where they wait."""
    if send.kind is OperationKind.SEND and send.outcome is Outcome.OK:
        return queue_of(send), send.data["offset"]
    return None


def end_of(operation: Operation) -> float:
    """When the operation was over for certain; infinity when no client was answered."""
    if operation.outcome is Outcome.UNKNOWN or operation.returned_ns is None:
        return inf
    return operation.returned_ns


def _messages(stored: Operation) -> Iterator[Message]:
    values = stored.data["values"]
    for value, key in zip(values, stored.data.get("keys") or [None] * len(values), strict=True):
        yield Message(value, key)


def _slim(each: Operation) -> Operation:
    """The same with names shared between operations: each line of a file has its own copy of every string."""
    data = {sys.intern(key): _shared(value) for key, value in each.data.items()}
    return Operation(sys.intern(each.process), each.kind, each.invoked_ns, each.returned_ns, each.outcome, each.round, data)


def _shared(value: Any) -> Any:
    return sys.intern(value) if type(value) is str else value
