"""Reading all queues of a topic at once, also those that it gets meanwhile.

Owns one task a queue, and the task that looks for added queues.  A queue that was taken away from its topic is left; one of a topic that
was created again since is an added queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger_client.aio import PullConsumer
    from dledger_client.fetch.records import QueueOffsets, ReceivedMessage

Place = tuple[str, int]  # (replica group, queue id)
StartOf = Callable[[Mapping[Place, "QueueOffsets"]], Awaitable[Mapping[Place, int]]]

BATCH = 1000
AHEAD = 8  # answers that are read and not printed yet
LOOK_MS = 60_000  # one look for added queues waits that long
PAUSE_S = 1.0  # after a look that failed


@dataclass(frozen=True, slots=True)
class Answer:
    """Messages of a queue, or none that match.  ``at_end``: everything that it held was read."""

    queue: Place
    messages: list[ReceivedMessage]
    at_end: bool = False


class QueueReaders:
    """Reads queues of a topic until closed; ``next`` gives the answers in the order they come.

    ``topic``, ``tags``, ``sql``: what to read.  ``wait_ms``: how long a queue without messages is waited at.
    """

    def __init__(self, consumer: PullConsumer, topic: str, *, tags: str, sql: str, wait_ms: int) -> None:
        self._consumer, self._topic, self._tags, self._sql, self._wait_ms = consumer, topic, tags, sql, wait_ms
        self._answers: asyncio.Queue[Answer] = asyncio.Queue(AHEAD)
        self._readers: dict[Place, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def queues(self) -> set[Place]:
        """The queues that are read."""
        return set(self._readers)

    def read(self, positions: Mapping[Place, int]) -> None:
        """Read these queues from these offsets on."""
        for queue, offset in positions.items():
            self._readers[queue] = self._spawn(self._read(queue, offset), f"{self._topic}/{queue[0]}:{queue[1]}")

    def follow(self, start_of: StartOf) -> None:
        """Look for queues that the topic gets, and read them, too.  ``start_of`` gives their first offsets."""
        self._watch = self._spawn(self._read_added(start_of), f"added queues of {self._topic}")

    async def next(self) -> Answer:
        """The next answer of any queue.  Raises what a reader failed with."""
        getting = asyncio.ensure_future(self._answers.get())
        try:
            either: list[asyncio.Future[Any]] = [getting, self._failed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                self._failed.result()
            return getting.result()
        finally:
            getting.cancel()

    async def close(self) -> None:
        tasks = [*self._readers.values(), *([self._watch] if self._watch is not None else [])]
        self._failed.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._failed.done() and (error := task.exception()) is not None:
            self._failed.set_exception(error)

    async def _read(self, queue: Place, offset: int) -> None:
        """Read one queue until cancelled.  With a filter, chunks without messages still advance the offset."""
        from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError

        try:
            await self._read_on(queue, offset)
        except (InvalidArgumentError, TopicNotFoundError) as error:
            is_added_again = isinstance(error, TopicNotFoundError) and self._watch is not None
            if await self._has(queue) and not is_added_again:
                raise
            del self._readers[queue]

    async def _read_on(self, queue: Place, offset: int) -> None:
        group, queue_id = queue
        how: dict[str, Any] = {"replica_group": group, "wait_ms": self._wait_ms, "tags": self._tags, "sql": self._sql}
        topic_epoch = ""
        while True:
            found = False
            chunks = await self._consumer.fetch_chunks(
                self._topic, queue_id, offset, BATCH, topic_epoch=topic_epoch if offset else "", **how
            )
            for chunk in chunks:
                offset, topic_epoch = chunk.next_offset, chunk.topic_epoch
                if messages := self._consumer.with_tags(chunk, self._tags):
                    found = True
                    await self._answers.put(Answer(queue, messages))
            if not found:  # what a filter leaves out is nothing new, also while it keeps coming
                await self._answers.put(Answer(queue, [], at_end=not chunks or offset >= chunks[-1].max_offset))

    async def _has(self, queue: Place) -> bool:
        """Whether the topic, which exists, has a queue.  TopicNotFoundError when it does not exist."""
        group, queue_id = queue
        return any(part.replica_group == group and queue_id < part.read_queues for part in await self._consumer.topic(self._topic))

    async def _read_added(self, start_of: StartOf) -> None:
        from dledger_wire.errors import DledgerError, TopicNotFoundError

        while True:
            try:
                found = await self._consumer.new_queues(self._topic, self._readers.keys(), wait_ms=LOOK_MS)
                self.read(await start_of(found))
                continue
            except TopicNotFoundError:
                if not self._readers:  # else those of its queues report
                    raise
            except DledgerError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(PAUSE_S)
