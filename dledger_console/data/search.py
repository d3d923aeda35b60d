"""Finding messages: by key, by id, by a filter of SQL92 or tags; each bounded in rows and in time.

Owns how far a filter reads at once: it has to look at every message, so a page says how far it came and where to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger_client.aio import Admin, DledgerError, OffsetOutOfRangeError, PullConsumer, QueryResult
from dledger_console.data.browse import PAGE_ROWS, Start
from dledger_console.data.rows import MessageRow, Queue, row_of

FILTER_S = 4.0  # how long one page of a filter may read
FILTER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        rows: The messages.
        complete: False: there may be more, e.g. while an index is still being built.
        unanswered: The replica groups that did not answer, and why.
        next: Where a filter goes on reading; None when it has read everything.
        read: How many messages a filter has looked at for this page.
    """

    rows: Sequence[MessageRow]
    complete: bool = True
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)
    next: Start | None = None
    read: int = 0


async def by_key(admin: Admin, topic: str, key: str, *, rows: int = PAGE_ROWS) -> Found:
    """The newest messages of a topic with a key."""
    return _found(await admin.query_by_key(topic, key.strip(), max_messages=rows))


async def by_id(admin: Admin, msg_id: str, topic: str = "", *, rows: int = PAGE_ROWS) -> Found:
    """Messages with an id, of a topic or of all."""
    return _found(await admin.query_by_id(msg_id.strip(), topic, max_messages=rows))


async def by_filter(
    admin: Admin,
    topic: str,
    start: Start,
    *,
    sql: str = "",
    tags: str = "*",
    rows: int = PAGE_ROWS,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Messages that match, from ``start`` on, queue after queue.  ``start`` goes forwards.

    Raises InvalidArgumentError for a mistake in ``sql``."""
    ends = (await admin.offsets_of_topics([topic], or_followers=True, partial=True))[topic]
    end_of = {(each.replica_group, each.queue_id): each.max_offset for each in ends}
    until_s, positions = clock() + FILTER_S, dict(start.positions)
    found: list[MessageRow] = []
    read = 0
    for queue in sorted(positions):
        while positions[queue] < end_of.get(queue, 0) and len(found) < rows and clock() < until_s:
            before = positions[queue]
            matching, positions[queue] = await _step(admin, topic, queue, before, rows - len(found), sql=sql, tags=tags)
            found += matching
            read += max(0, positions[queue] - before)
            if positions[queue] <= before:
                break  # the replica has no more yet
    left = {queue: at for queue, at in positions.items() if at < end_of.get(queue, 0)} | start.positions_of(ends.unanswered, end_of)
    found.sort(key=lambda row: (row.stored_ms, row.queue, row.offset))
    unanswered = {**start.unanswered, **ends.unanswered}
    return Found(found, not left and not unanswered, unanswered, Start(left, False, start.unanswered) if left else None, read)


async def _step(admin: Admin, topic: str, queue: Queue, offset: int, count: int, *, sql: str, tags: str) -> tuple[list[MessageRow], int]:
    """The matching messages of one answer, and the offset behind it."""
    try:
        chunks = await admin.fetch_chunks(
            topic, queue[1], offset, count, replica_group=queue[0], max_bytes=FILTER_BYTES, sql=sql, tags=tags
        )
    except OffsetOutOfRangeError as error:
        low = error.detail_int("min_offset", 0)
        if low <= offset:
            raise
        return [], low  # what was in front of it has expired
    found = [row_of(message) for chunk in chunks for message in PullConsumer.with_tags(chunk, tags)]
    return found, max((chunk.next_offset for chunk in chunks), default=offset)


def _found(result: QueryResult) -> Found:
    return Found([row_of(message) for message in result.messages], result.complete, result.unanswered)
