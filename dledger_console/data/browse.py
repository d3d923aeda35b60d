"""Messages of a topic in pages, over all of its queues or one: newest first, or from an offset or a time on.

Owns the merge: rows of several queues in the order they were stored, without a gap, and where the next page begins.  Messages are read at
followers; only the ends of the queues are asked of the leaders, or of followers while there is none.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger_client.aio import Admin, DledgerError, OffsetOutOfRangeError, QueueRange
from dledger_console.data.rows import MessageRow, Queue, row_of
from dledger_wire.errors import NotYetError, TopicNotFoundError, TopicPermissionError

PAGE_ROWS = 50
MAX_ROWS = 500
FETCH_BYTES = 1 << 20  # of one answer; a page needs the start of each body only
PAGE_BYTES = 32 << 20  # of all bodies that are read for a page; then it ends early
FIRST_ROWS = 8  # as many are read backwards before the size of a queue's messages is known
FETCHES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Start:
    """Where a page begins.

    Attributes:
        positions: By queue: newest first, the offset behind the first row; otherwise the offset of the first row.
        newest_first: The direction.
        unanswered: The replica groups that did not say what their queues hold, so that these are not among the positions, and why.
    """

    positions: Mapping[Queue, int]
    newest_first: bool
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)

    def positions_of(self, silent: Container[str], held: Container[Queue]) -> dict[Queue, int]:
        """Of queues in replica groups that are silent now: a later page goes on there."""
        return {queue: at for queue, at in self.positions.items() if queue not in held and queue[0] in silent}


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Rows in the order they were stored, or in the opposite one.

    Attributes:
        rows: The messages.
        next: Where the next page begins; None at the end.
        replicas: The nodes that were read from.
        notes: What is missing and why, for people: expired messages, queues that could not be read.
        unanswered: The replica groups that did not answer, and why.
    """

    rows: Sequence[MessageRow]
    next: Start | None
    replicas: Sequence[str] = ()
    notes: Sequence[str] = ()
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)


async def newest(admin: Admin, topic: str, queue: Queue | None = None) -> Start:
    """The end of a topic, or of one of its queues, backwards."""
    held, unanswered = await _held(admin, topic)
    return Start({place: each.max_offset for place, each in _chosen(held, topic, queue).items()}, True, unanswered)


async def oldest(admin: Admin, topic: str, queue: Queue | None = None) -> Start:
    """The oldest stored messages of a topic, or of one of its queues."""
    held, unanswered = await _held(admin, topic)
    return Start({place: each.min_offset for place, each in _chosen(held, topic, queue).items()}, False, unanswered)


async def at_time(admin: Admin, topic: str, time_ms: int, queue: Queue | None = None) -> Start:
    """The first messages stored at or after a time, milliseconds since 1970."""
    found = await admin.topic_offsets(topic, timestamp_ms=time_ms, partial=True)
    places = {(each.replica_group, each.queue_id): each for each in found}
    return Start({place: each.at_time for place, each in _chosen(places, topic, queue).items()}, False, found.unanswered)


def at_offset(queue: Queue, offset: int) -> Start:
    """One queue from an offset on."""
    return Start({queue: offset}, False)


async def page(admin: Admin, topic: str, start: Start, *, rows: int = PAGE_ROWS) -> MessagePage:
    """Up to ``rows`` messages from ``start`` on.  Raises when no queue can be read."""
    rows = max(1, min(rows, MAX_ROWS))
    held, unanswered = await _held(admin, topic)
    budget = _Budget(PAGE_BYTES)
    readers = [
        _Reader(admin, topic, held[place], at, budget, newest_first=start.newest_first)
        for place, at in start.positions.items()
        if place in held
    ]
    silent = start.positions_of(unanswered, held)
    if silent and not readers:
        raise next(iter(unanswered.values()))
    share = rows if len(readers) <= FETCHES_AT_ONCE else max(4, 2 * rows // len(readers))
    await _all(readers, share, budget)
    failed = [reader for reader in readers if reader.error is not None]
    if failed and len(failed) == len(readers):
        raise failed[0].error or AssertionError
    found = await _merged(readers, rows, budget, newest_first=start.newest_first)
    following = {**silent, **{reader.place: reader.next for reader in readers}}
    ended = not silent and all(reader.at_end for reader in readers)
    notes = [note for reader in readers for note in reader.notes]
    if len(found) < rows and budget.is_spent and not ended:
        notes.append("the page ends early: its messages are large")
    replicas = sorted({row.replica for row in found})
    next_start = None if ended else Start(following, start.newest_first, start.unanswered)
    return MessagePage(found, next_start, replicas, notes, {**start.unanswered, **unanswered})


class _Budget:
    """How many bytes of bodies may still be read for a page."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be read."""
        return self._left <= 0

    def spend(self, size_bytes: int) -> None:
        """So many were read."""
        self._left -= size_bytes


class _Reader:
    """One queue: rows that were read and not taken yet, and where the rest begins."""

    def __init__(self, admin: Admin, topic: str, held: QueueRange, at: int, budget: _Budget, *, newest_first: bool) -> None:
        self._admin, self._topic, self._held, self._backwards = admin, topic, held, newest_first
        self._budget = budget
        self.place: Queue = (held.replica_group, held.queue_id)
        self.next = min(at, held.max_offset)  # of what was not taken yet: its first offset, or backwards the one behind it
        self._unread = self.next
        self.rows: deque[MessageRow] = deque()
        self.notes: list[str] = []
        self.error: DledgerError | None = None
        if not newest_first and at < held.min_offset:
            self._skip(held.min_offset)

    @property
    def is_read(self) -> bool:
        """Whether there is nothing more to read."""
        return self.error is not None or (
            self._unread <= self._held.min_offset if self._backwards else self._unread >= self._held.max_offset
        )

    @property
    def at_end(self) -> bool:
        """Whether everything was taken."""
        return not self.rows and self.is_read and self.error is None

    def take(self) -> MessageRow:
        """The next row."""
        row = self.rows.popleft()
        self.next = row.offset if self._backwards else row.offset + 1
        return row

    async def fill(self, count: int) -> None:
        """Read up to ``count`` rows more; fewer, and at least one, when the page's budget ends."""
        try:
            if self._backwards:
                await self._fill_backwards(count)
            else:
                await self._fill(count)
        except DledgerError as error:
            self.error = error
            self.notes.append(f"queue {self.place[1]} of {self.place[0]}: {error.message}")

    async def _fill(self, count: int) -> None:
        try:
            found = await self._read(self._unread, count)
        except OffsetOutOfRangeError as error:
            if error.detail_int("min_offset", 0) <= self._unread:
                raise
            self._skip(error.detail_int("min_offset", 0))
            found = await self._read(self._unread, count)
        self.rows.extend(found)
        if found:
            self._unread = found[-1].offset + 1
        elif self._unread < self._held.max_offset:
            raise NotYetError(f"the replica that was read has nothing at offset {self._unread} yet")

    async def _fill_backwards(self, count: int) -> None:
        """In steps, since a step that was begun has to be read whole: its last rows come first."""
        wanted = len(self.rows) + count
        step = min(count, FIRST_ROWS)
        while len(self.rows) < wanted and not self.is_read and not (self.rows and self._budget.is_spent):
            found = await self._step_back(min(step, wanted - len(self.rows)))
            self.rows.extend(reversed(found))
            largest = max((row.size_bytes for row in found), default=0)
            step = max(1, min(count, FETCH_BYTES // max(1, largest)))

    async def _step_back(self, count: int) -> list[MessageRow]:
        """The ``count`` rows in front of what was read, in the order of the queue."""
        first, end = max(self._held.min_offset, self._unread - count), self._unread
        found: list[MessageRow] = []
        at = first
        while at < end:
            try:
                part = await self._read(at, end - at)
            except OffsetOutOfRangeError as error:
                low = error.detail_int("min_offset", 0)
                if not at < low < end:
                    raise
                self._skip(low)
                at = first = low
                continue
            if not part:
                raise NotYetError(f"the replica that was read has nothing at offset {at} yet")
            found += part
            at = part[-1].offset + 1
        self._unread = first
        return [row for row in found if row.offset < end]

    async def _read(self, offset: int, count: int) -> list[MessageRow]:
        chunks = await self._admin.fetch_chunks(
            self._topic, self.place[1], offset, count, replica_group=self.place[0], max_bytes=FETCH_BYTES
        )
        found = [row_of(message) for chunk in chunks if chunk.count for message in chunk.messages()]
        self._budget.spend(sum(row.size_bytes for row in found))
        return found

    def _skip(self, low: int) -> None:
        """The queue begins at ``low`` by now."""
        if not self._backwards:
            self.notes.append(f"queue {self.place[1]} of {self.place[0]}: offsets {self.next} to {low - 1} have expired")
            self.next = self._unread = low
        self._held = QueueRange(*self.place, low, max(low, self._held.max_offset), self._held.at_time)


async def _all(readers: Iterable[_Reader], count: int, budget: _Budget) -> None:
    """Fill all, some at a time; one row of each is needed to know which one comes first."""
    turns = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def fill(reader: _Reader) -> None:
        async with turns:
            if not reader.is_read:
                await reader.fill(1 if budget.is_spent else count)

    await asyncio.gather(*map(fill, readers))


async def _merged(readers: Sequence[_Reader], count: int, budget: _Budget, *, newest_first: bool) -> list[MessageRow]:
    """Up to ``count`` rows in the order they were stored; a queue that runs dry is read on before the others are taken from.

    Rows of the same millisecond come in the order of their queues, backwards in the opposite one: pages of both directions agree.
    """
    sign = -1 if newest_first else 1
    found: list[MessageRow] = []
    in_turn = sorted(readers, key=lambda reader: reader.place)
    heads = [(sign * reader.rows[0].stored_ms, sign * number) for number, reader in enumerate(in_turn) if reader.rows]
    heapq.heapify(heads)
    while heads and len(found) < count:
        number = sign * heapq.heappop(heads)[1]
        reader = in_turn[number]
        found.append(reader.take())
        if not reader.rows and not reader.is_read and len(found) < count and not budget.is_spent:
            await reader.fill(count - len(found))
        if reader.rows:
            heapq.heappush(heads, (sign * reader.rows[0].stored_ms, sign * number))
        elif not reader.at_end:
            break  # what follows in that queue may come before what others have
    return found


async def _held(admin: Admin, topic: str) -> tuple[dict[Queue, QueueRange], Mapping[str, DledgerError]]:
    """What the readable queues of a topic hold.  TopicNotFoundError, or TopicPermissionError when reading is not permitted."""
    found = (await admin.offsets_of_topics([topic], or_followers=True, partial=True))[topic]
    if not found and not found.unanswered:
        await admin.describe_topic(topic)  # raises when there is none
        raise TopicPermissionError(f"topic {topic}: reading is not permitted", topic=topic)
    return {(each.replica_group, each.queue_id): each for each in found}, found.unanswered


def _chosen(held: Mapping[Queue, QueueRange], topic: str, queue: Queue | None) -> Mapping[Queue, QueueRange]:
    if queue is None:
        return held
    if queue not in held:
        raise TopicNotFoundError(f"topic {topic} has no queue {queue[1]} in replica group {queue[0]}", topic=topic)
    return {queue: held[queue]}
