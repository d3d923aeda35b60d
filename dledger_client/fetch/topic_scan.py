"""What a topic holds, from several queues at once.

Owns which parts of the queues are read, and how far ahead of the caller.  ``long_read.py`` reads one queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from dledger_client.fetch.records import Chunk, QueueOffsets
from dledger_client.runtime.argument_ranges import MAX_OFFSET, within
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError

MAX_QUEUES_AT_ONCE = 64
Queue = tuple[str, int]  # replica group, queue id


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a queue."""

    replica_group: str
    queue_id: int
    start: int
    end: int
    topic_epoch: str


def spans(topic: str, held: Mapping[Queue, QueueOffsets], positions: Mapping[Queue, int], *, by_time: bool) -> list[Span]:
    """From its position, or where ``by_time`` its first message at that time, or its oldest message, to the end of each queue.

    InvalidArgumentError for positions of other queues, OffsetOutOfRangeError for one behind a queue's end.
    """
    if not isinstance(positions, Mapping):
        raise InvalidArgumentError(f"positions {positions!r}: expected offsets by (replica group, queue id)")
    for queue, offset in positions.items():
        if queue not in held:
            raise InvalidArgumentError(f"positions: {queue!r} is no queue of {topic}; expected (replica group, queue id) as in offsets()")
        within(0, MAX_OFFSET, offset=offset)
        if offset > (end := held[queue].max_offset):
            text = f"{topic}/{queue[1]} in {queue[0]}: position {offset} is behind the end, {end}"
            raise OffsetOutOfRangeError(text, min_offset=held[queue].min_offset, max_offset=end)
    return [
        Span(*queue, positions.get(queue, _first(offsets, by_time=by_time)), offsets.max_offset, offsets.topic_epoch)
        for queue, offsets in sorted(held.items(), key=lambda item: item[0][::-1])  # in turn from each replica group
    ]


def _first(held: QueueOffsets, *, by_time: bool) -> int:
    if not by_time:
        return held.min_offset
    return held.at_time if held.at_time >= 0 else held.max_offset


class TopicScan:
    """Reads ``parts`` of ``topic`` by ``read``, ``at_once`` of them side by side; as many chunks at most wait for the caller."""

    def __init__(self, topic: str, parts: Sequence[Span], read: Callable[[Span], AsyncGenerator[Chunk]], at_once: int) -> None:
        within(1, MAX_QUEUES_AT_ONCE, queues_at_once=at_once)
        self._topic, self._parts, self._read = topic, deque(parts), read
        self._ready: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue(at_once)
        self._at_once = min(at_once, len(parts))

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """In the order of each queue, and one at least of each queue; the last one may be empty."""
        readers = [asyncio.create_task(self._read_on(), name="topic scan") for _ in range(self._at_once)]
        running = len(readers)
        try:
            while running:
                found = await self._ready.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    running -= 1
                else:
                    yield found
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read_on(self) -> None:
        """Read one part after the other; None behind the last one, or the error that ended it."""
        try:
            while self._parts:
                await self._read_part(self._parts.popleft())
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised to the caller that takes the chunks
            await self._ready.put(error)
        else:
            await self._ready.put(None)

    async def _read_part(self, part: Span) -> None:
        at = -1
        async with aclosing(self._read(part)) as chunks:
            async for chunk in chunks:
                await self._ready.put(chunk)
                at = chunk.next_offset
        if at < part.end:  # nothing was there, or a filter left out the rest: the caller gets its position all the same
            none = np.zeros(0, np.int64)
            await self._ready.put(Chunk(self._topic, part.replica_group, part.queue_id, "", none, none, b"", part.end, part.end))
