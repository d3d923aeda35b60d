"""The pull consumer for asyncio: reads queues by offset, from the leader or from followers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Unpack

from dledger_client import tracing
from dledger_client.aio.base import AsyncClient
from dledger_client.aio.group_positions import GroupPositions
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.cluster.missing_parts import find_parts
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.added_queues import AddedQueues
from dledger_client.consumer.position_epochs import PositionEpochs
from dledger_client.consumer.topic_offsets import NO_TIME, TopicOffsets
from dledger_client.fetch.arrow_types import ARROW_COLUMNS, ArrowTable, require_arrow
from dledger_client.fetch.fetch_metrics import FetchMetrics
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.local_log_reader import LocalLogReader
from dledger_client.fetch.long_read import LongRead
from dledger_client.fetch.options import (
    ARROW_BYTES,
    Fetch,
    FetchOptions,
    PullOptions,
    PullSettings,
    RangeOptions,
    RangeRead,
    ReadOptions,
    Scan,
    ScanOptions,
)
from dledger_client.fetch.read_ahead import ReadAhead
from dledger_client.fetch.records import Chunk, QueueOffsets, ReceivedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_client.fetch.topic_scan import Span, TopicScan, spans
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.environment import environment_for
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_topic


class PullConsumer(GroupPositions, AsyncClient):
    """Reads queues by offset.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the consumer group, for ``commit``, ``committed`` and ``send_back``.
        settings: See ``PullSettings``.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with PullConsumer("127.0.0.1:10911", group="billing", read_from="follower") as consumer:
        ...     for message in await consumer.fetch("orders", queue_id=0, offset=0, max_messages=100):
        ...         print(message.queue_offset, message.body)
    """

    def __init__(self, bootstrap: Bootstrap, group: str = "", **settings: Unpack[PullSettings]) -> None:
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        if not isinstance(group, str):
            raise InvalidArgumentError(f"group {group!r}: expected a consumer group's name")
        options, security = PullOptions.split(settings)
        timeout_ms, files = options.timeout_ms, LocalLogReader() if options.local_files else None
        self.group = group
        self._timeout_ms = timeout_ms
        self._router = environment_for(bootstrap, **security).open_router(bootstrap)
        self._is_uncounted = False  # a look of an operator, which is no traffic of the topic
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open
        self._offsets = TopicOffsets(self._router, options.replica, timeout_ms)
        self._added = AddedQueues(self._router, self._offsets.held_by_part(NO_TIME, or_followers=True))
        self._reads_followers = options.read_from != "leader" or options.replica is not None
        self._fetcher = Fetcher(self._router, options.read_from, options.replica, options.near, files=files, repair=options.repair)
        self._fetcher.metrics = FetchMetrics(group)
        self._epochs = epochs = PositionEpochs()
        fetcher, clock = self._fetcher, self._router.clock  # and not itself: a consumer that is forgotten is to go at once
        self._long_read = LongRead(self._router, fetcher, timeout_ms)

        def fetch(group: str, what: broker_pb2.FetchRequest) -> Coroutine[Any, Any, list[Chunk]]:
            return fetcher.read(group, epochs.named(group, what), clock.monotonic_ms() + timeout_ms)

        self._pieces = ReadAhead(fetch, is_on=options.read_ahead)

    @property
    def _description(self) -> str:
        """A name of this consumer, for people."""
        return f"{self.group!r} at {self._bootstrap}"

    @property
    def _is_left_open(self) -> bool:
        return self._router.channels.is_open

    async def close(self) -> None:
        """Close the connections. Calls in progress, and later ones, raise ClientClosedError. Safe to repeat.

        Examples:
            >>> await consumer.close()
        """
        self._router.channels.refuse()
        await self._pieces.close()
        await self._fetcher.close()
        await self._router.close()

    async def topic(self, name: str) -> list[TopicQueues]:
        """The queues of a topic, by replica group.

        Args:
            name: The topic.

        Returns:
            One entry for each replica group that has queues of the topic.

        Raises:
            TopicNotFoundError: The topic does not exist.
            NotReadyError: A replica group that may have queues of the topic does not answer, and no other one knows them.

        Examples:
            >>> queues = sum(part.read_queues for part in await consumer.topic("orders"))
        """
        return (await find_parts(self._router, name, self._deadline_ms())).all_of(name)

    async def replicas(self) -> dict[str, list[str]]:
        """The node ids of every replica group, the leader first.

        Returns:
            Node ids by the name of the replica group.

        Examples:
            >>> leader = (await consumer.replicas())["g0"][0]
        """
        groups = await self._router.all_groups(self._deadline_ms())
        found = {}
        for name, group in groups.items():
            others = sorted(node.id for node in group.nodes if node.id != group.leader_id)
            found[name] = [group.leader_id, *others] if group.leader_id else others
        return found

    async def offsets(
        self, topic: str, timestamp_ms: int | None = None, *, or_followers: bool | None = None, partial: bool = False
    ) -> dict[tuple[str, int], QueueOffsets]:
        """The offsets that each readable queue of a topic holds, as its leader knows them.

        Args:
            topic: The topic.
            timestamp_ms: Also find the first message stored at or after this time, milliseconds since 1970.
            or_followers: While a replica group has no leader, return what its followers have committed. None: only for a consumer that
                reads from followers.
            partial: Leave out replica groups that do not answer.

        Returns:
            Offsets by (replica group, queue id).

        Raises:
            TopicNotFoundError: The topic does not exist.
            NotLeaderError: A replica group had no leader within ``timeout_ms``; with ``partial``, none had one.
            NotReadyError: Without ``partial``: not all queues are known, see ``topic``.

        Examples:
            >>> held = await consumer.offsets("orders")
            >>> print(held["g0", 0].min_offset, held["g0", 0].max_offset)
        """
        if or_followers is None:
            or_followers = self._reads_followers
        asked_time = NO_TIME if timestamp_ms is None else timestamp_ms
        within(NO_TIME, MAX_OFFSET, timestamp_ms=asked_time)
        found = await self._offsets.held(topic, asked_time, or_followers=or_followers, partial=partial)
        self._epochs.learned(topic, {queue: held.topic_epoch for queue, held in found.items()})
        return found

    async def new_queues(self, topic: str, known: Collection[tuple[str, int]], *, wait_ms: int = 0) -> dict[tuple[str, int], QueueOffsets]:
        """The readable queues of a topic besides those you know: a topic can get more queues, and grow into other replica groups.

        Call it in your loop: it asks only when the topic changed, or was not looked up for some seconds. Queues of a
        replica group that does not answer come with a later call.

        Args:
            topic: The topic.
            known: The queues that you read, (replica group, queue id).
            wait_ms: While there are none, wait so many milliseconds for one.

        Returns:
            Offsets by (replica group, queue id); read a new queue from its ``min_offset`` on.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> positions = {queue: held.min_offset for queue, held in (await consumer.offsets("orders")).items()}
            >>> while True:
            ...     for (group, queue_id), offset in positions.items():
            ...         for message in await consumer.fetch("orders", queue_id, offset, replica_group=group, wait_ms=100):
            ...             positions[group, queue_id] = message.queue_offset + 1
            ...     new = await consumer.new_queues("orders", positions)
            ...     positions |= {queue: held.min_offset for queue, held in new.items()}
        """
        within(0, MAX_U32, wait_ms=wait_ms)
        if not isinstance(known, Collection):
            raise InvalidArgumentError(f"known {known!r}: expected queues, (replica group, queue id)")
        found = await self._added.find(check_topic(topic), known, wait_ms)
        self._epochs.learned(topic, {queue: held.topic_epoch for queue, held in found.items()})
        return found

    async def fetch(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, **options: Unpack[FetchOptions]
    ) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on.

        With ``tags`` or ``sql``, an empty result need not be the end of the queue; ``fetch_chunks`` says how far
        was read.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first offset to read.
            max_messages: Messages to return at most.
            options: See ``FetchOptions``.

        Returns:
            The messages; empty at the end of the queue.

        Raises:
            OffsetOutOfRangeError: The queue does not hold the offset; ``min_offset`` and ``max_offset`` say what it
                holds.
            TopicNotFoundError: The topic does not exist, or was deleted and created again: begin again, by ``committed`` or
                ``offsets``.
            TopicPermissionError: The topic cannot be read.
            InvalidArgumentError: An argument is outside its range, or the filter has a mistake.
            UnreachableError: No replica responded within ``timeout_ms``.
            TypeError: An option is unknown.

        Examples:
            >>> messages = await consumer.fetch("orders", 0, 0, max_messages=100, wait_ms=1_000, tags="created || paid")
        """
        began_ms = self._router.clock.wall_ms()
        wanted = Fetch(topic, queue_id, offset, max_messages, **options)
        messages = [message for chunk in await self._fetched(wanted) for message in wanted.subscription.messages_of(chunk)]
        if messages and (spans := tracing.spans()) is not None:
            spans.received(messages, self.group, began_ms)
        return messages

    async def fetch_chunks(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, **options: Unpack[FetchOptions]
    ) -> list[Chunk]:
        """Like ``fetch``, without decoding: chunks of frames, with the replica's lag and where to read on.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first offset to read.
            max_messages: Messages to return at most.
            options: See ``FetchOptions``.

        Returns:
            The chunks; the last one's ``next_offset`` is where to read on.

        Raises:
            DledgerError: What ``fetch`` raises.

        Examples:
            >>> chunks = await consumer.fetch_chunks("orders", 0, 0, tags="created")
            >>> offset = chunks[-1].next_offset
        """
        return await self._fetched(Fetch(topic, queue_id, offset, max_messages, **options))

    async def _fetched(self, wanted: Fetch) -> list[Chunk]:
        group = await self._group_of(wanted.topic, wanted.queue_id, wanted.replica_group)
        return await self._epochs.read(group, wanted.request(self.group, is_uncounted=self._is_uncounted), self._pieces.read)

    async def fetch_arrow(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 100_000,
        *,
        columns: Sequence[str] = ARROW_COLUMNS,
        **options: Unpack[FetchOptions],
    ) -> ArrowTable:
        """Like ``fetch``, as a table of Arrow, without an object for each message. Needs pyarrow (the extra ``arrow``).

        The metadata of the table's schema has ``next_offset``, where to read on, ``max_offset``, the end of the queue as the replica
        knew it, ``replica_group`` and ``queue_id``. ``scan_arrow`` reads a whole topic.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first offset to read.
            max_messages: Messages to return at most.
            columns: Columns to make, in this order; fewer are faster. Of ``queue_offset``, ``msg_id``, ``keys``, ``tags``, ``body``,
                ``born_timestamp``, ``store_timestamp``, ``properties``, ``topic``, ``group`` (the replica group), ``queue_id``,
                ``replica``, ``body_size``, ``physical_offset``, ``traceparent``, ``tracestate``. What a message does not have is null.
            options: See ``FetchOptions``.

        Returns:
            A ``pyarrow.Table`` with a row for each message, in order.

        Raises:
            InvalidArgumentError: pyarrow is not installed, or a column is unknown.
            DledgerError: What ``fetch`` raises.

        Examples:
            >>> table = await consumer.fetch_arrow("orders", 0, 0, columns=["queue_offset", "body"])
            >>> next_offset = int(table.schema.metadata[b"next_offset"])
        """
        require_arrow()
        from dledger_client.fetch.arrow_chunks import arrow_schema, table_of

        arrow_schema(columns)  # they are checked before anything is read
        options.setdefault("max_bytes", ARROW_BYTES)
        wanted = Fetch(topic, queue_id, offset, max_messages, **options)
        return table_of(await self._fetched(wanted), columns, wanted.subscription.tags)

    @staticmethod
    def with_tags(chunk: Chunk, tags: str) -> list[ReceivedMessage]:
        """The messages of a chunk that have one of the tags. Replicas filter by hash, so a chunk may hold other tags with the same hash.

        Args:
            chunk: The chunk.
            tags: ``a || b``; ``*``: all.

        Returns:
            The messages, in order.

        Examples:
            >>> messages = consumer.with_tags(chunk, "created || paid")
        """
        return Subscription(tags).messages_of(chunk)

    async def read_chunks(self, topic: str, queue_id: int, offset: int, end: int, **options: Unpack[RangeOptions]) -> AsyncGenerator[Chunk]:
        """Everything of a queue between two offsets, each offset once. When a replica fails, another one continues where it stopped.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first offset.
            end: The offset behind the last one.
            options: See ``RangeOptions``.

        Returns:
            Chunks of frames.

        Raises:
            DledgerError: What ``fetch`` raises.

        Examples:
            >>> async for chunk in consumer.read_chunks("orders", 0, 0, 1_000_000):
            ...     for message in chunk.messages():
            ...         print(message.queue_offset)
        """
        wanted = RangeRead(topic, queue_id, offset, end, **options)
        group = await self._group_of(topic, queue_id, wanted.replica_group)
        request = wanted.request(self.group, is_uncounted=self._is_uncounted)
        async with aclosing(self._long_read.chunks(group, request, end, wanted.max_lag)) as chunks:
            async for chunk in chunks:
                self._epochs.was_read(chunk)
                yield chunk

    async def scan_chunks(self, topic: str, *, without_body: bool = False, **options: Unpack[ScanOptions]) -> AsyncGenerator[Chunk]:
        """Everything that a topic holds when it is called, several queues side by side, chunks of some thousand messages.

        Chunks are in the order of each queue; those of different queues come as they are ready. When a replica fails, another one
        continues. Each queue has one chunk at least; its last one may be empty.

        Args:
            topic: The topic.
            without_body: Leave out the bodies.
            options: See ``ScanOptions``.

        Returns:
            Chunks of frames; ``replica_group``, ``queue_id`` and ``next_offset`` of the last one of each queue are its position for a
            later call.

        Raises:
            InvalidArgumentError: A queue is unknown, or an argument is outside its range.
            OffsetOutOfRangeError: A queue does not hold its position, or messages expired before they were read.
            TopicNotFoundError: The topic does not exist, or was deleted meanwhile.
            DledgerError: What ``fetch`` raises.

        Examples:
            >>> async for chunk in consumer.scan_chunks("orders"):
            ...     for message in chunk.messages():
            ...         print(message.queue_id, message.queue_offset, message.body)
        """
        scan = Scan(**options)
        parts = spans(topic, await self.offsets(topic, scan.since_ms), scan.positions or {}, by_time=scan.since_ms is not None)

        def read(part: Span) -> AsyncGenerator[Chunk]:
            which: ReadOptions = {"replica_group": part.replica_group, "topic_epoch": part.topic_epoch, "tags": scan.tags, "sql": scan.sql}
            return self.read_chunks(topic, part.queue_id, part.start, part.end, without_body=without_body, **which)

        async with aclosing(TopicScan(topic, parts, read, scan.queues_at_once).chunks()) as chunks:
            async for chunk in chunks:
                self._router.channels.require_open()  # one that is ready is not given out any more once the consumer is closed
                yield chunk

    async def scan_arrow(
        self, topic: str, *, columns: Sequence[str] = ARROW_COLUMNS, **options: Unpack[ScanOptions]
    ) -> AsyncGenerator[ArrowTable]:
        """Like ``scan_chunks``, as tables of Arrow. Needs pyarrow (the extra ``arrow``).

        The metadata of a table's schema has ``replica_group``, ``queue_id`` and ``next_offset``, the position of that queue.

        Args:
            topic: The topic.
            columns: Columns to make, as for ``fetch_arrow``. Without ``body`` no bodies are sent.
            options: See ``ScanOptions``.

        Returns:
            Tables; ``pyarrow.concat_tables`` joins them.

        Raises:
            InvalidArgumentError: pyarrow is not installed, or a column is unknown.
            DledgerError: What ``scan_chunks`` raises.

        Examples:
            >>> positions = {}
            >>> async for table in consumer.scan_arrow("orders", columns=["queue_offset", "body"], positions=positions):
            ...     place = table.schema.metadata
            ...     positions[place[b"replica_group"].decode(), int(place[b"queue_id"])] = int(place[b"next_offset"])
        """
        require_arrow()
        from dledger_client.fetch.arrow_chunks import arrow_schema, table_of

        arrow_schema(columns)  # they are checked before anything is read
        async with aclosing(self.scan_chunks(topic, without_body="body" not in columns, **options)) as chunks:
            async for chunk in chunks:
                yield table_of([chunk], columns, Subscription(options.get("tags", "*")).tags)
