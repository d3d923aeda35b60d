"""The Produce stream: batches in, results out as they commit.

Owns what is in flight on one stream: requests are checked and proposed as they arrive, answered in arrival order, and bounded by bytes, so
that the stream's flow control slows down a client that sends faster than the group commits.  A request of many small batches is checked
and proposed in slices, so that other work runs between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial

from broker.api.limits import at_most
from broker.api.send_status import waiting_for
from broker.context import ServiceContext
from broker.measures import OK, method_name
from dledger.core.types import EntryId
from dledger_wire._pb import broker_pb2
from dledger_wire.batches.batch import COMMAND_HEADER_SIZE
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import ByteStream, CallContext, Server
from dledger_wire.security.principal import Principal
from store.append.message_log import BatchOutcome
from store.commands.security import Action

STREAM_BYTES = 16 << 20  # in flight on one stream
STREAM_REQUESTS = 4096
LOOK_S = 1.0  # how often a request that waits looks whether the disk is full
MAX_BATCHES = 10_000  # of one request
_NAME = method_name(methods.PRODUCE.path)
SLICE_BATCHES, SLICE_BYTES = 200, 8 << 20  # checked and proposed without a pause


@dataclass(slots=True)
class _Slice:
    """Batches proposed together: ``outcomes`` are valid once ``committed`` has resolved; ``refusal`` is why none of them was accepted."""

    outcomes: list[BatchOutcome]
    committed: asyncio.Future[EntryId] | None = None
    refusal: DledgerError | None = None


@dataclass(slots=True)
class _Pending:
    """A request in progress."""

    request_id: int
    size_bytes: int
    slices: list[_Slice]
    since_s: float

    @property
    def code(self) -> str:
        """Of the first batch that was refused, OK when none was."""
        refusals = (part.refusal or next((each.error for each in part.outcomes if each.error is not None), None) for part in self.slices)
        return next((refusal.code for refusal in refusals if refusal is not None), OK)


class ProduceService:
    """Takes batches on the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.PRODUCE.serve(server, self.produce)

    async def produce(self, stream: ByteStream, caller: CallContext) -> None:
        requests, measures = _ProduceStream(self._context, stream, caller.principal), self._context.measures
        answers = asyncio.get_running_loop().create_task(requests.answer(), name="produce answers")
        try:
            while (message := await stream.read()) is not None:
                began_s = measures.stopwatch()
                await self._context.raft.wait_for_room()
                measures.backpressure_s += measures.stopwatch() - began_s
                await requests.accept(message)
                if requests.is_full:
                    began_s = measures.stopwatch()
                    await requests.room()
                    measures.backpressure_s += measures.stopwatch() - began_s
                if answers.done():
                    break
            requests.finish()
            await answers
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)  # its outcome does not matter: the stream has ended


class _ProduceStream:
    """One stream's requests, oldest first."""

    def __init__(self, context: ServiceContext, stream: ByteStream, caller: Principal) -> None:
        self._context, self._measures = context, context.measures
        self._stream = stream
        self._check_writer = partial(context.access.require_topic, caller, Action.WRITE)
        self._check_producer = partial(context.access.require_producer, caller)
        self._pending: deque[_Pending] = deque()
        self._bytes = 0
        self._accepted = asyncio.Event()
        self._answered = asyncio.Event()
        self._finished = False
        self._timeout_s = context.settings.cluster.store.syncFlushTimeout / 1000

    @property
    def is_full(self) -> bool:
        return self._bytes >= STREAM_BYTES or len(self._pending) >= STREAM_REQUESTS

    async def room(self) -> None:
        """Wait until there is room again, or answering ended."""
        while self.is_full and not self._finished:
            self._answered.clear()
            await self._answered.wait()

    def finish(self) -> None:
        """No more requests follow: answering ends with the last one."""
        self._finished = True
        self._accepted.set()

    async def accept(self, message: bytes) -> None:
        """Check a request and propose what it holds.  InvalidArgumentError ends the stream: no request, or too many batches."""
        header, payload = envelope.decode(broker_pb2.ProduceRequest, message)
        pending = _Pending(header.request_id, len(message), [], self._measures.stopwatch())
        for first, end, count in slices_of(payload):
            if pending.slices:
                await asyncio.sleep(0)
            pending.slices.append(self._proposed(payload[first:end], count))
        self._pending.append(pending)
        self._bytes += pending.size_bytes
        self._accepted.set()

    def _proposed(self, payload: memoryview, count: int) -> _Slice:
        try:
            self._context.require_master()
            self._context.require_disk_room()
            prepared = self._context.store.prepare(payload, check_writer=self._check_writer, check_producer=self._check_producer)
        except DledgerError as error:
            return _Slice([BatchOutcome() for _ in range(count)], refusal=error)
        part = _Slice(prepared.outcomes)
        if prepared.size_bytes:
            part.committed = self._context.raft.propose(prepared)
            part.committed.add_done_callback(_forget)
        return part

    async def answer(self) -> None:
        """Answer each request once its outcome is known."""
        try:
            while True:
                while not self._pending:
                    if self._finished:
                        return
                    self._accepted.clear()
                    await self._accepted.wait()
                pending = self._pending[0]
                for part in pending.slices:
                    while part.committed is not None and not await self._settled(part, part.committed):
                        waiting = broker_pb2.ProduceResponse(request_id=pending.request_id, waiting_for=waiting_for(self._context).value)
                        await self._stream.write(methods.encode(waiting))
                self._measures.request(_NAME, pending.code, self._measures.stopwatch() - pending.since_s)
                await self._stream.write(_response(pending))
                self._pending.popleft()
                self._bytes -= pending.size_bytes
                self._answered.set()
        finally:
            self._finished = True
            self._answered.set()

    async def _settled(self, part: _Slice, committed: asyncio.Future[EntryId]) -> bool:
        """Wait for the log's decision; False when the client is to be told what it waits for: after a while, and on a full disk at once."""
        waited_s, look_s = 0.0, min(LOOK_S, self._timeout_s)
        while not await _settle(part, committed, look_s):
            waited_s += look_s
            if waited_s >= self._timeout_s or self._context.is_out_of_disk:
                return False
        return True


async def _settle(part: _Slice, committed: asyncio.Future[EntryId], timeout_s: float) -> bool:
    """Wait for the log's decision; False when there is none in time."""
    if not committed.done():
        # asyncio.wait does not cancel the future: a stream that breaks must not cancel the write.
        await asyncio.wait([committed], timeout=timeout_s)
        if not committed.done():
            return False
    error = committed.exception()
    if error is not None and not isinstance(error, DledgerError):
        raise error
    part.refusal = error
    return True


def _forget(committed: asyncio.Future[EntryId]) -> None:
    """A broken stream no longer awaits the outcome; consume the exception."""
    if not committed.cancelled():
        committed.exception()


def _response(pending: _Pending) -> bytes:
    response = broker_pb2.ProduceResponse(request_id=pending.request_id)
    for part in pending.slices:
        refusal = to_detail(part.refusal) if part.refusal is not None else None
        for outcome in part.outcomes:
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
    return methods.encode(response)


def slices_of(payload: memoryview) -> list[tuple[int, int, int]]:
    """(first byte, end, records) of the slices of a payload, by its records' sizes; the records are not checked here.

    A refusal must answer for each record, so there is always one slice.  InvalidArgumentError for too many records.
    """
    found: list[tuple[int, int, int]] = []
    first = at = count = total = 0
    while at + COMMAND_HEADER_SIZE <= len(payload):
        size = int.from_bytes(payload[at + 4 : at + 8], "big")
        if size < COMMAND_HEADER_SIZE:
            break
        at_most(total := total + 1, "batches", MAX_BATCHES)
        if count and (count >= SLICE_BATCHES or at + size - first > SLICE_BYTES):
            found.append((first, at, count))
            first, count = at, 0
        count, at = count + 1, at + size
    found.append((first, len(payload), max(1, count)))  # trailing bytes that are no record are refused with the last slice
    return found
