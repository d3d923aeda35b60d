"""The Fetch stream: ranges of queues as raw frames, from any replica, with long polling.

Owns the answers to one stream's requests, in order.  An answer is a series of chunks, so memory use does not grow with the request; while
one chunk is sent the next one is read.
"""

from __future__ import annotations

import asyncio
import functools

import numpy as np

from broker.api.bodiless import without_bodies
from broker.api.read_advice import ReadAdvice
from broker.context import ServiceContext
from broker.delivery.verified_reads import RepairedBytes, read_with_repair
from broker.quotas.fetch import FetchQuota
from broker.support.measures import OK, method_name
from dledger_wire._pb import broker_pb2
from dledger_wire.addresses import host_of
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    NotYetError,
    OffsetOutOfRangeError,
    StaleLockError,
    TopicNotFoundError,
    TopicPermissionError,
)
from dledger_wire.names import check_group
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.stored import StoredSender, sender_of
from dledger_wire.rpc.transport import ByteStream, CallContext, Server
from dledger_wire.security.principal import ANONYMOUS, Principal
from dledger_wire.tasks import let_go
from store.commands.security import Action, Resource
from store.queues.fetch_filter import FetchFilter
from store.queues.queue_reader import outside
from store.queues.read import Chunk, Given
from store.queues.slices import Slices
from store.queues.sql92 import parser as sql_parser
from store.queues.sql_filter import compiled

BARRIER_TIMEOUT_S = 5.0
DEFAULT_BYTES = 4 << 20
MAX_ANSWER_BYTES = 256 << 20
IN_PLACE = 65_536, 8 << 20  # messages and bytes of one chunk when only positions are sent
# How much one request may filter out; then it is answered with how far it came, and the client asks again.
MAX_SCANNED_BYTES = 64 << 20
MAX_FILTERED_MS = 500  # clients give up after seconds and retry: many readers at once would all do so for ever
MAX_WAIT_MS = 60_000
MAX_TAGS = 1024
_NAME = method_name(methods.FETCH.path)


class _Answer:
    """The progress of the answer to one request."""

    def __init__(self, context: ServiceContext, request: broker_pb2.FetchRequest, given: Given, wanted: FetchFilter) -> None:
        self._given = given
        self.quota: FetchQuota | None = None  # when one counts
        self._store = context.store
        self._clock = context.env.clock
        self._raft = context.raft
        self._request = request
        self._wanted = wanted
        broker, store = context.settings.cluster.broker, context.store.settings
        self._chunk_messages, self._chunk_bytes = IN_PLACE if request.in_place else (store.chunk_messages, store.chunk_bytes)
        self._max_wait_ms = MAX_WAIT_MS if broker.longPollingEnable else broker.shortPollingTimeMills
        self._offset = request.offset
        self._left_bytes = min(request.max_bytes or DEFAULT_BYTES, MAX_ANSWER_BYTES)
        self._left_messages = request.max_messages
        self._left_to_scan = MAX_SCANNED_BYTES
        self._filters_since_ms = self._clock.monotonic_ms()
        self._has_filtered_enough = False
        self._stopwatch = context.measures.stopwatch
        self.waited_s = 0.0  # for messages that were not there yet
        self.topic_epoch = ""  # of what was read

    async def next_chunk(self) -> tuple[Chunk, bool]:
        """The next chunk, and whether it is the last one."""
        return await read_with_repair(self._raft, self._next_chunk)

    async def _next_chunk(self) -> tuple[Chunk, bool]:
        request, store = self._request, self._store
        topic_epoch = self._current_topic_epoch(request.incarnation)
        max_messages, max_bytes = min(self._left_messages or self._chunk_messages, self._chunk_messages), self._chunk_bytes
        if self.quota is not None:
            max_messages, max_bytes = self.quota.most_messages(max_messages), self.quota.most_bytes(max_bytes)
        chunk = await store.read(
            request.topic,
            request.queue_id,
            self._offset,
            max_messages=max_messages,
            max_bytes=min(self._left_bytes, max_bytes),
            fetch_filter=self._wanted,
            given=self._given,
        )
        if 0 < chunk.first_pos < self._raft.log.cached_pos:
            await self._raft.bulk.take(max(chunk.frames_bytes, chunk.looked_at))
        self.topic_epoch = self._current_topic_epoch(topic_epoch)
        if request.verify:
            await store.reader.verify(request.topic, request.queue_id, chunk.first_offset, chunk.next_offset)
            request.verify = False
            return await self._next_chunk()
        at_end = chunk.next_offset == self._offset
        if not at_end:
            request.incarnation = self.topic_epoch  # the rest is of the same topic
        self._offset = chunk.next_offset
        self._left_bytes -= chunk.frames_bytes
        self._left_to_scan -= chunk.looked_at
        if request.max_messages:
            self._left_messages -= chunk.count
        enough = self._left_bytes <= 0 or bool(request.max_messages and self._left_messages <= 0)
        self._has_filtered_enough = self._left_to_scan <= 0 or (not self._wanted.everything and self._has_filtered_long)
        return chunk, at_end or enough or self._has_filtered_enough

    @property
    def _has_filtered_long(self) -> bool:
        return self._clock.monotonic_ms() - self._filters_since_ms >= MAX_FILTERED_MS

    def _current_topic_epoch(self, wanted: str) -> str:
        """Checked before and after reading: the topic may have been recreated meanwhile."""
        topic = self._store.topics.require(self._request.topic)
        if wanted not in ("", topic.topic_epoch):
            raise TopicNotFoundError(f"topic {topic.name} of epoch {wanted} does not exist; its current epoch is {topic.topic_epoch}")
        return topic.topic_epoch

    async def first_chunk(self) -> tuple[Chunk, bool]:
        """The first chunk with messages, after waiting at most as long as the request says; or an empty one that says how far was read."""
        request = self._request
        deadline_ms = self._clock.monotonic_ms() + min(request.wait_ms, self._max_wait_ms)
        while True:
            before = self._offset
            chunk, end = await self.next_chunk()
            if chunk.count or (self._has_filtered_enough and self._offset > before):
                return chunk, end
            if self._offset > before:
                continue  # everything was filtered out
            left_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
            if left_s <= 0 or not await self._wait(left_s):
                return chunk, end

    async def _wait(self, left_s: float) -> bool:
        """Until there are messages; whether there are."""
        began_s = self._stopwatch()
        try:
            return await self._store.wait_for_messages(self._request.topic, self._request.queue_id, self._offset, left_s)
        finally:
            self.waited_s += self._stopwatch() - began_s
            self._filters_since_ms = self._clock.monotonic_ms()


class FetchService:
    """Serves reads of what this replica has applied."""

    def __init__(self, context: ServiceContext, advice: ReadAdvice, store_id: str) -> None:
        self._context = context
        self._advice = advice
        self._store_id = store_id
        self._slices = Slices()
        sql_parser()

    def register(self, server: Server) -> None:
        methods.FETCH.serve(server, self.fetch)

    async def fetch(self, stream: ByteStream, caller: CallContext) -> None:
        while (message := await stream.read()) is not None:
            request = methods.decode(broker_pb2.FetchRequest, message)
            began_s, measures = self._context.measures.stopwatch(), self._context.measures
            try:
                check_reader(self._context, caller.principal, request.topic, request.group)
                waited_s = await self._serve(request, stream, caller)
                measures.request(_NAME, OK, measures.stopwatch() - began_s - waited_s)
            except DledgerError as error:
                measures.request(_NAME, error.code, measures.stopwatch() - began_s)
                header = self._header(request, request.offset, end=True)
                header.error.CopyFrom(to_detail(error))
                await stream.write(envelope.encode(header, ()))

    async def _serve(self, request: broker_pb2.FetchRequest, stream: ByteStream, context: CallContext) -> float:
        """Answer a request; for how many seconds of that there were no messages, or a quota was waited for."""
        caller = context.principal
        wanted = await self._wanted(request, owner_of(context))
        await self._catch_up(request)
        self._check_lock(request)
        sender = None if request.in_place or request.without_body else sender_of(stream)
        given = Given.PLACES if request.in_place else Given.BYTES if sender is None else Given.STORED
        answer = _Answer(self._context, request, given, wanted)
        answer.quota = quota = await FetchQuota.paid(self._context.quotas, context, request.group, request.topic)
        chunk, end = await answer.first_chunk()
        request.incarnation = answer.topic_epoch
        self._check_lock(request)  # the owner may have changed during a long poll
        check_reader(self._context, caller, request.topic, request.group)  # and rights may have been taken away, then as later on
        while not end:
            ahead = asyncio.get_running_loop().create_task(answer.next_chunk(), name="fetch ahead")
            try:
                if chunk.count:
                    await self._write(stream, sender, request, chunk, end=False)
                if quota is not None:
                    quota.given(chunk.frames_bytes, chunk.count)
                    await quota.wait()
                chunk, end = await ahead
                check_reader(self._context, caller, request.topic, request.group)
            finally:
                await let_go(ahead)
        await self._write(stream, sender, request, chunk, end=True)
        if quota is not None:
            quota.given(chunk.frames_bytes, chunk.count)  # the next request waits for it
        return answer.waited_s + (quota.waited_s if quota is not None else 0.0)

    async def _write(
        self, stream: ByteStream, sender: StoredSender | None, request: broker_pb2.FetchRequest, chunk: Chunk, *, end: bool
    ) -> None:
        message = self._encode(request, chunk, end=end)
        if chunk.stored is None or sender is None:
            await stream.write(message)
            return
        try:
            await sender.write_stored(message, RepairedBytes(self._context.raft, chunk.stored))
        except OffsetOutOfRangeError:  # of the log's positions: its head was deleted since the chunk was looked up
            low, high = self._context.store.reader.bounds(request.topic, request.queue_id)
            raise outside((request.topic, request.queue_id), chunk.first_offset, low, high) from None

    async def _wanted(self, request: broker_pb2.FetchRequest, owner: str) -> FetchFilter:
        if len(request.tag_hashes) > MAX_TAGS:
            raise InvalidArgumentError(f"{len(request.tag_hashes)} tags; expected at most {MAX_TAGS}")
        tags = np.array(request.tag_hashes, np.int64) if request.tag_hashes else None
        turn = functools.partial(self._slices.turn, owner)
        return FetchFilter(tags, await compiled(request.sql, turn) if request.sql else None, turn)

    async def _catch_up(self, request: broker_pb2.FetchRequest) -> None:
        """Wait until this replica's state is as fresh as the request demands."""
        if request.linearizable:
            await self._context.raft.read_barrier(BARRIER_TIMEOUT_S)
        applied = self._context.store.applied_index
        if request.min_applied > applied:
            text = f"{self._context.settings.node.id} has applied index {applied}, not yet {request.min_applied}"
            raise NotYetError(text, applied=applied)

    def _check_lock(self, request: broker_pb2.FetchRequest) -> None:
        """An orderly consumer reads from the master, and only in the current lock epoch of the queue."""
        if not request.lock_epoch:
            return
        self._context.require_master()
        current = self._context.store.queue_locks.epoch(request.group, request.topic, request.queue_id)
        if request.lock_epoch != current:
            place = f"group {request.group}: {request.topic}/{request.queue_id}"
            raise StaleLockError(f"{place}: fetch in epoch {request.lock_epoch}, the current one is {current or 'none'}")

    def _encode(self, request: broker_pb2.FetchRequest, chunk: Chunk, *, end: bool) -> bytes:
        header = self._header(request, chunk.next_offset, end=end)
        header.incarnation = request.incarnation
        header.count = chunk.count
        header.has_offsets = bool(chunk.offsets)
        header.first_offset = chunk.first_offset
        if end and not request.lock_epoch:
            header.advised_replica = self._advice.for_chunk(request.queue_id, chunk)
        if chunk.pieces:
            header.store_id = self._store_id
            header.pieces.extend(
                broker_pb2.LogPiece(file=piece.file, at=piece.at, size=piece.size, pos=piece.pos) for piece in chunk.pieces
            )
            self._given(request, chunk, chunk.frames_bytes)
            return envelope.encode(header, (chunk.offsets, chunk.sizes, chunk.places))
        if request.without_body and chunk.count:
            sizes, frames = without_bodies(b"".join(chunk.frames), chunk.sizes)
            self._given(request, chunk, len(frames))
            return envelope.encode(header, (chunk.offsets, sizes, frames))
        if chunk.count:
            self._given(request, chunk, chunk.frames_bytes)
        return envelope.encode(header, (chunk.offsets, chunk.sizes, *chunk.frames), behind=chunk.stored.size if chunk.stored else 0)

    def _given(self, request: broker_pb2.FetchRequest, chunk: Chunk, size_bytes: int) -> None:
        context = self._context
        if not request.uncounted:
            context.store.traffic.read(request.topic, chunk.count, size_bytes)
        if request.group:
            now_ms = context.env.clock.monotonic_ms()
            given = context.measures.given
            given.give(request.group, request.topic, request.queue_id, chunk.next_offset, now_ms)
            given.count(request.group, request.topic, chunk.count, size_bytes)

    def _header(self, request: broker_pb2.FetchRequest, next_offset: int, *, end: bool) -> broker_pb2.FetchResponse:
        store = self._context.store
        header = broker_pb2.FetchResponse(request_id=request.request_id, next_offset=next_offset, end=end)
        header.applied_index = store.applied_index
        self._context.set_age(header)
        queue = store.queues.get((request.topic, request.queue_id))
        if queue is not None:
            header.min_offset, header.max_offset = queue.min_offset, queue.max_offset
        return header


def owner_of(caller: CallContext) -> str:
    """The owner that work on the loop is counted for: a user, where there are none a host."""
    return host_of(caller.peer) if caller.principal == ANONYMOUS else str(caller.principal)


def check_reader(context: ServiceContext, caller: Principal, topic: str, group: str) -> None:
    """PermissionDeniedError or TopicPermissionError unless ``caller`` may read the topic, for the consumer group if one is given."""
    context.access.require_topic(caller, Action.READ, topic)
    if group:
        context.access.require(caller, Action.READ, Resource.GROUP, check_group(group))
        if not context.store.subscription_groups.of(group).consumeEnable:
            raise TopicPermissionError(f"consumer group {group} may not consume (consumeEnable is off)", group=group)
