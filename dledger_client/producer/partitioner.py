"""The choice of a queue: which of a topic's queues a message goes to.

Owns RocketMQ's selectors.  A message without a key goes to the sticky queue, which moves on with every full batch and every
``sticky_messages`` messages, and passes over groups that answer badly.  Messages that are parked first (delays, transactions) go round
one by one: their batches are those of the parking place.  A key or a selector decides by itself, so that what belongs together stays
together.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TypeAlias

from dledger_client.producer.batches import ProducerBatch, QueueBatcher
from dledger_client.producer.latency_fault import LatencyFaultTolerance
from dledger_client.runtime.user_callbacks import FAULTS
from dledger_wire.clock import Random, system_random
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.java_hash import cached_java_hash

# How many queues the topic has -> the number of the one to take.
QueueSelector: TypeAlias = Callable[[int], int]
QueueKey: TypeAlias = str | QueueSelector | None  # None beside a queue's number


def by_hash(argument: object) -> QueueSelector:
    """A queue selector like RocketMQ's SelectMessageQueueByHash: equal arguments choose equal queues.

    Args:
        argument: What is hashed, as text.

    Returns:
        A selector for the ``queue_key`` of a send.

    Examples:
        >>> result = producer.send(Message("orders", b"one"), by_hash("customer-7"))
    """
    digest = abs(cached_java_hash(str(argument)))
    return lambda count: digest % count


def by_random(random: Random | None = None) -> QueueSelector:
    """A queue selector like RocketMQ's SelectMessageQueueByRandom: any queue.

    Args:
        random: Source of randomness. Default: the system's.

    Returns:
        A selector for the ``queue_key`` of a send.

    Examples:
        >>> result = producer.send(Message("orders", b"one"), by_random())
    """
    source = random if random is not None else system_random()
    return lambda count: source.randrange(0, count)


class Partitioner:
    """The queues of a topic a producer may write to, over all groups, and the one that takes messages without a key now."""

    def __init__(self, lanes: list[QueueBatcher], start: int, faults: LatencyFaultTolerance, sticky_messages: int = 1 << 30) -> None:
        self.lanes = lanes
        self._sticky_messages = sticky_messages
        self._by_number = {lane.queue_id: lane for lane in reversed(lanes)}  # of several groups' the first one
        self._faults = faults
        self._several_groups = len({lane.group for lane in lanes}) > 1
        self._place = self._parked_place = start % len(lanes)
        self._given = 0  # messages to the sticky queue since it is that
        self.sticky = lanes[self._place]

    def rotate(self) -> None:
        """Go on to the next queue, of a group that answers well if there is one."""
        self._place, self._given = self._behind(self._place), 0
        self.sticky = self.lanes[self._place]

    def _behind(self, place: int) -> int:
        count = len(self.lanes)
        places = [(place + step) % count for step in range(1, count + 1)] if self._several_groups else [(place + 1) % count]
        return next((place for place in places if self._faults.is_available(self.lanes[place].group)), places[0])

    def took(self) -> None:
        """The sticky queue was given a message."""
        self._given += 1
        if self._given >= self._sticky_messages:
            self.rotate()

    def next_parked(self) -> QueueBatcher:
        """The queue that a message without a key is meant for which is parked first."""
        self._parked_place = self._behind(self._parked_place)
        return self.lanes[self._parked_place]

    def choose(self, topic: str, key: QueueKey, queue_id: int | None) -> QueueBatcher:
        """The queue of a key, the one a selector names, or the one with that number."""
        if key is None:
            return self.by_queue(topic, -1 if queue_id is None else queue_id)
        if isinstance(key, str):
            return self.lanes[abs(cached_java_hash(key)) % len(self.lanes)]
        if not callable(key):
            raise InvalidArgumentError(f"queue_key {key!r}: expected text, or a function that chooses one of so many queues")
        try:
            number = key(len(self.lanes))
        except FAULTS as error:  # a user's function: whatever it raises is this message's failure, and nobody else's
            raise InvalidArgumentError(f"topic {topic}: the queue selector raised {error!r}") from error
        if not isinstance(number, int) or not 0 <= number < len(self.lanes):
            raise InvalidArgumentError(f"topic {topic}: the queue selector chose {number!r}; expected 0 to {len(self.lanes) - 1}")
        return self.lanes[number]

    def has(self, queue_id: int) -> bool:
        return queue_id in self._by_number

    def by_queue(self, topic: str, queue_id: int) -> QueueBatcher:
        lane = self._by_number.get(queue_id)
        if lane is not None:
            return lane
        known = ", ".join(str(lane.queue_id) for lane in self.lanes)
        raise InvalidArgumentError(f"topic {topic}: queue {queue_id} takes no messages; expected one of {known}")

    def elsewhere(self, batch: ProducerBatch, *, with_keys: bool) -> list[tuple[int, int, QueueBatcher]]:
        """Where the messages of a batch may go in place of its own queue: (first, upto, queue) of each run, its own for those that stay.

        Those with a key move only ``with_keys``: when the queue is gone for good, so that all of its keys change.
        """
        bound = {
            number: self.choose(batch.lane.topic, key, None) if with_keys and key is not None else batch.lane
            for number, key in batch.keys.items()
        }
        if batch.atomic:
            return [(0, len(batch.messages), bound.get(0, self.sticky))]
        lanes = [bound.get(number, self.sticky) for number in range(len(batch.messages))]
        runs, first = [], 0
        for lane, group in groupby(lanes):
            upto = first + len(list(group))
            runs.append((first, upto, lane))
            first = upto
        return runs
