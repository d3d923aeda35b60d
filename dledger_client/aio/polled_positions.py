"""The part of ``Consumer`` for its positions: where it reads in each of its queues, how far behind that is, and queues that rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger_client.cluster.router import Router
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.polled_queues import Polling
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.topic_offsets import NO_TIME, TopicOffsets
from dledger_client.fetch.records import QueueOffsets
from dledger_client.runtime.argument_ranges import FIRST_TIME_MS, MAX_OFFSET, within
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError


class PolledPositions:
    """Where a polled consumer reads; use ``Consumer``."""

    _router: Router
    _polling: Polling
    _engine: Rebalancer | None
    _timeout_ms: int

    def position(self, queue: MessageQueue) -> int:
        """The offset of the message that comes next.

        Args:
            queue: A queue of ``assigned()``.

        Returns:
            The offset.

        Raises:
            InvalidArgumentError: The queue is not assigned to this consumer.

        Examples:
            >>> positions = {queue: consumer.position(queue) for queue in consumer.assigned()}
        """
        return self._polling.of(queue).given_to

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages are in each assigned queue behind the position.

        Returns:
            Messages that this consumer has not returned yet, by queue.

        Raises:
            UnreachableError: A replica group did not respond within ``timeout_ms``.

        Examples:
            >>> total = sum((await consumer.lag()).values())
        """
        ends = await self._held(self._queues(()), NO_TIME)
        queues = self._polling.queues
        return {queue: max(0, held.max_offset - queues[queue].given_to) for queue, held in ends.items() if queue in queues}

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read on from another offset. To be called between two polls, in the loop, or in ``on_assigned``.

        With auto-commit, messages that a seek passes over count as consumed. A seek back gives messages again; the committed offset of
        the group stays where it is until it is passed (``Admin.reset_offsets`` moves a group back).

        Args:
            queue: A queue of ``assigned()``.
            offset: The offset of the message that comes next.

        Raises:
            InvalidArgumentError: The queue is not assigned to this consumer.
            OffsetOutOfRangeError: The queue does not hold the offset; ``min_offset`` and ``max_offset`` say what it holds.
            UnreachableError: The replica group did not respond within ``timeout_ms``.

        Examples:
            >>> await consumer.seek(consumer.assigned()[0], 1_000)
        """
        within(0, MAX_OFFSET, offset=offset)
        (held,) = (await self._held(self._queues((queue,)), NO_TIME)).values()
        if not held.min_offset <= offset <= held.max_offset:
            text = f"{queue}: offset {offset} is outside {held.min_offset} to {held.max_offset}"
            raise OffsetOutOfRangeError(text, min_offset=held.min_offset, max_offset=held.max_offset)
        self._move(queue, offset)

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Read on from the first message that was stored at or after a time; from the end where there is none.

        Args:
            timestamp_ms: Milliseconds since 1970.
            queues: Queues of ``assigned()``; none: all of them.

        Raises:
            InvalidArgumentError: A queue is not assigned to this consumer, or the time is no time.
            UnreachableError: A replica group did not respond within ``timeout_ms``.

        Examples:
            >>> await consumer.seek_to_time(1_760_000_000_000)
        """
        within(FIRST_TIME_MS, MAX_OFFSET, timestamp_ms=timestamp_ms)
        await self._seek(queues, timestamp_ms, lambda held: held.at_time if held.at_time >= 0 else held.max_offset)

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Read on from the oldest message that there is.

        Args:
            queues: Queues of ``assigned()``; none: all of them.

        Raises:
            InvalidArgumentError: A queue is not assigned to this consumer.
            UnreachableError: A replica group did not respond within ``timeout_ms``.

        Examples:
            >>> await consumer.seek_to_beginning()
        """
        await self._seek(queues, NO_TIME, lambda held: held.min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Read on behind the newest message.

        Args:
            queues: Queues of ``assigned()``; none: all of them.

        Raises:
            InvalidArgumentError: A queue is not assigned to this consumer.
            UnreachableError: A replica group did not respond within ``timeout_ms``.

        Examples:
            >>> await consumer.seek_to_end()
        """
        await self._seek(queues, NO_TIME, lambda held: held.max_offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Return no message of these queues, which stay assigned. A queue that goes and comes back is not paused any more.

        Args:
            queues: Queues of ``assigned()``; none: all of them.

        Raises:
            InvalidArgumentError: A queue is not assigned to this consumer.

        Examples:
            >>> consumer.pause(*consumer.assigned())
        """
        self._polling.pause([self._polling.of(queue) for queue in self._queues(queues)], is_paused=True)

    def resume(self, *queues: MessageQueue) -> None:
        """Return messages of paused queues again.

        Args:
            queues: Queues of ``assigned()``; none: all of them.

        Raises:
            InvalidArgumentError: A queue is not assigned to this consumer.

        Examples:
            >>> consumer.resume()
        """
        self._polling.pause([self._polling.of(queue) for queue in self._queues(queues)], is_paused=False)

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused.

        Returns:
            The queues, sorted.

        Examples:
            >>> print(consumer.paused())
        """
        return sorted(queue for queue, polled in self._polling.queues.items() if polled.is_paused)

    def _queues(self, queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        for queue in queues:
            self._polling.of(queue)
        return list(queues or self._polling.queues)

    async def _held(self, queues: list[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, QueueOffsets]:
        """What the queues hold, asked of all their topics at once."""
        offsets, topics = TopicOffsets(self._router, None, self._timeout_ms), sorted({queue.topic for queue in queues})
        answers = await asyncio.gather(*(offsets.held(topic, timestamp_ms, or_followers=False, partial=False) for topic in topics))
        held = dict(zip(topics, answers, strict=True))
        found = {queue: held[queue.topic].get((queue.replica_group, queue.queue_id)) for queue in queues}
        return {queue: each for queue, each in found.items() if each is not None}

    async def _seek(self, queues: tuple[MessageQueue, ...], timestamp_ms: int, choose: Callable[[QueueOffsets], int]) -> None:
        for queue, held in (await self._held(self._queues(queues), timestamp_ms)).items():
            self._move(queue, choose(held))

    def _move(self, queue: MessageQueue, offset: int) -> None:
        polled = self._polling.of(queue)  # it may have gone meanwhile
        if self._engine is None:
            raise InvalidArgumentError("the consumer is not started")
        polled.seek(offset)
        self._engine.fetch_from(queue, offset)
