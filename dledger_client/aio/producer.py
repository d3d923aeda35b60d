"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dledger_client.engine import ProducerEngine, ProducerOptions
from dledger_client.local import surroundings
from dledger_client.message import Message, SendResult
from dledger_client.outcome import AsyncSendFuture, Outcome
from dledger_client.router import Router, parse_bootstrap
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import DledgerError, NotSentError
from dledger_wire.frame_layout import pack_host
from dledger_wire.rpc import Network


@dataclass(slots=True)
class _Delayed:
    """A message that waits for its topic's queues or for buffer room."""

    message: Message
    queue_key: str | None
    queue_id: int | None
    deadline_ms: int
    outcome: Outcome


class Producer:
    """Sends messages; safe to use from many tasks of one loop.

    ``send_timeout_ms``: how long a message is tried before its future fails.  ``linger_ms``: how long an open batch waits for company even
    when nothing is in flight (0: not at all).  Retries never store a message twice.  Errors are those of ``dledger_wire.errors``.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str = "",
        *,
        send_timeout_ms: int = 10_000,
        linger_ms: int = 0,
        batch_bytes: int = 1 << 20,
        max_buffered_bytes: int = 64 << 20,
        max_message_bytes: int = 4 << 20,
        network: Network | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        parse_bootstrap(bootstrap)
        self._options = ProducerOptions(send_timeout_ms, linger_ms, batch_bytes, max_buffered_bytes, max_message_bytes)
        self._around = surroundings(bootstrap, network, clock, random)
        self._bootstrap, self._group = bootstrap, group
        self._engine: ProducerEngine | None = None
        self._delayed: deque[_Delayed] = deque()
        self._adding: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def engine(self) -> ProducerEngine:
        """The inside; made at first use, on the running loop."""
        if self._engine is None:
            around = self._around
            router = Router(self._bootstrap, around.network, around.clock, around.random)
            self._engine = ProducerEngine(router, self._group, self._options, around.unique_ids(), pack_host(around.address))
        return self._engine

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def send(self, message: Message, queue_key: str | None = None, queue_id: int | None = None) -> SendResult:
        """Send one message and wait until a majority has it."""
        return await self.send_async(message, queue_key, queue_id)

    def send_async(self, message: Message, queue_key: str | None = None, queue_id: int | None = None) -> AsyncSendFuture:
        """Send without waiting; the future may be awaited.  ``queue_key``: messages with equal keys keep their order in one queue."""
        engine = self.engine
        if not self._delayed and engine.knows(message.topic):
            try:
                place = engine.add(message, queue_key, queue_id)
            except DledgerError as error:
                return _failed(engine, message, error)
            if place is not None:
                return AsyncSendFuture(*place)
        outcome = engine.detached_outcome(message.topic)
        deadline_ms = engine.router.clock.monotonic_ms() + self._options.send_timeout_ms
        self._delayed.append(_Delayed(message, queue_key, queue_id, deadline_ms, outcome))
        if self._adding is None or self._adding.done():
            self._adding = asyncio.get_running_loop().create_task(self._add_delayed(), name="add delayed messages")
        return AsyncSendFuture(outcome, 0)

    async def _add_delayed(self) -> None:
        engine = self.engine
        while self._delayed:
            delayed = self._delayed[0]
            try:
                await engine.resolve(delayed.message.topic, delayed.deadline_ms)
                place = engine.add(delayed.message, delayed.queue_key, delayed.queue_id)
                if place is None:
                    await self._room(delayed.deadline_ms)
                    continue
            except DledgerError as error:
                self._delayed.popleft()
                delayed.outcome.fail(error)
                continue
            self._delayed.popleft()
            outcome, index = place
            delayed.outcome.cut_into([(-index, outcome)])

    async def _room(self, deadline_ms: int) -> None:
        engine = self.engine
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        engine.when_room(lambda: None if room.done() else room.set_result(None))
        left_ms = deadline_ms - engine.router.clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await room
        except TimeoutError:
            raise NotSentError("no room in the producer's buffer in time; nothing was stored") from None

    def send_oneway(self, message: Message, queue_key: str | None = None, queue_id: int | None = None) -> None:
        """Send and forget: nobody is told what became of it."""
        self.send_async(message, queue_key, queue_id)

    async def flush(self) -> None:
        """Return when everything sent so far is acknowledged or failed."""
        if self._adding is not None:
            await asyncio.wait([self._adding])
        if self._engine is not None:
            await self._engine.flush()

    async def close(self) -> None:
        """Flush, then close the connections.  Idempotent."""
        engine = self._engine
        if engine is None or self._closed:
            return
        self._closed = True
        await self.flush()
        await engine.close()
        await engine.router.close()


def _failed(engine: ProducerEngine, message: Message, error: DledgerError) -> AsyncSendFuture:
    outcome = engine.detached_outcome(message.topic)
    outcome.fail(error)
    return AsyncSendFuture(outcome, 0)
