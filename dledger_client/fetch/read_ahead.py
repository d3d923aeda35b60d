"""Fetches that are sent before they are asked for, for callers that read a queue piece by piece.

Owns when that is worth it, and what was fetched ahead and not asked for yet.  Such a caller and the replica wait for each other: one works
on a piece while the other could send the next.  So from the second piece on, if it was large and there is more, the one behind it is
fetched meanwhile.  Only the very request that was expected gets it; it is dropped after ``MAX_AGE_S``, and what fails ahead is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dledger_client.fetch.records import Chunk
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError

LEAST_BYTES = 64 << 10  # of a piece: a smaller one is fetched in no time
MOST_BYTES = 32 << 20  # that may be fetched ahead at a time, over all queues of a consumer
MAX_AGE_S = 1.0
QUEUES = 64  # whose last piece is remembered

Read = Callable[[str, broker_pb2.FetchRequest], Coroutine[Any, Any, list[Chunk]]]
Queue = tuple[str, str, int]


@dataclass(slots=True)
class _Next:
    """What is asked of a queue by a caller that reads on, and the fetch of that if it is under way."""

    request: bytes
    bytes_ahead: int = 0
    fetch: asyncio.Task[list[Chunk]] | None = None
    dropping: asyncio.TimerHandle | None = None


class ReadAhead:
    """The fetches of one consumer, by ``read`` of a replica group and a request.  Unless it ``is_on`` nothing is fetched ahead."""

    def __init__(self, read: Read, *, is_on: bool) -> None:
        self._read = read
        self._is_on = is_on
        self._next: dict[Queue, _Next] = {}  # oldest first
        self._bytes_ahead = 0

    async def read(self, replica_group: str, request: broker_pb2.FetchRequest) -> list[Chunk]:
        """What ``request`` asks for, fetched now or before."""
        if request.linearizable or not self._is_on:
            return await self._read(replica_group, request)
        queue = (replica_group, request.topic, request.queue_id)
        expected = self._take(queue)
        reads_on = expected is not None and expected.request == request.SerializeToString()
        fetch = expected.fetch if expected is not None else None
        if fetch is not None and not reads_on:
            fetch.cancel()
        chunks = await _outcome(fetch, request.offset) if fetch is not None and reads_on else None
        if chunks is None:
            chunks = await self._read(replica_group, request)
        self._expect(queue, request, chunks, reads_on=reads_on)
        return chunks

    async def close(self) -> None:
        """Drop everything that was fetched ahead."""
        fetches = [expected.fetch for expected in self._next.values() if expected.fetch is not None]
        for queue in list(self._next):
            self._drop(queue)
        await asyncio.gather(*fetches, return_exceptions=True)

    def _take(self, queue: Queue) -> _Next | None:
        expected = self._next.pop(queue, None)
        if expected is not None:
            self._bytes_ahead -= expected.bytes_ahead
            if expected.dropping is not None:
                expected.dropping.cancel()
        return expected

    def _drop(self, queue: Queue) -> None:
        expected = self._take(queue)
        if expected is not None and expected.fetch is not None:
            expected.fetch.cancel()

    def _expect(self, queue: Queue, request: broker_pb2.FetchRequest, chunks: list[Chunk], *, reads_on: bool) -> None:
        """Remember what a caller that reads on asks next; fetch it if this one does, and was given much."""
        if not chunks or chunks[-1].next_offset >= chunks[-1].max_offset:
            return
        following = broker_pb2.FetchRequest()
        following.CopyFrom(request)
        following.offset = chunks[-1].next_offset
        expected = _Next(following.SerializeToString())
        if reads_on and sum(len(chunk.frames) for chunk in chunks) >= LEAST_BYTES and self._bytes_ahead + request.max_bytes <= MOST_BYTES:
            loop = asyncio.get_running_loop()
            expected.fetch = loop.create_task(self._read(queue[0], following), name="fetch ahead")
            expected.fetch.add_done_callback(_note)
            expected.dropping = loop.call_later(MAX_AGE_S, self._drop, queue)
            expected.bytes_ahead = request.max_bytes
            self._bytes_ahead += request.max_bytes
        self._drop(queue)  # of another caller, which read this queue meanwhile
        self._next[queue] = expected
        if len(self._next) > QUEUES:
            self._drop(next(iter(self._next)))


async def _outcome(fetch: asyncio.Task[list[Chunk]], offset: int) -> list[Chunk] | None:
    """What was fetched ahead from ``offset``; None when that failed or brought nothing, and has to be asked for now."""
    try:
        chunks = await fetch
    except DledgerError:
        return None
    return chunks if chunks and chunks[-1].next_offset > offset else None


def _note(fetch: asyncio.Task[list[Chunk]]) -> None:
    """An error that no caller asks for is dropped."""
    if not fetch.cancelled():
        fetch.exception()
