"""Messages that were acknowledged for a topic and are not in its queues yet: delayed ones, those with a delivery time, open transactions.

They are stored in queues of the system, all topics together, and would be dropped if the topic was gone when they are due.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import numpy as np

from broker.context import ServiceContext
from broker.delivery.verified_reads import StoredMessages, read_with_repair
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.timer import TIMER_OUT
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.append.redelivery import staged_pos
from store.append.staged_check import REAL_TOPIC
from store.state.delays import LEVELS
from store.state.topics import Topic
from store.state.transactions import Outcome

MAX_SCANNED = 100_000  # messages of all topics
PAGE_MESSAGES, PAGE_BYTES = 1_000, 1 << 20


async def waiting_for(context: ServiceContext, topic: Topic) -> str:
    """What waits for ``topic``, as text; empty when nothing does.  Takes the applied state: the topic takes no messages meanwhile.

    What waits for a topic of that name that was deleted is dropped when it is due: it does not count.  Only what was stored since the topic
    was made is read, so that a new one can be deleted however much waits for others.
    """
    store, left = context.store, MAX_SCANNED
    places = [
        ("delayed messages are not delivered yet", SCHEDULE_TOPIC, level - 1, store.delays.of(level)) for level in range(1, LEVELS + 1)
    ]
    places.append(("messages with a delivery time are not delivered yet", TIMER_TOPIC, 0, store.timers.progress.low))
    places.append(("transactions are open", HALF_TOPIC, 0, store.transactions.first_open(0)))
    counts: dict[str, int] = {}
    for text, name, queue_id, offset in places:
        waits = _waits_in(context, name)
        async for frame in _messages(context, name, queue_id, offset, topic.created_pos):
            counts[text] = counts.get(text, 0) + (_is_for(frame, topic) and waits(frame))
            left -= 1
            if not left:
                return f"more than {MAX_SCANNED} messages of all topics wait to be delivered; repeat this when fewer do"
    return "; ".join(f"{count} {text}" for text, count in counts.items() if count)


def _is_for(frame: Frame, topic: Topic) -> bool:
    return frame.properties.get(REAL_TOPIC) == topic.name and staged_pos(frame) >= topic.created_pos


def _waits_in(context: ServiceContext, name: str) -> Callable[[Frame], bool]:
    """Whether a message in a queue of the system still waits."""
    if name == TIMER_TOPIC:
        return lambda frame: _is_to_come(context, frame)
    if name == HALF_TOPIC:
        return lambda frame: context.store.transactions.outcome(frame.queue_offset) is Outcome.OPEN
    return lambda _frame: True


def _is_to_come(context: ServiceContext, frame: Frame) -> bool:
    offsets, due = np.array([frame.queue_offset], np.int64), np.array([int(frame.properties[TIMER_OUT])], np.int64)
    return bool(context.store.timers.progress.undelivered(offsets, due)[0])


async def _messages(context: ServiceContext, name: str, queue_id: int, offset: int, from_pos: int) -> AsyncIterator[Frame]:
    """The messages of a queue from ``offset`` on, and from a position of the log on, whose entries are checked: no checksum of a message
    holds its properties."""
    store = context.store
    queue = store.queues.get((name, queue_id))
    if queue is None:
        return
    first = await read_with_repair(context.raft, lambda: store.reader.offset_for_position(name, queue_id, from_pos))
    stored, offset, end = StoredMessages(context, name, queue_id, for_service=True), max(offset, first, queue.min_offset), queue.max_offset
    while offset < end:
        page = await stored.run(offset, max_messages=min(PAGE_MESSAGES, end - offset), max_bytes=PAGE_BYTES)
        if not page:
            return
        if not await stored.verify(range(offset, offset + len(page))):
            continue  # damage was mended, which may have been in a property
        for frame in page:
            yield frame
        offset += len(page)
