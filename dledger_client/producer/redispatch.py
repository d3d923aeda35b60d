"""What becomes of messages that a queue did not take: cut out, sent to another queue, or failed.

Owns the decision, and those that wait for their topic to be looked at again.  Only what is known not to be stored goes anywhere else: its
numbers in the old queue mean nothing then.  Everything here runs on the client's event loop.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dledger_client.producer.batches import ProducerBatch, QueueBatcher
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    TopicNotFoundError,
    TopicPermissionError,
)

if TYPE_CHECKING:
    from dledger_client.producer.accumulator import ProducerEngine


class Redispatcher:
    """One producer's."""

    def __init__(self, engine: ProducerEngine) -> None:
        self._engine = engine
        self._homeless: list[tuple[ProducerBatch, DledgerError]] = []  # their queue is there no more

    def batches(self) -> list[ProducerBatch]:
        """What waits here."""
        return [batch for batch, _ in self._homeless]

    def fail_all(self) -> None:
        """Nobody sends any more."""
        homeless, self._homeless = self._homeless, []
        for batch, error in homeless:
            batch.outcome.fail(error)

    def refuse(self, batch: ProducerBatch, error: DledgerError, first_bad: int) -> list[ProducerBatch]:
        """Fail a batch, or only the message that was at fault; returns what is left to be sent.

        A batch that is too large as a whole, for a log of small segments, is cut in halves.
        """
        if isinstance(error, TopicNotFoundError | TopicPermissionError | InvalidArgumentError):
            self._engine.doubted.set()
            if not batch.told and _queue_is_closed(error, batch.lane) and None not in batch.keys.values():
                self._homeless.append((batch, error))  # nothing of it is stored: another queue may take it
                return []
        count = len(batch.messages)
        if batch.atomic:
            cuts = []
        elif isinstance(error, MessageTooLargeError) and first_bad < 0 and count > 1:
            cuts = [0, count // 2, count]
        elif 0 <= first_bad < count and count > 1:
            cuts = [0, first_bad, first_bad + 1, count]
        else:
            cuts = []
        if not cuts or batch.told:
            self._engine.fail(batch, error)
            return []
        parts, again = [], []
        for first, upto in pairwise(cuts):
            if first == upto:
                continue
            part = batch.part(batch.lane, self._engine.new_outcome(batch.lane), first, upto)
            parts.append((first, part.outcome))
            if first != first_bad:
                again.append(part)
            else:
                self._engine.release(part)
                part.outcome.fail(error)
        batch.outcome.cut_into(parts)
        return again

    # Other queues for what is known not to be stored

    def group_failed(self, group: str) -> None:
        """The group's leader cannot be reached: messages that may go anywhere go elsewhere, if the producer was told so also those
        that wait here and were never sent."""
        self._engine.faults.failed(group)
        with self._engine.lock:
            for topic in self._engine.topics.values():
                if topic.sticky.group == group:
                    topic.rotate()
            for lane in self._engine.lanes_of(group) if self._engine.options.retry_another_group else ():
                topic_now = self._engine.topics.get(lane.topic)
                if topic_now is None or topic_now.sticky.group == group:
                    continue
                unsent = [*lane.waiting, *([lane.open] if lane.open is not None else [])]
                lane.waiting.clear()
                lane.open = None
                for batch in unsent:
                    if batch.attempts or len(batch.keys) == len(batch.messages):
                        lane.waiting.append(batch)
                    else:
                        self._spread(batch, topic_now.elsewhere(batch, with_keys=False))

    def _spread(self, batch: ProducerBatch, runs: list[tuple[int, int, QueueBatcher]]) -> None:
        """Put a batch of which nothing is stored into the queues of ``runs``.  The caller holds the lock."""
        parts = []
        for first, upto, lane in runs:
            part = batch.part(lane, self._engine.new_outcome(lane), first, upto)
            part.order = 0
            parts.append((first, part.outcome))
            self._engine.append(part)
        batch.parts = None
        batch.outcome.cut_into(parts)

    def rehome(self) -> None:
        """What a queue refused that is there no more, once the topic was looked at again."""
        homeless, self._homeless = self._homeless, []
        now_ms = self._engine.router.clock.monotonic_ms()
        for batch, error in homeless:
            topic = self._engine.topics.get(batch.lane.topic)
            if topic is not None and batch.lane in topic.lanes and now_ms < batch.deadline_ms:
                self._homeless.append((batch, error))  # whoever was asked does not know it yet
                self._engine.doubted.set()
            elif topic is None or batch.lane in topic.lanes:
                self._engine.release(batch)
                batch.outcome.fail(error)
            else:
                with self._engine.lock:
                    self._spread(batch, topic.elsewhere(batch, with_keys=True))


def _queue_is_closed(error: DledgerError, lane: QueueBatcher) -> bool:
    """Whether the refusal is the queue's and not the messages'."""
    return isinstance(error, TopicPermissionError) or 0 <= error.detail_int("queues") <= lane.queue_id
