"""The pull consumer for asyncio: reads queues by offset, from the leader or from followers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self

from dledger_client.admin.send_back import SendBackResult, send_back
from dledger_client.cluster.follower_reads import CommittedState
from dledger_client.cluster.metadata import Bootstrap, TopicQueues, parse_bootstrap
from dledger_client.cluster.responses import parse
from dledger_client.cluster.retry import JitteredBackoff, is_retriable, until
from dledger_client.consumer.group_offsets import commit_pages
from dledger_client.deprecation import renamed_arguments
from dledger_client.fetch.fetcher import Replicas
from dledger_client.fetch.local_log_reader import LogFiles
from dledger_client.fetch.records import Chunk, QueueOffsets, ReceivedMessage
from dledger_client.fetch.replica_attempts import Attempts, Source
from dledger_client.fetch.subscription import parse_tags
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.environment import environment_for, takes_old_environment
from dledger_client.unclosed import warn as warn_unclosed
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotYetError, OffsetOutOfRangeError, UnreachableError
from dledger_wire.java_hash import cached_java_hash
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail

NO_TIME = -1
ANSWER_BYTES = 64 << 20  # of one request of a long read


class PullConsumer:
    """Reads queues by offset.

    ``read_from``: leader (default), follower (leader only when no follower can), or any; ``replica`` pins one node; replicas on the hosts
    ``near`` are tried first, with ``local_files`` by reading their log files where this process may.  ``timeout_ms`` is how long an
    operation is tried over all replicas.  With several replica groups, ``replica_group`` arguments say which one a queue is of.
    Without ``repair`` a damaged message ends a read with CorruptFrameError; with it the replica puts it right from a peer.
    """

    @takes_old_environment
    @renamed_arguments(mend="repair")
    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str = "",
        *,
        read_from: str = "leader",
        replica: str | None = None,
        near: frozenset[str] = frozenset(),
        local_files: bool = False,
        repair: bool = True,
        timeout_ms: int = 10_000,
    ) -> None:
        parse_bootstrap(bootstrap)
        if not isinstance(group, str):
            raise InvalidArgumentError(f"group {group!r}: expected a consumer group's name")
        within(1, MAX_U32, timeout_ms=timeout_ms)
        self.group = group
        self._timeout_ms = timeout_ms
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open
        self._router = environment_for(bootstrap).open_router(bootstrap)
        self._committed_state = CommittedState(self._router, replica)
        self._reads_followers = read_from != "leader" or replica is not None
        self._replicas = Replicas(self._router, read_from, replica, near, files=LogFiles() if local_files else None, repair=repair)

    @property
    def _description(self) -> str:
        """What tells this consumer from others, for people."""
        return f"{self.group!r} at {self._bootstrap}"

    @property
    def _is_left_open(self) -> bool:
        return self._router.is_open

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._description}>"

    def __del__(self) -> None:
        if not getattr(self, "_is_wrapped", True) and self._router.is_open:
            warn_unclosed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections.  Idempotent."""
        await self._replicas.close()
        await self._router.close()

    def _deadline_ms(self) -> int:
        return self._router.clock.monotonic_ms() + self._timeout_ms

    async def topic(self, name: str) -> list[TopicQueues]:
        """The queues of a topic, group by group.  TopicNotFoundError."""
        return await self._router.topic(name, self._deadline_ms(), fresh=True)

    async def replicas(self) -> dict[str, list[str]]:
        """The node ids of every replica group, the leader first."""
        groups = await self._router.ensure_groups(self._deadline_ms())
        found = {}
        for name, group in groups.items():
            others = sorted(node.id for node in group.nodes if node.id != group.leader_id)
            found[name] = [group.leader_id, *others] if group.leader_id else others
        return found

    async def _group_of(self, topic: str, queue_id: int, replica_group: str | None) -> str:
        if replica_group is not None:
            return replica_group
        for fresh in (False, True):  # a queue made since the last look
            found = await self._router.topic(topic, self._deadline_ms(), fresh=fresh)
            for queues in found:
                if queue_id < queues.read_queues:
                    return queues.replica_group
        most = max(queues.read_queues for queues in found)
        raise InvalidArgumentError(f"topic {topic}: queue {queue_id}, expected 0 to {most - 1}", topic=topic)

    async def offsets(
        self, topic: str, timestamp_ms: int | None = None, *, or_followers: bool | None = None
    ) -> dict[tuple[str, int], QueueOffsets]:
        """By (replica group, queue id): what each readable queue holds, as its leader knows it.

        ``or_followers``: while a group has no leader, what its followers have committed (of the one that has most, or of the pinned
        ``replica``); None: unless this consumer reads from leaders.
        """
        if or_followers is None:
            or_followers = self._reads_followers
        asked_time = NO_TIME if timestamp_ms is None else timestamp_ms
        within(NO_TIME, MAX_OFFSET, timestamp_ms=asked_time)
        found: dict[tuple[str, int], QueueOffsets] = {}
        for queues in await self.topic(topic):
            refs = [broker_pb2.QueueRef(topic=topic, queue_id=number, timestamp_ms=asked_time) for number in range(queues.read_queues)]
            answer = await self._offsets_of(queues.replica_group, broker_pb2.OffsetsRequest(queues=refs), or_followers=or_followers)
            for queue in answer.queues:
                found[queues.replica_group, queue.queue_id] = QueueOffsets(
                    queue.min_offset, queue.max_offset, queue.offset_for_time, queue.incarnation
                )
        return found

    async def _offsets_of(self, group: str, request: broker_pb2.OffsetsRequest, *, or_followers: bool) -> broker_pb2.OffsetsResponse:
        wish, deadline_ms = request.SerializeToString(), self._deadline_ms()
        if not or_followers:
            answer = await self._router.call_leader(group, methods.QUEUE_OFFSETS.path, wish, deadline_ms=deadline_ms)
            return parse(broker_pb2.OffsetsResponse, answer, group)
        kind = broker_pb2.OffsetsResponse
        return await self._committed_state.ask(
            group, methods.QUEUE_OFFSETS.path, wish, kind, lambda answer: int(answer.applied_index), deadline_ms
        )

    @renamed_arguments(group_name="replica_group")
    async def commit(self, positions: Mapping[tuple[str, int], int], *, replica_group: str | None = None, reset: bool = False) -> None:
        """Remember where this consumer group has come to: (topic, queue id) -> next offset to read; durable on a majority.

        A commit never takes the group back, a ``reset`` may.  InvalidArgumentError without a consumer group; StaleLockError for a queue
        that an orderly push consumer of the group holds.
        """
        if not self.group:
            raise InvalidArgumentError("committing needs a consumer group; expected group=NAME")
        by_group: dict[str, broker_pb2.CommitOffsetsRequest] = {}
        for (topic, queue_id), offset in positions.items():
            within(0, MAX_OFFSET, offset=offset)
            within(0, MAX_U32, queue_id=queue_id)
            group = await self._group_of(topic, queue_id, replica_group)
            request = by_group.setdefault(group, broker_pb2.CommitOffsetsRequest(group=self.group, reset=reset))
            request.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
        for group, request in by_group.items():
            for page in commit_pages(request):
                answer = await self._router.call_leader(
                    group, methods.COMMIT_OFFSETS.path, methods.encode(page), deadline_ms=self._deadline_ms()
                )
                for refused in parse(broker_pb2.CommitOffsetsResponse, answer, group).refused:
                    raise from_detail(refused.error)

    async def committed(self, topic: str) -> dict[tuple[str, int], int]:
        """By (replica group, queue id): where this consumer group has come to; queues it never committed are not in it."""
        found: dict[tuple[str, int], int] = {}
        request = broker_pb2.GroupOffsetsRequest(groups=[self.group]).SerializeToString()
        for queues in await self.topic(topic):
            answer = await self._router.call_leader(
                queues.replica_group, methods.GROUP_OFFSETS.path, request, deadline_ms=self._deadline_ms()
            )
            for positions in parse(broker_pb2.GroupOffsetsResponse, answer, queues.replica_group).groups:
                of_topic = (each for each in positions.offsets if each.topic == topic)
                found |= {(queues.replica_group, each.queue_id): each.offset for each in of_topic}
        return found

    @renamed_arguments(group_name="replica_group")
    async def send_back(
        self,
        topic: str,
        queue_id: int,
        offsets: Iterable[int],
        *,
        replica_group: str | None = None,
        delay_level: int = 0,
        max_reconsume_times: int = 0,
    ) -> list[SendBackResult]:
        """Give messages that could not be processed back: they come again, later, in this consumer group's retry topic.

        Commit behind them after that, not before; see ``dledger_client.admin.send_back``.  Safe to repeat.
        """
        if not self.group:
            raise InvalidArgumentError("sending back needs a consumer group; expected group=NAME")
        return await send_back(
            self._router,
            self.group,
            topic,
            queue_id,
            offsets,
            group_name=await self._group_of(topic, queue_id, replica_group),
            deadline_ms=self._deadline_ms(),
            delay_level=delay_level,
            max_reconsume_times=max_reconsume_times,
        )

    @renamed_arguments(group_name="replica_group")
    async def fetch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        *,
        replica_group: str | None = None,
        max_bytes: int = 4 << 20,
        wait_ms: int = 0,
        tags: str = "*",
        sql: str = "",
        linearizable: bool = False,
    ) -> list[ReceivedMessage]:
        """Up to ``max_messages`` from ``offset`` on; empty at the end of the queue (after ``wait_ms`` without news).

        ``tags``: only messages with one of them, ``a || b``.  ``sql``: only those whose properties it is true of (RocketMQ's SQL92 filter),
        ``amount > 10 AND region IN ('eu', 'us')``; an InvalidArgumentError points at its mistake.  With either, no messages need not mean
        the end of the queue: ``fetch_chunks`` tells how far was read.

        OffsetOutOfRangeError (with what there is), TopicNotFoundError, TopicPermissionError.
        """
        chunks = await self.fetch_chunks(
            topic,
            queue_id,
            offset,
            max_messages,
            replica_group=replica_group,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            tags=tags,
            sql=sql,
            linearizable=linearizable,
        )
        return [message for chunk in chunks for message in self.with_tags(chunk, tags)]

    @renamed_arguments(group_name="replica_group")
    async def fetch_chunks(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        *,
        replica_group: str | None = None,
        max_bytes: int = 4 << 20,
        wait_ms: int = 0,
        tags: str = "*",
        sql: str = "",
        linearizable: bool = False,
    ) -> list[Chunk]:
        """``fetch`` without its decoding; the last chunk's ``next_offset`` tells where to read on, behind filtered messages too.

        The ``lag`` of a chunk tells how far behind its replica was.
        """
        within(0, MAX_OFFSET, offset=offset)
        within(0, MAX_U32, queue_id=queue_id, max_bytes=max_bytes, wait_ms=wait_ms)
        within(1, MAX_U32, max_messages=max_messages)
        request = broker_pb2.FetchRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            group=self.group,
            tag_hashes=[cached_java_hash(tag) for tag in parse_tags(tags)],
            sql=sql,
            linearizable=linearizable,
        )
        group = await self._group_of(topic, queue_id, replica_group)
        return await self._replicas.read(group, request, self._deadline_ms())

    @staticmethod
    def with_tags(chunk: Chunk, tags: str) -> list[ReceivedMessage]:
        """The messages of a chunk that have one of the tags: replicas filter by hash, equal hashes of other tags are sorted out here."""
        wanted = parse_tags(tags)
        messages = chunk.messages() if chunk.count else []
        return [message for message in messages if message.tags in wanted] if wanted else messages

    async def _sources(self, attempts: Attempts, group: str, topic: str, queue_id: int) -> list[Source]:
        """A new round of replicas, as soon as there is somebody to ask."""
        async for attempt in until(attempts.deadline_ms, self._router.clock, self._router.random):
            with attempt:
                found = await self._replicas.sources(group, attempts.deadline_ms, (topic, queue_id))
                if not found:
                    raise UnreachableError(f"group {group} has no replica to read from")
                return attempts.in_order(found)
        raise UnreachableError(f"group {group}: no attempt was made before the deadline")

    @renamed_arguments(group_name="replica_group", upto="end", incarnation="topic_epoch")
    async def read_chunks(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        end: int,
        *,
        replica_group: str | None = None,
        tags: str = "*",
        sql: str = "",
        chunk_bytes: int = ANSWER_BYTES,
        without_body: bool = False,
        max_lag: int | None = None,
        topic_epoch: str = "",
    ) -> AsyncGenerator[Chunk]:
        """Everything of a queue from ``offset`` to ``end`` (exclusive), as chunks of raw frames, each offset once.

        When a replica goes away in the middle, the next one goes on where it stopped.  Chunks may be cut at ``end``; with tags they may
        hold messages of another tag with the same hash.  A follower that holds less than ``end - max_lag`` is left for another replica.
        ``topic_epoch``: of this very topic; TopicNotFoundError when it was deleted, and made again or not.
        """
        within(0, MAX_OFFSET, offset=offset)
        within(0, MAX_U32, queue_id=queue_id, chunk_bytes=chunk_bytes)
        group = await self._group_of(topic, queue_id, replica_group)
        hashes = [cached_java_hash(tag) for tag in parse_tags(tags)]
        pauses, attempts = JitteredBackoff(self._router.random), Attempts(self._router.clock, self._timeout_ms)
        untried: list[Source] = []
        while offset < end:
            if not untried:
                untried = await self._sources(attempts, group, topic, queue_id)
            source = untried[0]
            request = broker_pb2.FetchRequest(
                topic=topic,
                queue_id=queue_id,
                offset=offset,
                max_bytes=chunk_bytes,
                group=self.group,
                tag_hashes=hashes,
                sql=sql,
                without_body=without_body,
                incarnation=topic_epoch,
            )
            if not hashes and not sql:
                request.max_messages = min(end - offset, 0xFFFFFFFF)
            try:
                before = offset
                async with aclosing(self._replicas.chunks(source, group, request, partial(attempts.left_s, source))) as chunks:
                    async for chunk in chunks:
                        _check_lag(chunk, source, end, max_lag)
                        chunk.cut(end)
                        offset = chunk.next_offset
                        if chunk.count:
                            yield chunk
                        if offset > before:
                            attempts.progress()
                if offset == before:
                    raise _nothing(topic, queue_id, offset, end, source)
            except DledgerError as error:
                untried.pop(0)
                problem = attempts.failed(error, source, offset, is_last=not untried)
                if not is_retriable(problem) or attempts.is_over:
                    raise problem from None
                if not untried:
                    await self._replicas.rest(group, pauses.pause_ms(attempts.failures, busy=False))


def _check_lag(chunk: Chunk, source: Source, end: int, max_lag: int | None) -> None:
    if max_lag is not None and not source.is_leader and chunk.max_offset < end - max_lag:
        place = f"{chunk.topic}/{chunk.queue_id}"
        raise NotYetError(f"{source.node_id} holds {place} up to {chunk.max_offset}, wanted {end} - {max_lag}")


def _nothing(topic: str, queue_id: int, offset: int, end: int, source: Source) -> DledgerError:
    """For a replica that had nothing where there is to be something: a follower may lag."""
    text = f"{topic}/{queue_id}: nothing at {offset} on {source.node_id}, expected messages up to {end}"
    return OffsetOutOfRangeError(text, min_offset=0, max_offset=offset) if source.is_leader else NotYetError(text)
