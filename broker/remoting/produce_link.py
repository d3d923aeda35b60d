"""One Produce stream to the leader for all of RocketMQ's producers at a node.

Owns what is under way on it.  Batches that come in the same turn of the event loop go out as one request.  When the stream breaks, what
became of the batches on it is not known; one that was refused is safe to send again, which ``leader.py`` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from broker.remoting.leader import CALLER, Leader
from dledger_wire._pb import broker_pb2
from dledger_wire.checksum import Buffer
from dledger_wire.errors import DeadlineExceededError, DledgerError, UnreachableError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream
from dledger_wire.security.principal import Principal
from dledger_wire.tcp.connection import fresh

REQUEST_BYTES = 1 << 20
REQUEST_BATCHES = 200

_logger = logging.getLogger(__name__)

Waiting = asyncio.Future[broker_pb2.BatchResult]


class ProduceLink:
    """``send`` batches, ``close`` it once."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._queue: list[tuple[Sequence[Buffer], int, float, Waiting]] = []
        self._stream: ByteStream | None = None
        self._term: tuple[str, int] = ("", 0)  # that the stream was opened in
        self._under_way: dict[int, list[Waiting]] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()

    async def send(self, batch: Sequence[Buffer], timeout_s: float) -> broker_pb2.BatchResult:
        """Where a batch was stored.  Raises why it was not; errors with ``outcome_unknown`` as of a producer."""
        if self._current() is None:
            self._leader.channel()  # NotLeaderError before it is queued
        waiting: Waiting = self._loop.create_future()
        self._queue.append((batch, sum(map(len, batch)), self._loop.time() + timeout_s, waiting))
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write(), name="remoting produce")
        try:
            async with asyncio.timeout(timeout_s):
                result = await waiting
        except TimeoutError:
            raise DeadlineExceededError(f"not committed within {timeout_s:.1f} s; it may still be") from None
        if result.HasField("error"):
            raise from_detail(result.error)
        return result

    async def _write(self) -> None:
        """Send what is queued, until nothing is."""
        while self._queue:
            taken, size = 0, 0
            while taken < min(len(self._queue), REQUEST_BATCHES) and (not taken or size + self._queue[taken][1] <= REQUEST_BYTES):
                size += self._queue[taken][1]
                taken += 1
            now, self._queue = self._queue[:taken], self._queue[taken:]
            now = [each for each in now if not each[3].done()]
            if now:
                await self._send(now)

    async def _send(self, batches: Sequence[tuple[Sequence[Buffer], int, float, Waiting]]) -> None:
        waiting = [each[3] for each in batches]
        left_s = min(each[2] for each in batches) - self._loop.time()
        try:
            stream = self._open()
            self._number += 1
            self._under_way[self._number] = waiting
            request = broker_pb2.ProduceRequest(request_id=self._number, timeout_ms=max(1, int(left_s * 1000)))
            message = envelope.encode(request, [part for each in batches for part in each[0]])
            if not stream.write_now(message):
                await stream.write(message)
        except DledgerError as error:
            _fail(waiting, error)

    def _current(self) -> ByteStream | None:
        """The stream, if it was opened in the term that is now."""
        return self._stream if self._term == self._leader.term else None

    def _open(self) -> ByteStream:
        current = self._current()
        if current is not None:
            return current
        channel = self._leader.channel()
        self._term = self._leader.term
        stream = self._stream = methods.PRODUCE.open(channel)
        under_way = self._under_way = {}
        task = self._loop.create_task(self._read(stream, under_way), name="remoting produce answers")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return stream

    async def _read(self, stream: ByteStream, under_way: dict[int, list[Waiting]]) -> None:
        """Resolve what is under way on ``stream`` until that ends."""
        error: DledgerError = UnreachableError("the stream of the leader ended; the message may be stored")
        try:
            while (message := await stream.read()) is not None:
                response = methods.PRODUCE.parse_response(message, "leader")
                if response.waiting_for:
                    continue
                for waiting, result in zip(under_way.pop(response.request_id, []), response.results, strict=False):
                    if not waiting.done():
                        waiting.set_result(result)
        except DledgerError as broken:
            error = broken
        finally:
            if self._stream is stream:
                self._stream = None
            for left in under_way.values():
                _fail(left, error)
            await stream.close()

    async def close(self) -> None:
        tasks = [*self._reading, *([self._writing] if self._writing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ProduceLinks:
    """A link for each user that sends; one without users."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._links: dict[Principal, ProduceLink] = {}

    def of_caller(self) -> ProduceLink:
        principal = CALLER.get().principal
        found = self._links.get(principal)
        if found is None:
            found = self._links[principal] = ProduceLink(self._leader)
        return found

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()


def _fail(waiting: Sequence[Waiting], error: DledgerError) -> None:
    for each in waiting:
        if not each.done():
            each.set_exception(fresh(error))
