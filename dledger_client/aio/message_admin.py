"""Messages found by key, id, time or offset, read and traced.

Owns the consumer that reads for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from dledger_client.admin import topics
from dledger_client.admin.calls import Subject
from dledger_client.admin.message_query import MAX_PAGE, QueryResult, Replicas, query_by_id, query_by_key
from dledger_client.admin.message_trace import Trace, trace
from dledger_client.admin.stored_times import Place, stored_times
from dledger_client.aio.consumer import PullConsumer
from dledger_client.fetch.options import FetchOptions
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.environment import ClientEnvironment
from dledger_wire.errors import InvalidArgumentError


class MessageAdmin(Subject):
    """Looking at messages; use ``Admin``."""

    _environment: ClientEnvironment
    _bootstrap: str
    _read_from: str
    _replicas: Replicas
    _reader: PullConsumer | None

    async def query_by_key(self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 0, max_messages: int = 32) -> QueryResult:
        """Find the newest messages of a topic that have a key, newest first.

        Args:
            topic: The topic.
            key: One of the messages' keys.
            begin_ms: Stored at or after, milliseconds since 1970; 0 for no bound.
            end_ms: Stored at or before, milliseconds since 1970; 0 for no bound.
            max_messages: How many to return.

        Raises:
            InvalidArgumentError: The key is empty or has spaces.
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> found = await admin.query_by_key("orders", "o-1")
        """
        within(0, MAX_OFFSET, begin_ms=begin_ms, end_ms=end_ms)
        within(1, MAX_U32, max_messages=max_messages)
        return await query_by_key(self._replicas, topic, key, begin_ms, end_ms, max_messages, self._calls.deadline_ms())

    async def query_by_id(self, msg_id: str, topic: str = "", *, max_messages: int = 32) -> QueryResult:
        """Find messages by id.

        Args:
            msg_id: The id that the producer gave, or the one of the message's position in the log.
            topic: Only messages of this topic; empty for all topics, internal ones as well.
            max_messages: How many to return.

        Raises:
            InvalidArgumentError: The id is empty.

        Examples:
            >>> found = await admin.query_by_id(result.msg_id)
        """
        within(1, MAX_U32, max_messages=max_messages)
        return await query_by_id(self._replicas, msg_id, topic, max_messages, self._calls.deadline_ms())

    async def query_by_time(self, topic: str, begin_ms: int, end_ms: int = 0, *, max_messages: int = 32) -> QueryResult:
        """Find the first messages of a topic that were stored in a span of time, oldest first.

        Args:
            topic: The topic.
            begin_ms: Stored at or after, milliseconds since 1970.
            end_ms: Stored at or before, milliseconds since 1970; 0 for now.
            max_messages: How many to return.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> found = await admin.query_by_time("orders", 1767225600000, max_messages=5)
        """
        within(0, MAX_OFFSET, begin_ms=begin_ms, end_ms=end_ms)
        within(1, MAX_U32, max_messages=max_messages)
        queues = await topics.queue_ranges(self._calls, topic, begin_ms, only_readable=True, partial=True)
        found: list[ReceivedMessage] = []
        for held in queues:
            offset, left = held.at_time, max_messages
            while left > 0 and offset < held.max_offset:
                messages = await self._consumer().fetch(topic, held.queue_id, offset, min(left, MAX_PAGE), replica_group=held.replica_group)
                inside = [message for message in messages if not end_ms or message.store_timestamp <= end_ms]
                found += inside
                left -= len(inside)
                if not messages or len(inside) < len(messages):
                    break
                offset = messages[-1].queue_offset + 1
        found.sort(key=lambda message: (message.store_timestamp, message.replica_group, message.physical_offset))
        return QueryResult(found[:max_messages], not queues.unanswered, queues.unanswered)

    async def query_by_offset(self, topic: str, queue_id: int, offset: int, *, replica_group: str | None = None) -> ReceivedMessage | None:
        """The message at an offset of a queue; None when the queue has not reached that offset.

        Args:
            topic: The topic.
            queue_id: The queue's number.
            offset: The offset in that queue.
            replica_group: The replica group that stores the queue.  Default: the first one that has a queue of that number.

        Raises:
            OffsetOutOfRangeError: The message has expired.
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> message = await admin.query_by_offset("orders", 0, 17)
        """
        found = await self._consumer().fetch(topic, queue_id, offset, 1, replica_group=replica_group)
        return found[0] if found else None

    async def fetch_chunks(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, **options: Unpack[FetchOptions]
    ) -> list[Chunk]:
        """Read a queue from an offset on, without a consumer group: chunks of messages; the last one's ``next_offset`` is where to read on.

        Args:
            topic: The topic.
            queue_id: The queue's number.
            offset: The first offset to read.
            max_messages: How many to return.
            options: See ``FetchOptions``.

        Raises:
            OffsetOutOfRangeError: The queue does not hold the offset.
            TopicNotFoundError: The topic does not exist.
            TopicPermissionError: The topic cannot be read.
            InvalidArgumentError: The filter has a mistake.
            TypeError: An option is unknown.

        Examples:
            >>> bodies = [message.body for chunk in await admin.fetch_chunks("orders", 0, 17) for message in chunk.messages()]
        """
        return await self._consumer().fetch_chunks(topic, queue_id, offset, max_messages, **options)

    async def stored_times(self, places: Iterable[Place]) -> dict[Place, int]:
        """When messages were stored, milliseconds since 1970, with a call to each replica group; what is not known is left out.

        Args:
            places: (topic, replica group, queue, offset) of each.  For an expired message the oldest stored one of its queue answers.

        Examples:
            >>> place = ("orders", "g0", 0, 17)
            >>> at_ms = (await admin.stored_times([place])).get(place)
        """
        return await stored_times(self._calls, places)

    async def trace(self, *, topic: str = "", key: str = "", msg_id: str = "", max_messages: int = 32) -> Trace:
        """Where messages are stored, which consumer groups have passed them and when, and their retries and dead letters.

        Args:
            topic: The topic; needed with ``key``.
            key: One of the messages' keys.
            msg_id: The id of a message, in place of ``key``.
            max_messages: How many messages to trace.

        Raises:
            InvalidArgumentError: Not exactly one of ``key`` and ``msg_id`` was given, or ``key`` without a topic.

        Examples:
            >>> for copy in (await admin.trace(topic="orders", key="o-1")).copies:
            ...     print(copy.kind, copy.message.topic)
        """
        if bool(key) == bool(msg_id) or (key and not topic):
            raise InvalidArgumentError("expected a topic and a key, or a message id")
        within(1, MAX_U32, max_messages=max_messages)
        return await trace(self._replicas, topic, key, msg_id, max_messages, self._calls.deadline_ms())

    def _consumer(self) -> PullConsumer:
        """What reads messages for this client; without a consumer group."""
        if self._reader is None:
            with self._environment.in_use():
                self._reader = PullConsumer(self._bootstrap, read_from=self._read_from, timeout_ms=self._calls.timeout_ms)
            self._reader._is_wrapped = True  # left open, it is this client that was
            self._reader._is_uncounted = True
        return self._reader
