"""Sending ready batch records under numbers that the caller chose: what makes a whole write repeatable by somebody else.

Owns one produce stream a replica group and what is unanswered on it.  A producer gets its identity from the cluster and numbers what it is
given; here producer id, epoch and the first number of each record are the caller's, so another process that sends the same records under
the same numbers stores nothing twice, and one that comes with a later epoch fences off everybody with an earlier one.  Records of one
queue must come in the order of their numbers, from 0, cut the same way each time.

    broken stream, retriable refusal     the leader is looked for, everything unanswered is sent again in order
    duplicate, or numbers behind us      stored before, by us or by a predecessor
    any other refusal                    raised; what was stored stays
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import garbage, parse
from dledger_client.cluster.retry import JitteredBackoff, is_retriable
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import HEADER_SIZE, BatchView, Sequence64, stamp_sequence
from dledger_wire.checksum import Buffer
from dledger_wire.errors import BusyError, DledgerError, NotLeaderError, OutOfOrderSequenceError, UnreachableError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream

WINDOW_BYTES = 8 << 20  # unanswered on one stream
SILENCE_S = 1.0
CLOSE_TIMEOUT_S = 1.0


@dataclass(slots=True, eq=False)
class SequencedRecord:
    """A record on its way.  Once answered, ``first_offset`` tells where it is; -1 when a predecessor stored it too long ago to say."""

    topic: str
    queue_id: int
    sequence: Sequence64
    count: int
    parts: list[Buffer]
    size_bytes: int
    first_offset: int = -1
    duplicate: bool = False


def sequenced(record: Buffer, sequence: Sequence64) -> SequencedRecord:
    """A record as ``encode_batch`` makes it, with its number."""
    whole = memoryview(record)
    view = BatchView(whole)
    parts: list[Buffer] = [bytearray(whole[:HEADER_SIZE]), whole[HEADER_SIZE:]]
    stamp_sequence(parts, sequence)
    return SequencedRecord(view.topic, view.queue_id, sequence, view.count, parts, len(whole))


@dataclass(slots=True)
class _Stream:
    """One group's stream: ``unwritten`` is to be (re)sent, ``written`` waits for its answer; both in order."""

    group: str
    unwritten: deque[SequencedRecord] = field(default_factory=deque)
    written: deque[tuple[int, SequencedRecord]] = field(default_factory=deque)
    size_bytes: int = 0
    open: ByteStream | None = None
    address: str = ""
    failed_address: str = ""
    failed_term: int = 0


class IdempotentWriter:
    """Sends numbered records to any group.  ``timeout_ms``: how long without any progress until it gives up.  For one task at a time."""

    def __init__(self, router: Router, *, timeout_ms: int) -> None:
        self._router = router
        self._timeout_ms = timeout_ms
        self._streams: dict[str, _Stream] = {}
        self._next_request_id = 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in self._streams.values():
            await self._drop(stream)

    async def send(self, group: str, record: SequencedRecord) -> None:
        """Send a record to a queue of ``group``; waits while too much is unanswered.  Raises what an earlier record was refused with."""
        stream = self._streams.get(group)
        if stream is None:
            stream = self._streams[group] = _Stream(group)
        stream.unwritten.append(record)
        stream.size_bytes += record.size_bytes
        await self._settle(stream, WINDOW_BYTES)

    async def flush(self) -> None:
        """Return when everything is stored."""
        for stream in self._streams.values():
            await self._settle(stream, 0)

    async def _settle(self, stream: _Stream, most_bytes: int) -> None:
        """Write what is unwritten, then take answers until at most ``most_bytes`` are unanswered."""
        clock, pauses, failures = self._router.clock, JitteredBackoff(self._router.random), 0
        deadline_ms = clock.monotonic_ms() + self._timeout_ms
        while stream.unwritten or (stream.size_bytes > most_bytes and stream.written):
            try:
                if stream.open is None:
                    await self._open(stream)
                if stream.unwritten:
                    await self._write(stream)
                else:
                    await self._take_answer(stream, deadline_ms)
                    deadline_ms, failures = clock.monotonic_ms() + self._timeout_ms, 0
            except DledgerError as error:
                await self._drop(stream)
                if not (is_retriable(error) or error.outcome_unknown) or clock.monotonic_ms() >= deadline_ms:
                    raise
                failures += 1
                await asyncio.sleep(pauses.pause_ms(failures, busy=isinstance(error, BusyError)) / 1000)

    async def _open(self, stream: _Stream) -> None:
        view = (await self._router.ensure_groups(self._router.clock.monotonic_ms() + self._timeout_ms)).get(stream.group)
        failed = stream.failed_address
        if view is None or not view.leader_address or (failed and view.leader_address == failed and view.term <= stream.failed_term):
            view = await self._router.find_leader(stream.group, failed, stream.failed_term)
        stream.address, stream.failed_term = view.leader_address, view.term
        stream.open = methods.PRODUCE.open(self._router.channel(view.leader_address))

    async def _drop(self, stream: _Stream) -> None:
        """Give the stream up; everything unanswered is to be sent again."""
        stream.failed_address = stream.address
        stream.unwritten.extendleft(record for _, record in reversed(stream.written))
        stream.written.clear()
        if stream.open is not None:
            closing, stream.open = stream.open, None
            with contextlib.suppress(TimeoutError, DledgerError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await closing.close()

    async def _write(self, stream: _Stream) -> None:
        record = stream.unwritten.popleft()
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        stream.written.append((request_id, record))
        await self._opened(stream).write(envelope.encode(broker_pb2.ProduceRequest(request_id=request_id), record.parts))

    def _opened(self, stream: _Stream) -> ByteStream:
        if stream.open is None:
            raise UnreachableError(f"{stream.address}: the produce stream is closed", address=stream.address)
        return stream.open

    async def _take_answer(self, stream: _Stream, deadline_ms: int) -> None:
        message = await self._read(stream, deadline_ms)
        response = parse(broker_pb2.ProduceResponse, message, stream.address)
        request_id, record = stream.written[0]
        if response.request_id != request_id or len(response.results) != 1:
            raise garbage(stream.address, "a produce answer to another request")
        result = response.results[0]
        refusal: DledgerError | None = None
        if result.HasField("error"):
            refusal = self._refusal(stream, record, from_detail(result.error))
            if refusal is not None and (is_retriable(refusal) or refusal.outcome_unknown):
                raise refusal
        else:
            record.first_offset, record.duplicate = result.first_queue_offset, result.duplicate
        stream.written.popleft()
        stream.size_bytes -= record.size_bytes
        stream.failed_address = ""
        if refusal is not None:
            raise refusal

    def _refusal(self, stream: _Stream, record: SequencedRecord, error: DledgerError) -> DledgerError | None:
        """What a record was refused with; None when that only tells that it is stored."""
        if isinstance(error, OutOfOrderSequenceError):
            if error.detail_int("expected") >= record.sequence.first_sequence + record.count:
                record.duplicate = True
                return None
            return OutOfOrderSequenceError(
                f"{error.message}; group {stream.group} has forgotten this write (its producers' table is bounded), it cannot be resumed",
                **error.details,
            )
        if isinstance(error, NotLeaderError):
            self._router.leader_is(stream.group, error.leader_address)
        return error

    async def _read(self, stream: _Stream, deadline_ms: int) -> bytes:
        """The next message.  A leader that says nothing for long may be one no more: a paused process keeps its connections."""
        reading = asyncio.ensure_future(self._opened(stream).read())
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=SILENCE_S)
                if reading.done():
                    break
                if (await self._router.find_leader(stream.group)).leader_address != stream.address:
                    raise UnreachableError(f"{stream.address} is silent and another one leads now", address=stream.address)
                if self._router.clock.monotonic_ms() >= deadline_ms:
                    raise UnreachableError(f"{stream.address} did not answer in time", address=stream.address)
            message = reading.result()
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        if message is None:
            raise UnreachableError(f"{stream.address}: the produce stream ended", address=stream.address)
        return message
