"""Reading from replicas: which one, over which stream, and what to do when it does not answer.

Owns the fetch streams of one consumer and which replicas are tried; ``attempts.py`` says what to make of those that fail.
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

from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import garbage, parse_envelope
from dledger_client.cluster.retry import until
from dledger_client.fetch.local_log_reader import LogFiles
from dledger_client.fetch.records import Chunk, ReplicaLag, decode_chunk
from dledger_client.fetch.replica_attempts import Attempts, Source
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import (
    CorruptFrameError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    UnreachableError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream

READ_FROM = ("leader", "follower", "any")
IDLE_STREAMS = 4

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Replicas:
    """Fetches for one consumer, on its loop."""

    def __init__(
        self,
        router: Router,
        read_from: str,
        replica: str | None,
        near: frozenset[str] = frozenset(),
        *,
        idle_streams: int = IDLE_STREAMS,
        files: LogFiles | None = None,
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
        self._unreadable: set[str] = set()  # replicas near by whose files are not to be read from here
        self._idle: dict[str, list[ByteStream]] = {}
        self._idle_streams = idle_streams
        self._next_id = 1
        self._turn = router.random.randrange(0, 1 << 16)
        self._advised: dict[tuple[str, int], str] = {}  # of queues that are better read elsewhere than at their leader

    async def close(self) -> None:
        if self._files is not None:
            await asyncio.to_thread(self._files.close)
        streams = [stream for idle in self._idle.values() for stream in idle]
        self._idle.clear()
        for stream in streams:
            with contextlib.suppress(DledgerError):
                await stream.close()

    async def sources(self, group: str, deadline_ms: int, queue: tuple[str, int] | None = None) -> list[Source]:
        """The replicas to try, in order: those on a near host first.  The leader comes last when followers are wanted, or when it advised
        to read a ``queue`` elsewhere."""
        view = await self._router.ensure_group(group, deadline_ms)
        if self._read_from == "leader" and self._replica is None and not view.leader_address:
            view = await self._router.find_leader(group)
        if self._replica is not None and all(node.id != self._replica for node in view.nodes):
            await self._look_around(group)  # it may have become a member since
            view = self._router.groups[group]
        known = [Source(node.id, node.address, node.address == view.leader_address) for node in view.nodes]
        if self._replica is not None:
            found = [source for source in known if source.node_id == self._replica]
            if not found:
                raise InvalidArgumentError(
                    f"no replica {self._replica!r} in group {group}; expected one of {', '.join(s.node_id for s in known)}"
                )
            return [replace(source, pinned=True) for source in found]
        self._turn += 1
        leaders = [source for source in known if source.is_leader]
        followers = [source for source in known if not source.is_leader]
        if self._read_from == "leader":
            advised = self._advised.get(queue) if queue is not None else None
            return [source for source in followers if source.node_id == advised] + leaders
        if self._read_from == "follower":
            return self._in_turn(followers) + leaders
        return self._in_turn(leaders + followers)

    def _in_turn(self, sources: list[Source]) -> list[Source]:
        turned = [sources[(place + self._turn) % len(sources)] for place in range(len(sources))]
        return sorted(turned, key=lambda source: not self._is_near(source)) if self._near else turned

    def _is_near(self, source: Source) -> bool:
        return source.address.rpartition(":")[0] in self._near

    async def chunks(
        self, source: Source, group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        """The answer of one replica to one request, every message in it checked.  ``deadline``: seconds left for the next chunk.

        A replica that gives out a damaged message is asked once to put it right from a peer; UnreachableError when it cannot.  One that is
        not to be mended is told by CorruptFrameError.
        """
        given, request = request, broker_pb2.FetchRequest()
        request.CopyFrom(given)  # what has been read of it is noted here; whoever asks another replica begins with his own
        reachable = self._files is not None and self._is_near(source) and source.address not in self._unreadable
        request.in_place = reachable and not request.without_body  # those are not even read whole
        again = broker_pb2.FetchRequest()
        again.CopyFrom(request)
        try:
            async with contextlib.aclosing(self._answer_here(source, group, request, deadline)) as answer:
                async for chunk in answer:
                    bad = chunk.damaged_offset()
                    if bad is not None:
                        damage = f"message {bad} is damaged"
                        break
                    again.offset = chunk.next_offset
                    again.max_messages -= chunk.count if request.max_messages else 0
                    yield chunk
                else:
                    return
        except CorruptFrameError as error:  # it could not make an answer of what it has
            damage = error.message
        damage = f"{source.node_id}: {request.topic}/{request.queue_id}: {damage}"
        if not self._repair:
            raise CorruptFrameError(damage)
        _logger.warning("%s; asking it to look", damage)
        again.verify, again.in_place = True, False
        async with contextlib.aclosing(self._answer(source, group, again, deadline)) as answer:
            async for chunk in answer:
                bad = chunk.damaged_offset()
                if bad is not None:
                    raise garbage(source.address, f"message {bad} of {request.topic}/{request.queue_id} is damaged there")
                yield chunk

    async def _answer_here(
        self, source: Source, group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        """The answer, with frames out of files on this machine where that works, over the network where it does not."""
        try:
            async with contextlib.aclosing(self._answer(source, group, request, deadline)) as answer:
                async for chunk in answer:
                    yield chunk
                    request.offset = chunk.next_offset
                    request.max_messages -= chunk.count if request.max_messages else 0
                return
        except _FilesUnreadableError as reason:
            _logger.warning("log files of %s cannot be read here, its messages come over the network: %s", source.node_id, reason)
            self._unreadable.add(source.address)
            request.in_place = False
        async with contextlib.aclosing(self._answer(source, group, request, deadline)) as answer:
            async for chunk in answer:
                yield chunk

    async def _answer(
        self, source: Source, group: str, request: broker_pb2.FetchRequest, deadline: Callable[[], float]
    ) -> AsyncGenerator[Chunk]:
        stream = self._take(source.address)
        request.request_id, self._next_id = self._next_id, self._next_id + 1
        whole, offset = False, request.offset
        try:
            await _in_time(stream.write(request.SerializeToString()), source, deadline())
            while not whole:
                header, payload = await self._read(stream, source, deadline())
                if header.request_id != request.request_id:
                    raise garbage(source.address, "a fetch answer to another request")
                whole = header.end
                self._heed(request, source, header.advised_replica)
                if header.HasField("error"):
                    raise from_detail(header.error)
                in_place = await self._fetched_in_place(header, payload) if header.pieces else None
                chunk = _chunk_of(request, group, source, header, payload, in_place, offset)
                offset = chunk.next_offset
                yield chunk
        finally:
            await self._give_back(source.address, stream, whole=whole)

    async def _fetched_in_place(self, header: broker_pb2.FetchResponse, payload: memoryview) -> _InPlace:
        """The frames of an answer that tells only their places: (offsets,) sizes, places."""
        head_bytes = (12 if header.has_offsets else 4) * header.count
        if self._files is None or len(payload) != head_bytes + 8 * header.count:
            raise _FilesUnreadableError("an answer of another form than asked for")
        places = np.frombuffer(payload, ">u8", header.count, head_bytes).astype(np.int64)
        sizes = np.frombuffer(payload, ">u4", header.count, head_bytes - 4 * header.count).astype(np.int64)
        try:
            frames = await asyncio.to_thread(self._files.frames, header.pieces, header.store_id, places, sizes)
        except OSError as error:
            raise _FilesUnreadableError(str(error)) from None
        return _InPlace(frames, places)

    def _heed(self, request: broker_pb2.FetchRequest, source: Source, advised: str) -> None:
        """Take the advice of an answer; a follower's is to go back to the leader."""
        if advised and source.is_leader:
            self._advised[request.topic, request.queue_id] = advised
        elif advised:
            self._advised.pop((request.topic, request.queue_id), None)

    async def _read(self, stream: ByteStream, source: Source, left_s: float) -> tuple[broker_pb2.FetchResponse, memoryview]:
        message = await _in_time(stream.read(), source, left_s)
        if message is None:
            raise UnreachableError(f"{source.address}: the fetch stream ended", address=source.address)
        return parse_envelope(broker_pb2.FetchResponse, message, source.address)

    def _take(self, address: str) -> ByteStream:
        idle = self._idle.get(address)
        return idle.pop() if idle else methods.FETCH.open(self._router.channel(address))

    async def _give_back(self, address: str, stream: ByteStream, *, whole: bool) -> None:
        idle = self._idle.setdefault(address, [])
        if whole and len(idle) < self._idle_streams:
            idle.append(stream)
            return
        closing = asyncio.ensure_future(stream.close())
        closing.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)

    async def read(self, group: str, request: broker_pb2.FetchRequest, deadline_ms: int) -> list[Chunk]:
        """The whole answer to one request, from the first replica that can give it."""
        clock = self._router.clock
        attempts = Attempts(clock, deadline_ms - clock.monotonic_ms(), request.wait_ms)
        async for attempt in until(deadline_ms, clock, self._router.random):
            with attempt:
                return await self._read_once(group, request, attempts)
        raise DeadlineExceededError("no attempt was made before the deadline")

    async def _read_once(self, group: str, request: broker_pb2.FetchRequest, attempts: Attempts) -> list[Chunk]:
        problem: DledgerError | None = None
        queue = (request.topic, request.queue_id)
        sources = attempts.in_order(await self.sources(group, attempts.deadline_ms, None if request.linearizable else queue))
        for source in sources:
            try:
                return [chunk async for chunk in self.chunks(source, group, request, partial(attempts.left_s, source))]
            except DledgerError as error:
                self._advised.pop(queue, None)
                problem = attempts.failed(error, source, request.offset, is_last=source is sources[-1])
                if not (problem.retriable or problem.refresh_route):
                    raise problem from None
        await self._look_around(group)
        raise problem or UnreachableError(f"group {group} has no replica to read from")

    async def _look_around(self, group: str) -> None:
        """Others may lead now, or be members."""
        with contextlib.suppress(DledgerError):
            await self._router.find_leader(group)

    async def rest(self, group: str, pause_ms: int) -> None:
        """Before all replicas are tried again: a pause, and a look at who leads."""
        await asyncio.sleep(pause_ms / 1000)
        await self._look_around(group)


async def _in_time(work: Coroutine[Any, Any, T], source: Source, left_s: float) -> T:
    try:
        async with asyncio.timeout(max(0.001, left_s)):
            return await work
    except TimeoutError:
        raise UnreachableError(f"{source.node_id} at {source.address} did not answer in time", address=source.address) from None


@dataclass(frozen=True, slots=True)
class _InPlace:
    """Frames out of log files on this machine, and the log positions they should say they have."""

    frames: memoryview
    places: npt.NDArray[np.int64]


def _are_at(chunk: Chunk, places: npt.NDArray[np.int64]) -> bool:
    """Whether each frame says that it is the message asked for."""
    heads = chunk.columns.heads
    wanted = (("queue_offset", chunk.offsets), ("physical_offset", places), ("total_size", chunk.sizes), ("queue_id", chunk.queue_id))
    return all(bool((heads[field] == value).all()) for field, value in wanted)


class _FilesUnreadableError(Exception):
    """Log files on this machine do not give what their replica says is there; never seen outside."""


def _chunk_of(
    request: broker_pb2.FetchRequest,
    group: str,
    source: Source,
    header: broker_pb2.FetchResponse,
    payload: memoryview,
    in_place: _InPlace | None,
    offset: int,
) -> Chunk:
    """The chunk in an answer; UnreachableError when it is none that goes on at ``offset``, so that another replica is asked.

    Frames read ``in_place`` must be the very messages: _FilesUnreadableError.
    """
    try:
        chunk = decode_chunk(
            request.topic,
            group,
            request.queue_id,
            source.node_id,
            count=header.count,
            first_offset=header.first_offset,
            has_offsets=header.has_offsets,
            payload=payload,
            next_offset=header.next_offset,
            max_offset=header.max_offset,
            bodiless=request.without_body,
            frames=None if in_place is None else in_place.frames,
        )
        if in_place is not None and not _are_at(chunk, in_place.places):
            raise CorruptFrameError("other messages are there")
    except CorruptFrameError as error:
        if in_place is not None:
            raise _FilesUnreadableError(error.message) from None
        raise garbage(source.address, error.message) from None
    if chunk.count and not (offset <= chunk.offsets[0] and chunk.offsets[-1] < chunk.next_offset):
        raise garbage(source.address, f"messages {chunk.offsets[0]} to {chunk.offsets[-1]}, then {chunk.next_offset}; asked for {offset}")
    chunk.lag = ReplicaLag(header.lag_entries, header.leader_silent_ms if header.HasField("leader_silent_ms") else None)
    return chunk
