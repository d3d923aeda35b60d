"""The batches of one queue that were sent and are not resolved: sequences, resends, renumbering after a refusal.

Owns the client's side of the sequence rules.  A batch gets its sequence when it is first sent, and keeps it until it is stored or refused
for good.  After a broken stream everything unacknowledged is sent again in the same order, so the broker recognizes duplicates.  When a
batch is refused for good, those after it are out of order: they get new sequences once nothing of the queue is in flight.

Owns uncertainty too.  A batch that was on a stream when it broke may be stored.  The refusal of a batch that was never uncertain settles
that nothing after it is stored.  The refusal of an uncertain one settles nothing: other uncertain batches after it become
``unresolvable``, because under another sequence they could be stored twice.
"""

from __future__ import annotations

from collections import deque

from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.batches import UNSENT, ProducerBatch, QueueBatcher
from dledger_wire.batches.batch import Sequence64, stamp_sequence


class InFlightQueue:
    """One queue, as its sender sees it.  Used on the event loop only."""

    __slots__ = (
        "_accumulator",
        "_is_certain",
        "_next_sequence",
        "_renumber_from",
        "_returned",
        "batcher",
        "sent",
        "unresolvable",
    )

    def __init__(self, batcher: QueueBatcher, accumulator: RecordAccumulator) -> None:
        self.batcher = batcher
        self.sent: deque[ProducerBatch] = deque()
        self.unresolvable: list[ProducerBatch] = []  # may be stored, and cannot be sent again; the sender fails them
        self._accumulator = accumulator
        self._returned: list[ProducerBatch] = []  # the rest of refused batches, until everything is renumbered
        self._next_sequence = 0
        self._renumber_from = UNSENT  # where sequences continue after a refusal, once nothing is in flight
        self._is_certain = True  # that nothing from there on is stored

    @property
    def is_idle(self) -> bool:
        return not self.sent and self.batcher.is_empty

    @property
    def is_renumbering(self) -> bool:
        return self._renumber_from != UNSENT

    def unacknowledged(self) -> list[ProducerBatch]:
        """Every batch that was handed to this queue and is not resolved, in order."""
        return [*self.unresolvable, *self.sent, *self._returned]

    def to_resend(self) -> ProducerBatch | None:
        """The first batch that was sent on an earlier stream and is not acknowledged."""
        if self.is_renumbering:
            return None
        return next((batch for batch in self.sent if not batch.in_flight), None)

    def sending(self, batch: ProducerBatch, producer_id: int, epoch: int) -> None:
        """A batch is sent, for the first time or again."""
        if batch.first_sequence == UNSENT:
            if batch.parts is not None:
                stamp_sequence(batch.parts, Sequence64(producer_id, epoch, self._next_sequence))
            batch.first_sequence = batch.order = self._next_sequence
            self._next_sequence += len(batch.messages)
            self.sent.append(batch)
        batch.in_flight = True
        batch.attempts += 1

    def not_sent(self, batch: ProducerBatch) -> None:
        """The last sending of the batch came to nothing, before a byte of it left: it is as if it had not begun."""
        batch.in_flight = False
        batch.attempts -= 1
        if batch.maybe_stored or batch.timed_out or self.is_renumbering or self.sent[-1] is not batch:
            return
        self.sent.pop()
        self._next_sequence, batch.first_sequence = batch.first_sequence, UNSENT
        self._accumulator.requeue(self.batcher, [batch])

    def stored(self, batch: ProducerBatch) -> None:
        """The batch is stored."""
        self.sent.remove(batch)
        self._renumber_if_quiet()

    def refused(self, batch: ProducerBatch, *, rest: list[ProducerBatch]) -> None:
        """The batch is refused for good; ``rest`` are its messages that are sent again."""
        self.sent.remove(batch)
        self._returned += rest
        self._refused_from(batch)
        self._renumber_if_quiet()

    def _refused_from(self, batch: ProducerBatch) -> None:
        if self._renumber_from == UNSENT or batch.first_sequence < self._renumber_from:
            self._renumber_from, self._is_certain = batch.first_sequence, not batch.maybe_stored

    def out_of_order(self, batch: ProducerBatch) -> bool:
        """The batch is refused because an earlier one is missing; False when there is none: the broker has lost the session."""
        batch.in_flight = False
        if self._renumber_from == UNSENT and self.sent[0] is batch:
            self._refused_from(batch)
            self._renumber_if_quiet()
            return False
        self._renumber_if_quiet()
        return True

    def stream_lost(self) -> None:
        """Nothing is in flight any more; what was has to be sent again."""
        for batch in self.sent:
            batch.maybe_stored = batch.maybe_stored or batch.in_flight
            batch.in_flight = False
        self._renumber_if_quiet()

    def give_up(self) -> list[ProducerBatch]:
        """Send nothing again: takes out what was sent before and is not in flight."""
        left = [batch for batch in self.sent if not batch.in_flight]
        for batch in left:
            self.sent.remove(batch)
        return left

    def _renumber_if_quiet(self) -> None:
        """After a refusal, once nothing is in flight: every numbered batch is queued again without a sequence, in the same order."""
        if self._renumber_from == UNSENT or any(batch.in_flight for batch in self.sent):
            return
        if not self._is_certain:
            self.unresolvable += [batch for batch in self.sent if batch.maybe_stored]
        following = sorted([*self.sent, *self._returned], key=lambda batch: batch.order)
        following = [batch for batch in following if batch not in self.unresolvable]
        for batch in following:
            batch.first_sequence, batch.maybe_stored = UNSENT, False
        self._accumulator.requeue(self.batcher, following)
        self.sent.clear()
        self._returned.clear()
        self._next_sequence, self._renumber_from, self._is_certain = self._renumber_from, UNSENT, True

    def restart(self) -> None:
        """A new session: sequences start at 0.  Nothing may be sent and unresolved."""
        self._next_sequence = 0
