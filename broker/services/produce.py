"""The Produce stream: batches in, results out as they commit.

Owns what is in flight on one stream: requests are checked and proposed as they arrive, answered in the order they came, and bounded by
bytes, so that a client that sends faster than the group commits is slowed down by the stream's own flow control.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from broker.services.face import ServiceFace
from broker.services.send_status import waiting_for
from dledger.core.types import EntryId
from dledger_wire import envelope
from dledger_wire._pb import broker_pb2
from dledger_wire.batch import COMMAND_HEADER_SIZE
from dledger_wire.error_detail import to_detail
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import ByteStream, CallContext, Server
from store.message_log import BatchOutcome

METHOD = "/dledger.v1.Broker/Produce"
STREAM_BYTES = 16 << 20  # in flight on one stream
STREAM_REQUESTS = 4096


@dataclass(slots=True)
class _Pending:
    """A request on its way: ``outcomes`` count once ``committed`` has resolved; ``refusal`` is why the whole of it was not accepted."""

    request_id: int
    size_bytes: int
    outcomes: list[BatchOutcome]
    committed: asyncio.Future[EntryId] | None
    refusal: DledgerError | None = None


class ProduceService:
    """Takes batches on the master."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        server.add_stream(METHOD, self.produce)

    async def produce(self, stream: ByteStream, _context: CallContext) -> None:
        lane = _Lane(self._face, stream)
        answers = asyncio.get_running_loop().create_task(lane.answer(), name="produce answers")
        try:
            while (message := await stream.read()) is not None:
                await self._face.raft.wait_for_room()
                lane.accept(message)
                if lane.is_full:
                    await lane.room()
                if answers.done():
                    break
            lane.finish()
            await answers
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)  # how it ended matters to nobody: the stream did


class _Lane:
    """One stream's requests, oldest first."""

    def __init__(self, face: ServiceFace, stream: ByteStream) -> None:
        self._face = face
        self._stream = stream
        self._pending: deque[_Pending] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._left = asyncio.Event()
        self._finished = False
        self._timeout_s = face.settings.cluster.store.syncFlushTimeout / 1000

    @property
    def is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES or len(self._pending) >= STREAM_REQUESTS

    async def room(self) -> None:
        """Wait until there is room again, or the answers ended."""
        while self.is_full and not self._finished:
            self._left.clear()
            await self._left.wait()

    def finish(self) -> None:
        """No more requests come: the answers end with the last one."""
        self._finished = True
        self._arrived.set()

    def accept(self, message: bytes) -> None:
        """Check a request and propose what it holds.  InvalidArgumentError ends the stream: these bytes are no request."""
        header, payload = envelope.decode(broker_pb2.ProduceRequest, message)
        pending = _Pending(header.request_id, len(message), [], None)
        try:
            self._face.require_master()
            prepared = self._face.store.prepare(payload)
        except DledgerError as error:
            pending.refusal = error
            pending.outcomes = [BatchOutcome() for _ in range(count_records(payload))]
        else:
            pending.outcomes = prepared.outcomes
            if prepared.size_bytes:
                pending.committed = self._face.raft.propose(prepared)
        self._pending.append(pending)
        self._bytes += pending.size_bytes
        self._arrived.set()

    async def answer(self) -> None:
        """Answer each request once it is known what became of it."""
        try:
            while True:
                while not self._pending:
                    if self._finished:
                        return
                    self._arrived.clear()
                    await self._arrived.wait()
                pending = self._pending[0]
                if pending.committed is not None:
                    while not await _settle(pending, pending.committed, self._timeout_s):
                        waiting = broker_pb2.ProduceResponse(request_id=pending.request_id, waiting_for=waiting_for(self._face).value)
                        await self._stream.write(waiting.SerializeToString())
                await self._stream.write(_response(pending))
                self._pending.popleft()
                self._bytes -= pending.size_bytes
                self._left.set()
        finally:
            self._finished = True
            self._left.set()
            for pending in self._pending:
                if pending.committed is not None:
                    pending.committed.add_done_callback(_forget)


async def _settle(pending: _Pending, committed: asyncio.Future[EntryId], timeout_s: float) -> bool:
    """Wait for the log's decision; False when there is none in time."""
    if not committed.done():
        # Not for the future itself: a stream that breaks must not call the write back.
        await asyncio.wait([committed], timeout=timeout_s)
        if not committed.done():
            return False
    error = committed.exception()
    if error is not None and not isinstance(error, DledgerError):
        raise error
    pending.refusal = error
    return True


def _forget(committed: asyncio.Future[EntryId]) -> None:
    """Nobody waits for this answer any more."""
    if not committed.cancelled():
        committed.exception()


def _response(pending: _Pending) -> bytes:
    response = broker_pb2.ProduceResponse(request_id=pending.request_id)
    refusal = to_detail(pending.refusal) if pending.refusal is not None else None
    for outcome in pending.outcomes:
        if outcome.error is not None:
            response.results.add(error=to_detail(outcome.error))
        elif refusal is not None:
            response.results.add(error=refusal)
        else:
            response.results.add(
                first_queue_offset=outcome.first_queue_offset,
                physical_offset=outcome.physical_offset,
                store_timestamp_ms=outcome.store_timestamp,
                duplicate=outcome.duplicate,
            )
    return response.SerializeToString()


def count_records(payload: memoryview) -> int:
    """How many records a payload holds by their sizes, at least one: a refusal must answer for each without checking any."""
    count = at = 0
    while at + COMMAND_HEADER_SIZE <= len(payload):
        size = int.from_bytes(payload[at + 4 : at + 8], "big")
        if size < COMMAND_HEADER_SIZE:
            break
        count, at = count + 1, at + size
    return max(1, count)
