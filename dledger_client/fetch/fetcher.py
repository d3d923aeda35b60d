"""Fetching from replicas: which replica is asked, over which stream, and failover when it does not respond.

Owns the fetch streams of one consumer, and the order of replicas; ``replica_attempts.py`` decides what their errors mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dledger_client.cluster.responses import garbage, parse_envelope
from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.fetch.fetch_metrics import FetchMetrics
from dledger_client.fetch.leader_refresh import LeaderRefresh
from dledger_client.fetch.local_log_reader import LocalLogReader
from dledger_client.fetch.records import Chunk, ChunkPlace, ReplicaLag, decode_chunk
from dledger_client.fetch.replica_attempts import ReplicaFailover, Source
from dledger_wire._pb import broker_pb2
from dledger_wire.addresses import host_of
from dledger_wire.errors import (
    CorruptFrameError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    NotYetError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnreachableError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream
from dledger_wire.tasks import BackgroundTasks

READ_FROM = ("leader", "follower", "any")
IDLE_STREAMS = 4
CLOSE_TIMEOUT_S = 1.0
PAUSE_S = 1.0  # at most, for a search

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Fetcher:
    """Fetches for one consumer, on its event loop.  A stream serves one request at a time; idle ones are kept."""

    def __init__(
        self,
        router: Router,
        read_from: str,
        replica: str | None,
        near: frozenset[str] = frozenset(),
        *,
        idle_streams: int = IDLE_STREAMS,
        files: LocalLogReader | None = None,
        repair: bool = True,
    ) -> None:
        if read_from not in READ_FROM:
            raise InvalidArgumentError(f"read_from {read_from!r}: expected one of {', '.join(READ_FROM)}")
        self._router = router
        self._read_from = read_from
        self._replica = replica
        self._near = near
        self._files = files
        self._repair = repair
        self.metrics: FetchMetrics | None = None  # of its consumer
        self._unreadable: set[str] = set()  # addresses of near replicas whose files cannot be read here
        self._idle: dict[str, list[ByteStream]] = {}
        self._idle_streams = idle_streams
        self._next_id = 1
        self._turn = router.random.randrange(0, 1 << 16)
        self._advised: dict[tuple[str, str, int], str] = {}  # replica group, queue -> replica that its leader recommends to read from
        self._closing = BackgroundTasks("fetcher")
        self.asked: dict[asyncio.Task[Any] | None, str] = {}  # by the task of a read: the address that it waits for now
        self.leaders = LeaderRefresh(router, patient=read_from == "leader" and replica is None)

    async def close(self) -> None:
        await self.leaders.close()
        if self._files is not None:
            await asyncio.to_thread(self._files.close)
        streams = [stream for idle in self._idle.values() for stream in idle]
        self._idle.clear()
        for stream in streams:
            await _close_quietly(stream)
        await self._closing.drain(CLOSE_TIMEOUT_S)

    async def sources(self, replica_group: str, deadline_ms: int, queue: tuple[str, int] | None = None) -> list[Source]:
        """The replicas to try, in order: those on a near host first.  The leader comes last when followers are wanted, or when it
        recommended to read ``queue`` elsewhere."""
        group = await self._group(replica_group, deadline_ms)
        known = [Source(node.id, node.address, node.address == group.leader_address) for node in group.nodes]
        if self._replica is not None:
            return [replace(_only(self._replica, known, replica_group), pinned=True, repairs=self._repair)]
        self._turn += 1
        leaders = [source for source in known if source.is_leader]
        followers = [source for source in known if not source.is_leader]
        if self._read_from == "leader":
            advised = self._advised.get((replica_group, *queue)) if queue is not None else None
            return [source for source in followers if source.node_id == advised] + leaders
        if self._read_from == "follower":
            return self._in_turn(followers) + leaders
        return self._in_turn(leaders + followers)

    async def _group(self, replica_group: str, deadline_ms: int) -> ReplicaGroup:
        """The replica group, looked up again when its leader or the pinned replica is not known."""
        group = await self._router.ensure_group(replica_group, deadline_ms)
        if self._read_from == "leader" and self._replica is None and not group.leader_address:
            group = await self.leaders.find(replica_group)
        if self._replica is not None and all(node.id != self._replica for node in group.nodes):
            await self.leaders.done(replica_group, self._left_s(deadline_ms))  # it may have become a member since
            group = self._router.groups[replica_group]
        return group

    def _in_turn(self, sources: list[Source]) -> list[Source]:
        turned = [sources[(place + self._turn) % len(sources)] for place in range(len(sources))]
        return sorted(turned, key=lambda source: not self._is_near(source)) if self._near else turned

    def _is_near(self, source: Source) -> bool:
        return host_of(source.address) in self._near

    async def chunks(
        self, source: Source, replica_group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        """The response of one replica to one request, every message in it checked.  ``deadline``: seconds left for the next chunk.

        A replica that sends a damaged message is asked once to repair it from another replica; UnreachableError when it cannot.
        CorruptFrameError when the consumer does not repair.
        """
        again = _copied(request)  # what has been read is noted in it; another replica starts from the caller's request
        reachable = self._files is not None and self._is_near(source) and source.address not in self._unreadable
        again.in_place = reachable and not request.without_body  # bodiless messages are not read whole
        try:
            async with contextlib.aclosing(self._local_or_remote(source, replica_group, _copied(again), deadline)) as chunks:
                async for chunk in chunks:
                    bad = chunk.damaged_offset()
                    if bad is not None:
                        damage = f"message {bad} is damaged"
                        break
                    _advance(again, chunk)
                    self._count(chunk)
                    yield chunk
                else:
                    return
        except CorruptFrameError as error:  # the replica could not build a response from what it has
            damage = error.message
        damage = f"{source.node_id}: {request.topic}/{request.queue_id}: {damage}"
        if not self._repair:
            raise CorruptFrameError(damage)
        _logger.warning("%s; asking the replica to verify and repair", damage)
        again.verify, again.in_place = True, False
        async with contextlib.aclosing(self._response(source, replica_group, again, deadline)) as chunks:
            async for chunk in chunks:
                bad = chunk.damaged_offset()
                if bad is not None:
                    raise garbage(source.address, f"message {bad} of {request.topic}/{request.queue_id} is damaged there")
                self._count(chunk)
                yield chunk

    def _count(self, chunk: Chunk) -> None:
        if self.metrics is not None:
            self.metrics.chunk(chunk)

    async def _local_or_remote(
        self, source: Source, replica_group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        """The response, with frames from log files on this machine where that works, over the network where it does not."""
        try:
            async with contextlib.aclosing(self._response(source, replica_group, request, deadline)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    _advance(request, chunk)
                return
        except _FilesUnreadableError as reason:
            _logger.warning("cannot read log files of %s, fetching over the network: %s", source.node_id, reason)
            self._unreadable.add(source.address)
            request.in_place = False
        async with contextlib.aclosing(self._response(source, replica_group, request, deadline)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _response(
        self, source: Source, replica_group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        stream = self._take(source.address)
        request.request_id, self._next_id = self._next_id, self._next_id + 1
        whole, offset, task = False, request.offset, asyncio.current_task()
        self.asked[task] = source.address
        try:
            await _in_time(stream.write(request.SerializeToString()), source, deadline())
            while not whole:
                header, payload = await self._read(stream, source, deadline())
                if header.request_id != request.request_id:
                    raise garbage(source.address, "response to another fetch request")
                whole = header.end
                self._take_advice((replica_group, request.topic, request.queue_id), source, header.advised_replica)
                self._check_follows(source, replica_group, header)
                if header.HasField("error"):
                    raise from_detail(header.error)
                in_place = await self._fetched_in_place(header, payload) if header.pieces else None
                chunk = _chunk_of(request, replica_group, source, header, payload, in_place, offset)
                offset = chunk.next_offset
                yield chunk
        finally:
            self.asked.pop(task, None)
            await self._give_back(source.address, stream, whole=whole)

    def _check_follows(self, source: Source, replica_group: str, header: broker_pb2.FetchResponse) -> None:
        """A node that was taken for a follower may have become the leader: NotYetError, so that a follower is asked.  In the next round it
        is known as the leader, and comes last."""
        if header.master and not source.is_leader:
            self._router.cache.leader_is(replica_group, source.address)
            if self._read_from == "follower" and not source.pinned:
                raise NotYetError(f"{source.node_id} leads {replica_group} now, and followers are to be read")

    async def _fetched_in_place(self, header: broker_pb2.FetchResponse, payload: memoryview) -> _InPlace:
        """The frames of a response that has only their sizes and positions in the log: (offsets,) sizes, positions."""
        head_bytes = (12 if header.has_offsets else 4) * header.count
        if self._files is None or len(payload) != head_bytes + 8 * header.count:
            raise _FilesUnreadableError("unexpected form of response")
        places = np.frombuffer(payload, ">u8", header.count, head_bytes).astype(np.int64)
        sizes = np.frombuffer(payload, ">u4", header.count, head_bytes - 4 * header.count).astype(np.int64)
        try:
            frames = await asyncio.to_thread(self._files.frames, header.pieces, header.store_id, places, sizes)
        except OSError as error:
            raise _FilesUnreadableError(str(error)) from None
        return _InPlace(frames, places)

    def _take_advice(self, queue: tuple[str, str, int], source: Source, advised: str) -> None:
        """Remember which replica a leader recommends; a follower recommends to go back to the leader."""
        if advised and source.is_leader:
            self._advised[queue] = advised
        elif advised:
            self._advised.pop(queue, None)

    async def _read(self, stream: ByteStream, source: Source, left_s: float) -> tuple[broker_pb2.FetchResponse, memoryview]:
        try:
            message = await _in_time(stream.read(), source, left_s)
            if message is None:
                raise UnreachableError(f"{source.address}: the fetch stream ended", address=source.address)
        except UnreachableError:
            await self.leaders.in_turn()  # a node that dies ends the streams of all its queues in one turn of the loop
            raise
        return parse_envelope(broker_pb2.FetchResponse, message, source.address)

    def _take(self, address: str) -> ByteStream:
        self._router.watch()
        idle = self._idle.get(address)
        return idle.pop() if idle else methods.FETCH.open(self._router.channel(address))

    async def _give_back(self, address: str, stream: ByteStream, *, whole: bool) -> None:
        idle = self._idle.setdefault(address, [])
        if whole and len(idle) < self._idle_streams:
            idle.append(stream)
            return
        with contextlib.suppress(RuntimeError):  # a read that is freed after its loop ended: nothing is left to close
            asyncio.get_running_loop()
            self._closing.spawn(_close_quietly(stream), f"close stream to {address}")

    async def read(self, replica_group: str, request: broker_pb2.FetchRequest, deadline_ms: int) -> list[Chunk]:
        """The whole response to one request, from the first replica that gives it."""
        clock = self._router.clock
        failover = ReplicaFailover(clock, deadline_ms - clock.monotonic_ms(), request.wait_ms)
        async for attempt in until(deadline_ms, clock, self._router.random):
            with attempt:
                return await self._read_once(replica_group, request, failover)
        raise DeadlineExceededError("no attempt was made before the deadline")

    async def _read_once(self, replica_group: str, request: broker_pb2.FetchRequest, failover: ReplicaFailover) -> list[Chunk]:
        problem: DledgerError | None = None
        queue = (request.topic, request.queue_id)
        sources = failover.in_order(await self.sources(replica_group, failover.deadline_ms, None if request.linearizable else queue))
        for source in sources:
            try:
                return [chunk async for chunk in self.chunks(source, replica_group, request, partial(failover.left_s, source))]
            except DledgerError as error:
                self._advised.pop((replica_group, *queue), None)
                error = await self.judged(error, source, replica_group)
                problem = failover.failed(error, source, request.offset, is_last=source is sources[-1])
                if not (problem.retriable or problem.refresh_route):
                    raise problem from None
        await self.leaders.done(replica_group, self._left_s(failover.deadline_ms))
        raise problem or UnreachableError(f"replica group {replica_group} has no replica to read from")

    async def judged(self, error: DledgerError, source: Source, replica_group: str) -> DledgerError:
        """The error; a retriable one when the node lacks something, was taken for the leader and does not lead: it may lag."""
        lacks = isinstance(error, TopicNotFoundError | OffsetOutOfRangeError)
        if not lacks or not source.is_leader or await self._router.leaders.leads(replica_group, source.address):
            return error
        return NotYetError(f"{source.node_id}: {error.message} (it does not lead)")

    def _left_s(self, deadline_ms: int) -> float:
        return (deadline_ms - self._router.clock.monotonic_ms()) / 1000

    async def pause(self, replica_group: str, pause_ms: int) -> None:
        """Wait before all replicas are tried again, and look up the leader."""
        await asyncio.sleep(pause_ms / 1000)
        await self.leaders.done(replica_group, PAUSE_S)


def _only(node_id: str, known: list[Source], replica_group: str) -> Source:
    for source in known:
        if source.node_id == node_id:
            return source
    expected = ", ".join(source.node_id for source in known)
    raise InvalidArgumentError(f"no replica {node_id!r} in replica group {replica_group}; expected one of {expected}")


def _copied(request: broker_pb2.FetchRequest) -> broker_pb2.FetchRequest:
    copy = broker_pb2.FetchRequest()
    copy.CopyFrom(request)
    return copy


def _advance(request: broker_pb2.FetchRequest, chunk: Chunk) -> None:
    """Let the request continue behind a chunk."""
    request.offset = chunk.next_offset
    request.max_messages -= chunk.count if request.max_messages else 0


async def _close_quietly(stream: ByteStream) -> None:
    with contextlib.suppress(DledgerError):
        await stream.close()


async def _in_time(work: Coroutine[Any, Any, T], source: Source, left_s: float) -> T:
    try:
        async with asyncio.timeout(max(0.001, left_s)):
            return await work
    except TimeoutError:
        raise UnreachableError(f"{source.node_id} at {source.address} did not respond in time", address=source.address) from None


@dataclass(frozen=True, slots=True)
class _InPlace:
    """Frames from log files on this machine, and their expected positions in the log."""

    frames: memoryview
    places: npt.NDArray[np.int64]


def _are_at(chunk: Chunk, places: npt.NDArray[np.int64]) -> bool:
    """Whether each frame is the requested message."""
    heads = chunk.columns.heads
    wanted = (("queue_offset", chunk.offsets), ("physical_offset", places), ("total_size", chunk.sizes), ("queue_id", chunk.queue_id))
    return all(bool((heads[field] == value).all()) for field, value in wanted)


class _FilesUnreadableError(Exception):
    """Log files on this machine do not hold what their replica says; internal."""


def _chunk_of(
    request: broker_pb2.FetchRequest,
    replica_group: str,
    source: Source,
    header: broker_pb2.FetchResponse,
    payload: memoryview,
    in_place: _InPlace | None,
    offset: int,
) -> Chunk:
    """The chunk in a response.  UnreachableError when it does not continue at ``offset``, so that another replica is asked.

    _FilesUnreadableError when frames read ``in_place`` are not the requested messages.
    """
    place = ChunkPlace(request.topic, replica_group, request.queue_id, source.node_id)
    try:
        frames = None if in_place is None else in_place.frames
        chunk = decode_chunk(place, header, payload, bodiless=request.without_body, frames=frames)
        if in_place is not None and not _are_at(chunk, in_place.places):
            raise CorruptFrameError("the files hold other messages")
    except CorruptFrameError as error:
        if in_place is not None:
            raise _FilesUnreadableError(error.message) from None
        raise garbage(source.address, error.message) from None
    if chunk.count and not (offset <= chunk.offsets[0] and chunk.offsets[-1] < chunk.next_offset):
        raise garbage(source.address, f"messages {chunk.offsets[0]} to {chunk.offsets[-1]}, then {chunk.next_offset}; asked for {offset}")
    chunk.topic_epoch = header.incarnation or request.incarnation
    chunk.lag = ReplicaLag(header.lag_entries, header.leader_silent_ms if header.HasField("leader_silent_ms") else None)
    return chunk
