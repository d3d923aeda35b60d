"""The choice of a queue: which of a topic's queues a message goes to, and the selectors that applications give.

A message without a key goes to the sticky queue.  That one changes with every full batch and after
``sticky_messages`` messages, and skips replica groups that are slow or unreachable.  Staged messages (delayed, transactional) go
round-robin, one by one, because they are batched in the queue that holds them.  A key or a selector always decides alone, so that messages
with equal keys stay in one queue.  In a topic with priorities a message without one goes to a queue of the lowest, whether it has a key or
not; one with a priority to the queue of that number, in each replica group in turn.

Numbers of queues and what selectors choose come from the application unchecked, and are ``Any``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, TypeAlias

from dledger_client.cluster.routes import place_of_key, queues_for_keys
from dledger_client.producer.batches import Priority, ProducerBatch, QueueBatcher
from dledger_client.producer.latency_fault import Availability
from dledger_client.runtime.user_callbacks import faults
from dledger_wire.clock import Random, system_random
from dledger_wire.errors import InvalidArgumentError

# How many queues the topic has -> the index of the one to take.
QueueSelector: TypeAlias = Callable[[int], int]


def by_hash(argument: object) -> QueueSelector:
    """A queue selector like RocketMQ's SelectMessageQueueByHash: equal arguments choose equal queues.

    Args:
        argument: What is hashed, as text.

    Returns:
        A selector for the ``queue_key`` of a send.

    Examples:
        >>> result = producer.send(Message("orders", b"one"), by_hash("customer-7"))
    """
    text = str(argument)
    return lambda count: place_of_key(text, count)


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


QueueKey: TypeAlias = str | QueueSelector | None  # None beside a queue id
AnyKey: TypeAlias = QueueKey | Priority
QueueNumber: TypeAlias = int | tuple[str, int]  # in the first replica group that has it, or in that one
Run: TypeAlias = tuple[int, int, QueueBatcher]  # consecutive messages of a batch: first, end, and the queue they go to


def priority_key(priority: int, queue_key: QueueKey, queue_id: Any) -> Priority:
    """The key of a message with a priority."""
    if queue_key is not None or queue_id is not None:
        raise InvalidArgumentError(f"priority {priority} chooses the queue: expected neither queue_key nor queue_id")
    return Priority(priority)


class Partitioner:
    """The queues of a topic that take messages, over all replica groups, and the sticky one among them.

    ``batchers``: sorted by replica group and number.
    """

    def __init__(
        self,
        batchers: list[QueueBatcher],
        first: int,
        availability: Availability,
        sticky_messages: int = 1 << 30,
        *,
        priorities: bool = False,
    ) -> None:
        self.batchers, self.priorities = batchers, priorities
        self._of_group = {group: list(queues) for group, queues in groupby(batchers, lambda batcher: batcher.replica_group)}
        self._free = queues_for_keys(batchers, lambda batcher: batcher.replica_group, priorities=priorities)
        self.is_whole = True  # no queue of the topic is missing
        self._sticky_messages = sticky_messages
        self._by_queue_id: dict[Any, QueueBatcher] = {(batcher.replica_group, batcher.queue_id): batcher for batcher in batchers}
        self._by_queue_id |= {batcher.queue_id: batcher for batcher in reversed(batchers)}  # the first replica group's
        self._availability = availability
        self._has_several_groups = len(self._of_group) > 1
        self._index = self._staged_index = first % len(self._free)
        self._sticky_left = sticky_messages  # messages that it takes until the next queue does
        self.sticky = self._free[self._index]

    def rotate(self) -> None:
        """Change to the next queue, of an available replica group if there is one."""
        self._index, self._sticky_left = self._next(self._index), self._sticky_messages
        self.sticky = self._free[self._index]

    def _next(self, index: int) -> int:
        count = len(self._free)
        if not self._has_several_groups:
            return (index + 1) % count
        indexes = [(index + step) % count for step in range(1, count + 1)]
        return next((each for each in indexes if self._availability.is_available(self._free[each].replica_group)), indexes[0])

    def next_sticky(self) -> QueueBatcher:
        """The queue for a message without a key."""
        sticky = self.sticky
        self._sticky_left -= 1
        if not self._sticky_left:
            self.rotate()
        return sticky

    def next_staged(self) -> QueueBatcher:
        """The queue for a message without a key that is staged first."""
        self._staged_index = self._next(self._staged_index)
        return self._free[self._staged_index]

    def choose(self, topic: str, key: AnyKey, queue_id: Any) -> QueueBatcher:
        """The queue of a key or a priority, the one a selector chooses, or the one with that id."""
        if key is None:
            return self._by_id(topic, -1 if queue_id is None else queue_id)
        if isinstance(key, str):
            return self._free[place_of_key(key, len(self._free))]
        if isinstance(key, Priority):
            return self._of_priority(topic, key)
        selector: Any = key
        if not callable(selector):
            raise InvalidArgumentError(f"queue_key {key!r}: expected text, or a function that chooses one of so many queues")
        try:
            index = selector(len(self.batchers))
        except faults() as error:  # the application's function: its failure is this message's, and no other's
            raise InvalidArgumentError(f"topic {topic}: the queue selector raised {error!r}") from error
        if not isinstance(index, int) or not 0 <= index < len(self.batchers):
            raise InvalidArgumentError(f"topic {topic}: the queue selector chose {index!r}; expected 0 to {len(self.batchers) - 1}")
        return self.batchers[index]

    def _of_priority(self, topic: str, priority: Priority) -> QueueBatcher:
        if not self.priorities:
            raise InvalidArgumentError(f"topic {topic} has no priorities, a message to it has priority {priority}; expected none")
        queues = self._of_group[self.next_staged().replica_group]
        return queues[min(priority, len(queues) - 1)]

    def has(self, queue_id: Any) -> bool:
        return self._with_id(queue_id) is not None

    def _with_id(self, queue_id: Any) -> QueueBatcher | None:
        try:
            return self._by_queue_id.get(queue_id)
        except TypeError:  # a list, say: it cannot be looked for
            raise InvalidArgumentError(f"queue_id {queue_id!r}: expected a number, or (replica group, number)") from None

    def _by_id(self, topic: str, queue_id: Any) -> QueueBatcher:
        batcher = self._with_id(queue_id)
        if batcher is not None:
            return batcher
        several = self._has_several_groups or isinstance(queue_id, tuple)
        known = ", ".join(f"{each.replica_group}:{each.queue_id}" if several else str(each.queue_id) for each in self.batchers)
        named = ":".join(map(str, queue_id)) if isinstance(queue_id, tuple) else queue_id
        raise InvalidArgumentError(f"topic {topic}: queue {named} takes no messages; expected one of {known}")

    def elsewhere(self, batch: ProducerBatch, *, with_keys: bool) -> list[Run]:
        """Other queues for the messages of a batch; those that stay keep its own queue.

        Messages with a key move only ``with_keys``: when the queue is gone, so that the queues of all keys change.
        """
        bound = {
            index: self.choose(batch.batcher.topic, key, None) if with_keys and key is not None else batch.batcher
            for index, key in batch.keys.items()
        }
        if batch.is_atomic:
            return [(0, len(batch.messages), bound.get(0, self.sticky))]
        batchers = [bound.get(index, self.sticky) for index in range(len(batch.messages))]
        runs, first = [], 0
        for batcher, group in groupby(batchers):
            end = first + len(list(group))
            runs.append((first, end, batcher))
            first = end
        return runs
