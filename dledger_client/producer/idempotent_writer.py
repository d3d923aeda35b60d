"""Writing encoded batch records under sequences that the caller chose, so that another process can repeat the whole write.

Owns one produce stream for each replica group, and the records not acknowledged on it.  A ``Producer`` gets its identity from the cluster
and numbers its messages itself.  Here producer id, epoch and first sequence of each record are the caller's: a process that sends the
same records under the same sequences stores nothing twice, and one with a later epoch fences all earlier ones.  The records of a queue
must come in the order of their sequences, from 0, cut the same way each time.

    broken stream, retriable error       reopened at the leader; every unacknowledged record is sent again, in order
    duplicate, or sequence already used  stored before, by this process or an earlier one
    any other error                      raised; what was stored stays
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from dledger_client.cluster.leader_stream import PRODUCE_SILENCE, LeaderStream
from dledger_client.cluster.responses import garbage
from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import HEADER_SIZE, BatchView, Sequence64, stamp_sequence
from dledger_wire.checksum import Buffer
from dledger_wire.errors import DledgerError, NotLeaderError, OutOfOrderSequenceError, UnreachableError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail

WINDOW_BYTES = 8 << 20  # unacknowledged on one stream


@dataclass(slots=True, eq=False)
class SequencedRecord:
    """A record to write.  Once acknowledged, ``first_offset`` is its offset; -1 when it was stored too long ago for the broker to know."""

    topic: str
    queue_id: int
    sequence: Sequence64
    count: int
    parts: list[Buffer]
    size_bytes: int
    first_offset: int = -1
    duplicate: bool = False


def sequenced(record: Buffer, sequence: Sequence64) -> SequencedRecord:
    """A record as ``encode_batch`` makes it, with its sequence."""
    whole = memoryview(record)
    view = BatchView(whole)
    parts: list[Buffer] = [bytearray(whole[:HEADER_SIZE]), whole[HEADER_SIZE:]]
    stamp_sequence(parts, sequence)
    return SequencedRecord(view.topic, view.queue_id, sequence, view.count, parts, len(whole))


@dataclass(slots=True)
class _Writes:
    """The records of one replica group: ``unsent`` have to be sent (again), ``unacknowledged`` wait for a response; both in order."""

    stream: LeaderStream
    unsent: deque[SequencedRecord] = field(default_factory=deque)
    unacknowledged: deque[tuple[int, SequencedRecord]] = field(default_factory=deque)
    size_bytes: int = 0


class IdempotentWriter:
    """Writes sequenced records to any replica group; for one task at a time and group.  ``timeout_ms``: without progress until it fails."""

    def __init__(self, router: Router, *, timeout_ms: int) -> None:
        self._router = router
        self._timeout_ms = timeout_ms
        self._writes: dict[str, _Writes] = {}
        self._next_request_id = 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for writes in self._writes.values():
            await writes.stream.close()

    async def send(self, replica_group: str, record: SequencedRecord) -> None:
        """Send a record to a queue of ``replica_group``; blocks while the window is full.  Raises the error of an earlier record."""
        writes = self._writes.get(replica_group)
        if writes is None:
            writes = self._writes[replica_group] = _Writes(LeaderStream(self._router, replica_group, methods.PRODUCE, PRODUCE_SILENCE))
        writes.unsent.append(record)
        writes.size_bytes += record.size_bytes
        await self._drain(writes, WINDOW_BYTES)

    async def flush(self, replica_group: str | None = None) -> None:
        """Return when everything is stored, of one replica group or of all."""
        for name, writes in list(self._writes.items()):  # another task may begin with another group meanwhile
            if replica_group in (None, name):
                await self._drain(writes, 0)

    async def discard(self) -> None:
        """Forget what is not acknowledged, after an error: it is not sent again.  Some of it may be stored."""
        for writes in self._writes.values():
            await writes.stream.close()
            writes.unsent.clear()
            writes.unacknowledged.clear()
            writes.size_bytes = 0

    async def _drain(self, writes: _Writes, max_bytes: int) -> None:
        """Write what is unsent, then read responses until at most ``max_bytes`` are unacknowledged."""
        clock, stream = self._router.clock, writes.stream
        deadline_ms = clock.monotonic_ms() + self._timeout_ms
        while writes.unsent or (writes.size_bytes > max_bytes and writes.unacknowledged):
            try:
                if not stream.is_open:
                    await self._router.ensure_group(stream.replica_group, clock.monotonic_ms() + self._timeout_ms)
                    await stream.locate()
                    stream.open()
                if writes.unsent:
                    await self._write(writes)
                else:
                    await self._read_response(writes, deadline_ms)
                    deadline_ms = clock.monotonic_ms() + self._timeout_ms
            except DledgerError as error:
                await self._reset(writes)
                if not (is_retriable(error) or error.outcome_unknown) or clock.monotonic_ms() >= deadline_ms:
                    raise
                await stream.back_off(error)

    async def _reset(self, writes: _Writes) -> None:
        """Close the stream; every unacknowledged record is to be sent again."""
        writes.unsent.extendleft(record for _, record in reversed(writes.unacknowledged))
        writes.unacknowledged.clear()
        writes.stream.suspect()
        await writes.stream.close()

    async def _write(self, writes: _Writes) -> None:
        record = writes.unsent.popleft()
        request_id, self._next_request_id = self._next_request_id, self._next_request_id + 1
        writes.unacknowledged.append((request_id, record))
        await writes.stream.write(envelope.encode(broker_pb2.ProduceRequest(request_id=request_id), record.parts))

    async def _read_response(self, writes: _Writes, deadline_ms: int) -> None:
        stream = writes.stream
        response = await self._next_response(stream, deadline_ms)
        request_id, record = writes.unacknowledged[0]
        if response.request_id != request_id or len(response.results) != 1:
            raise garbage(stream.address, "a produce response to another request")
        result = response.results[0]
        error: DledgerError | None = None
        if result.HasField("error"):
            error = self._error_of(stream.replica_group, record, from_detail(result.error))
            if error is not None and (is_retriable(error) or error.outcome_unknown):
                raise error
        else:
            record.first_offset, record.duplicate = result.first_queue_offset, result.duplicate
        writes.unacknowledged.popleft()
        writes.size_bytes -= record.size_bytes
        stream.confirm()
        if error is not None:
            raise error

    async def _next_response(self, stream: LeaderStream, deadline_ms: int) -> broker_pb2.ProduceResponse:
        """The next response that is a result; others only report what the leader waits for."""
        while True:
            response = methods.PRODUCE.parse_response(await stream.read_until(deadline_ms), stream.address)
            if not response.waiting_for:
                return response
            if self._router.clock.monotonic_ms() >= deadline_ms:
                raise UnreachableError(
                    f"replica group {stream.replica_group}: not acknowledged in time ({response.waiting_for}: {response.waiting_nodes})"
                )

    def _error_of(self, replica_group: str, record: SequencedRecord, error: DledgerError) -> DledgerError | None:
        """The error to raise for a refused record; None when the refusal says that it is stored."""
        if isinstance(error, OutOfOrderSequenceError):
            if error.detail_int("expected") >= record.sequence.first_sequence + record.count:
                record.duplicate = True
                return None
            return OutOfOrderSequenceError(
                f"{error.message}; group {replica_group} has forgotten this write, it cannot be resumed: the topic was deleted and created "
                "again, or too many producers (10000) stored meanwhile",
                **error.details,
            )
        if isinstance(error, NotLeaderError):
            self._router.cache.leader_is(replica_group, error.leader_address)
        return error
