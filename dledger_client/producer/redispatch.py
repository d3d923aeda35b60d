"""Refused batches: which of their messages fail, which are sent again, and which go to another queue.

Owns that decision, and the batches whose queue is gone until their topic has been looked up again or their time is over.  Only messages
that are known not to be stored go to another queue: their sequences mean nothing there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise

from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.batches import ProducerBatch, QueueBatcher
from dledger_client.producer.topic_routes import TopicRoutes
from dledger_wire.clock import Clock
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    TopicNotFoundError,
    TopicPermissionError,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Orphaned:
    """A batch whose queue is gone, and what fails it at its deadline: a look-up takes longer while no node answers."""

    batch: ProducerBatch
    error: DledgerError
    deadline: asyncio.TimerHandle


class Redispatcher:
    """One producer's.  Used on the event loop only."""

    def __init__(self, accumulator: RecordAccumulator, routes: TopicRoutes, clock: Clock) -> None:
        self._accumulator, self._routes, self._clock = accumulator, routes, clock
        self._orphaned: list[_Orphaned] = []

    def orphaned(self) -> list[ProducerBatch]:
        """The batches that wait for another queue."""
        return [each.batch for each in self._orphaned]

    def refused(self, batch: ProducerBatch, error: DledgerError) -> list[ProducerBatch]:
        """Fail a refused batch, or only the message that was at fault; returns the rest, which is sent again.

        A batch that is too large as a whole, for a log of small segments, is cut in halves.
        """
        if isinstance(error, TopicNotFoundError | TopicPermissionError | InvalidArgumentError):
            self._routes.mark_stale()
            if not batch.timed_out and _is_queue_gone(error, batch.batcher) and None not in batch.keys.values():
                left_ms = max(0, batch.deadline_ms - self._clock.monotonic_ms())
                deadline = asyncio.get_running_loop().call_later(left_ms / 1000, self._fail_late, batch)
                self._orphaned.append(_Orphaned(batch, error, deadline))
                return []
        first_bad = error.detail_int("first_bad")  # -1 when it was not a single message
        cuts = _cuts(batch, error, first_bad)
        if not cuts or batch.timed_out:
            self._accumulator.fail(batch, without_number(error) if len(batch.messages) == 1 else error)
            return []
        parts, rest = [], []
        for first, end in pairwise(cuts):
            if first == end:
                continue
            part = batch.part(batch.batcher, first, end)
            parts.append((first, part.report))
            if first != first_bad:
                rest.append(part)
            else:
                self._accumulator.fail(part, without_number(error))
        batch.report.split_into(parts)
        return rest

    def redispatch(self) -> None:
        """The topics were looked up again: send orphaned batches to other queues, or fail them."""
        orphaned, self._orphaned = self._orphaned, []
        for each in orphaned:
            is_current = self._accumulator.takes_messages(each.batch.batcher)
            if is_current:
                self._orphaned.append(each)  # the node that was asked does not know of the change yet
                self._routes.mark_stale()
                continue
            each.deadline.cancel()
            if is_current is False:
                self._accumulator.redispatch(each.batch)
            else:
                self._accumulator.fail(each.batch, each.error)

    def _fail_late(self, batch: ProducerBatch) -> None:
        late = next(each for each in self._orphaned if each.batch is batch)
        self._orphaned.remove(late)
        self._accumulator.fail(batch, late.error)

    def fail_all(self) -> None:
        """The producer ends."""
        orphaned, self._orphaned = self._orphaned, []
        for each in orphaned:
            each.deadline.cancel()
            each.batch.fail(each.error)


def without_number(error: DledgerError) -> DledgerError:
    """The error without the message's number in its batch, which says nothing to the message's sender."""
    numbered = f"message {error.detail_int('first_bad')}: "
    if not error.message.startswith(numbered):
        return error
    return type(error)(error.message.removeprefix(numbered), **error.details)


def _cuts(batch: ProducerBatch, error: DledgerError, first_bad: int) -> list[int]:
    """Where to cut a refused batch; empty when all of it fails."""
    count = len(batch.messages)
    if batch.is_atomic or count == 1:
        return []
    if isinstance(error, MessageTooLargeError) and first_bad < 0:
        return [0, count // 2, count]
    return [0, first_bad, first_bad + 1, count] if 0 <= first_bad < count else []


def _is_queue_gone(error: DledgerError, batcher: QueueBatcher) -> bool:
    """Whether the queue was refused, and not its messages."""
    return isinstance(error, TopicPermissionError) or 0 <= error.detail_int("queues") <= batcher.queue_id
