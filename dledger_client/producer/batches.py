"""The messages of one queue on their way: collected into batches, sent in order, kept until their fate is known.

Owns the rules of sequences on the client's side.  A batch gets its sequence when it is first sent and keeps it until it is stored or
refused for good; after a broken stream everything unanswered is sent again in the same order, so the broker recognises what it has.
When a batch is refused for good, those behind it are out of order: they are numbered anew once nothing of the lane is in flight.

Owns the doubt too: a batch that was on a stream when it broke may be stored until it is answered.  A refusal of one that was never in doubt
settles it for all behind: none of them is stored.  One of a batch in doubt settles nothing, and what else is in doubt behind it goes to
``lost``: sent again under another number it could be there twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dledger_client.message import Message
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_wire.batches.batch import Sequence64, stamp_sequence
from dledger_wire.checksum import Buffer

UNSENT = -1
MESSAGE_OVERHEAD_BYTES = 160  # frame head, topic, unique id: close enough for limits


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Messages of one queue that are stored together or not at all.  ``told``: its deadline passed, the application knows."""

    lane: QueueBatcher
    outcome: DeliveryReport
    created_ms: int
    deadline_ms: int
    messages: list[Message] = field(default_factory=list)
    keys: dict[int, str | None] = field(default_factory=dict)  # by number: the key of a message that has one; None: it stays in this queue
    atomic: bool = False  # sent as one: never cut
    size_bytes: int = 0
    attempts: int = 0  # how often it was sent
    first_sequence: int = UNSENT
    order: int = 0  # the number of its first message when it was last numbered; pieces of a refused batch keep their place by it
    parts: list[Buffer] | None = None
    in_flight: bool = False
    in_doubt: bool = False  # an attempt was not answered
    told: bool = False

    def part(self, lane: QueueBatcher, outcome: DeliveryReport, first: int, upto: int) -> ProducerBatch:
        """Messages ``first`` to ``upto`` (exclusive) as a batch of ``lane``."""
        part = ProducerBatch(lane, outcome, self.created_ms, self.deadline_ms, self.messages[first:upto], atomic=self.atomic)
        part.keys = {number - first: key for number, key in self.keys.items() if first <= number < upto}
        part.order = self.order + first
        part.size_bytes = sum(len(each.body) + len(each.extras) + MESSAGE_OVERHEAD_BYTES for each in part.messages)
        return part

    def stamp(self, producer_id: int, epoch: int, first_sequence: int) -> None:
        """Give the encoded batch its sequence."""
        if self.parts is not None:
            stamp_sequence(self.parts, Sequence64(producer_id, epoch, first_sequence))
        self.first_sequence = self.order = first_sequence


class QueueBatcher:
    """One queue of one topic.  ``open`` and ``waiting`` are filled under the producer's lock, everything else is the link's."""

    __slots__ = (
        "_certain",
        "group",
        "lost",
        "next_sequence",
        "open",
        "queue_id",
        "renumber_from",
        "returned",
        "sent",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic, self.group, self.queue_id = topic, group, queue_id
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.sent: deque[ProducerBatch] = deque()
        self.returned: list[ProducerBatch] = []  # what is left of refused batches, until everything is numbered anew
        self.next_sequence = 0
        self.renumber_from = UNSENT  # where the numbering goes on after a refusal, once nothing is in flight
        self._certain = True  # that nothing from there on is stored
        self.lost: list[ProducerBatch] = []  # what may be stored and can never be sent again; whoever looks fails it

    @property
    def is_idle(self) -> bool:
        return self.open is None and not self.waiting and not self.sent

    def unresolved(self) -> list[ProducerBatch]:
        """Everything whose fate is not known, in order."""
        return [*self.lost, *self.sent, *self.returned, *self.waiting, *([self.open] if self.open is not None else [])]

    def to_resend(self) -> ProducerBatch | None:
        """The first batch that was sent on an earlier stream and is not answered."""
        if self.renumber_from != UNSENT:
            return None
        return next((batch for batch in self.sent if not batch.in_flight), None)

    def sending(self, batch: ProducerBatch, producer_id: int, epoch: int) -> None:
        """A batch goes out, for the first time or again."""
        if batch.first_sequence == UNSENT:
            batch.stamp(producer_id, epoch, self.next_sequence)
            self.next_sequence += len(batch.messages)
            self.sent.append(batch)
        batch.in_flight = True
        batch.attempts += 1

    def resolved(self, batch: ProducerBatch) -> None:
        """The batch is stored."""
        self.sent.remove(batch)
        self.renumber_if_quiet()

    def refused(self, batch: ProducerBatch, *, again: list[ProducerBatch]) -> None:
        """The batch is not stored and never will be, unless it is in doubt; ``again`` are what is left of it to try."""
        self.sent.remove(batch)
        self.returned += again
        self._refused_from(batch)
        self.renumber_if_quiet()

    def _refused_from(self, batch: ProducerBatch) -> None:
        if self.renumber_from == UNSENT or batch.first_sequence < self.renumber_from:
            self.renumber_from, self._certain = batch.first_sequence, not batch.in_doubt

    def out_of_order(self, batch: ProducerBatch) -> bool:
        """The batch is not stored since one before it is missing; False when there is none before it: the session is of no use."""
        batch.in_flight = False
        if self.renumber_from == UNSENT and self.sent[0] is batch:
            self._refused_from(batch)
            self.renumber_if_quiet()
            return False
        self.renumber_if_quiet()
        return True

    def stream_lost(self) -> None:
        """Nothing is in flight any more; what was is to be sent again."""
        for batch in self.sent:
            batch.in_doubt = batch.in_doubt or batch.in_flight
            batch.in_flight = False
        self.renumber_if_quiet()

    def give_up(self) -> list[ProducerBatch]:
        """Nothing that is not in flight is sent any more: takes out what was sent before and not stored as far as is known."""
        left = [batch for batch in self.sent if not batch.in_flight]
        for batch in left:
            self.sent.remove(batch)
        return left

    def renumber_if_quiet(self) -> None:
        """After a refusal, and once nothing is in flight: everything that had a number waits again without one, in the same order."""
        if self.renumber_from == UNSENT or any(batch.in_flight for batch in self.sent):
            return
        if not self._certain:
            self.lost += [batch for batch in self.sent if batch.in_doubt]
        behind = sorted([*self.sent, *self.returned], key=lambda batch: batch.order)
        behind = [batch for batch in behind if batch not in self.lost]
        for batch in behind:
            batch.first_sequence, batch.in_doubt = UNSENT, False
        self.waiting.extendleft(reversed(behind))
        self.sent.clear()
        self.returned.clear()
        self.next_sequence, self.renumber_from, self._certain = self.renumber_from, UNSENT, True

    def restart(self) -> None:
        """A new session: numbering starts at 0.  Nothing may be sent and unresolved."""
        self.next_sequence = 0
