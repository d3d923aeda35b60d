"""What is left in a replica group that is to be removed: messages that a consumer still waits for.

A message counts while it is stored: what retention deleted does not.  Rows name the waiting groups; those of ``DISCARDABLE`` kinds are
waited for by no named group, and may be given up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broker.context import ServiceContext
from broker.delivery.verified_reads import read_with_repair
from broker.support.limits import in_slices
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic
from store.state.delays import LEVELS
from store.state.topics import Topic
from store.store import MessageStore

DISCARDABLE = ("abandoned", "dead_letter", "parked")
MAX_TRANSACTIONS = 100_000  # counted exactly up to there
SCAN_UNITS = 16_384


@dataclass(frozen=True, slots=True)
class Left:
    """Messages of one kind in one topic."""

    kind: str
    topic: str
    consumer_group: str
    messages: int

    @property
    def text(self) -> str:
        words = {
            "unread": f"consumer group {self.consumer_group} has not read {self.messages} messages of topic {self.topic}",
            "retry": f"{self.messages} messages wait to be delivered to consumer group {self.consumer_group} again",
            "delayed": f"{self.messages} delayed messages are not delivered yet",
            "timer": f"{self.messages} messages with a delivery time are not delivered yet",
            "transaction": f"{self.messages} transactions are open",
            "abandoned": f"topic {self.topic} has {self.messages} messages, and no consumer group reads it",
            "dead_letter": f"consumer group {self.consumer_group} has {self.messages} dead letters",
            "parked": f"{self.messages} transactions without an end are parked",
        }
        return words[self.kind]


async def remaining_messages(context: ServiceContext) -> list[Left]:
    """Everything that is left, by topic.  Takes the state as it is while it runs: nothing may be written meanwhile."""
    store = context.store
    readers = store.consumer_offsets.readers()
    found: list[Left] = []
    async for topic in in_slices(sorted(store.topics, key=lambda topic: topic.name)):
        found += _in_topic(store, topic, readers.get(topic.name, ()))
    waiting = [
        Left("delayed", SCHEDULE_TOPIC, "", sum(_stored(store, SCHEDULE_TOPIC, n - 1, store.delays.of(n)) for n in range(1, LEVELS + 1))),
        Left("timer", TIMER_TOPIC, "", await _waiting_timers(context)),
        Left("transaction", HALF_TOPIC, "", _open_transactions(store)),
        Left("parked", CHECK_MAX_TIME_TOPIC, "", _all_queues(store, CHECK_MAX_TIME_TOPIC)),
    ]
    return found + [row for row in waiting if row.messages]


def _in_topic(store: MessageStore, topic: Topic, readers: Sequence[str]) -> list[Left]:
    name = topic.name
    if is_system_topic(name):
        return []
    if name.startswith(DLQ_PREFIX):
        group = name.removeprefix(DLQ_PREFIX)
        rows = [
            Left("dead_letter", name, group, sum(_stored(store, name, n, store.send_backs.redriven(group)) for n in range(topic.queues)))
        ]
    elif name.startswith(RETRY_PREFIX):
        group = name.removeprefix(RETRY_PREFIX)
        rows = [Left("retry", name, group, _unread(store, topic, group))]
    elif readers:
        rows = [Left("unread", name, group, _unread(store, topic, group)) for group in readers]
    else:
        rows = [Left("abandoned", name, "", _all_queues(store, name))]
    return [row for row in rows if row.messages]


def _unread(store: MessageStore, topic: Topic, group: str) -> int:
    position = store.consumer_offsets.position
    return sum(_stored(store, topic.name, queue_id, position(group, topic.name, queue_id)) for queue_id in range(topic.queues))


def _all_queues(store: MessageStore, name: str) -> int:
    topic = store.topics.get(name)
    return sum(_stored(store, name, queue_id, 0) for queue_id in range(topic.queues)) if topic is not None else 0


def _stored(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """How many messages from ``offset`` on are stored."""
    queue = store.queues.get((topic, queue_id))
    return max(0, queue.max_offset - max(offset, queue.min_offset)) if queue is not None else 0


async def _waiting_timers(context: ServiceContext) -> int:
    """How many messages with a delivery time are not delivered: those that are stay in the queue with them for hours."""
    store = context.store
    queue, progress = store.queues.get((TIMER_TOPIC, 0)), store.timers.progress
    if queue is None:
        return 0
    count, offset, end = 0, max(progress.low, queue.min_offset), queue.max_offset
    while offset < end:
        read = functools.partial(store.reader.units, TIMER_TOPIC, 0, offset, min(SCAN_UNITS, end - offset))
        units = await read_with_repair(context.raft, read)
        if not len(units):
            break
        offsets = np.arange(offset, offset + len(units), dtype=np.int64)
        count += int(np.count_nonzero(progress.undelivered(offsets, units["tag_hash"].astype(np.int64))))
        offset += len(units)
    return count


def _open_transactions(store: MessageStore) -> int:
    queue = store.queues.get((HALF_TOPIC, 0))
    if queue is None:
        return 0
    count = 0
    for _ in store.transactions.open_from(max(queue.min_offset, store.transactions.first_open(0)), queue.max_offset):
        count += 1
        if count == MAX_TRANSACTIONS:
            break
    return count
