"""Sends that cannot be handed to the accumulator yet: their topic's queues are not known, or the buffer has no room.

Owns their order and their deadlines.  Each topic has a line of its own, so that none waits for the look-up of another.  asyncio and
callbacks cannot hold the caller up, so what they send waits here without a limit; threads wait for ``room`` first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dledger_client.producer.core import ProducerCore
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_wire.errors import DledgerError, NotSentError

Append: TypeAlias = Callable[[], tuple[DeliveryReport, int] | None]  # what RecordAccumulator's methods of that name return

NO_ROOM = "no room in the producer's buffer in time; nothing was stored"

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Delayed:
    """A message, or a batch."""

    count: int
    size: int
    append: Append
    by_key: bool
    queue_id: QueueNumber | None
    report: DeliveryReport
    deadline_ms: int | None  # None: follows a part of the same call, from when that was added; fails with it
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # out of its line, added or refused


class DelayedSends:
    """Of one producer.  Used on its event loop only; other threads may look whether a topic is among ``lines``."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        core.waiting = self
        self.size_bytes = 0  # of what waits, as far as senders said
        self.lines: dict[str, deque[_Delayed]] = {}
        self._adding: set[asyncio.Task[None]] = set()  # only the loop would hold them, and weakly

    def add(
        self,
        topic: str,
        size: tuple[int, int],
        append: Append,
        queue_key: QueueKey,
        queue_id: QueueNumber | None,
        *,
        follows: bool = False,
    ) -> DeliveryReport:
        """``append`` is called when what is in front of it is added, and the topic is known, and again when there is room.

        ``size``: how many messages, and their bytes.  ``follows``: it belongs to what was delayed before it; its deadline counts from
        when that was added.
        """
        report = self._core.accumulator.detached_report(topic)
        delayed = _Delayed(*size, append, queue_key is not None, queue_id, report, None if follows else self._core.deadline_ms())
        self.size_bytes += delayed.size
        line = self.lines.get(topic)
        if line is None:
            self.lines[topic] = deque([delayed])
            task = asyncio.get_running_loop().create_task(self._add_line(topic), name=f"add delayed messages for {topic}")
            self._adding.add(task)
            task.add_done_callback(self._adding.discard)
        else:
            line.append(delayed)
        return report

    async def flush(self) -> None:
        """Return when what waits now is added or has failed; what comes later is not waited for."""
        for last in [line[-1] for line in self.lines.values() if line]:
            await last.gone.wait()

    async def room(self, size: int) -> None:
        """Return when ``size`` more bytes fit into the producer's buffer beside what waits here.  NotSentError after a deadline."""
        core = self._core
        try:
            async with asyncio.timeout(core.options.send_timeout_ms / 1000):
                while self.lines and self.size_bytes + core.accumulator.buffered_bytes + size > core.options.max_buffered_bytes:
                    await next(iter(self.lines.values()))[0].gone.wait()
        except TimeoutError:
            raise NotSentError(NO_ROOM) from None

    def held(self) -> list[tuple[DeliveryReport, int]]:
        """The reports of what waits, with their numbers of messages."""
        return [(each.report, each.count) for line in self.lines.values() for each in line]

    async def _add_line(self, topic: str) -> None:
        line = self.lines[topic]
        try:
            while line:
                await self._add_first(topic, line)
        except asyncio.CancelledError:
            count = sum(delayed.count for delayed in line)
            while line:
                delayed = self._taken_out(line)
                error = NotSentError("the event loop ended before the producer was closed; nothing was stored")
                self._core.accumulator.refuse(delayed.report, error, delayed.count)
            _logger.error("the event loop ended before the producer was closed: %d messages were not sent", count)
            raise
        finally:
            del self.lines[topic]

    async def _add_first(self, topic: str, line: deque[_Delayed]) -> None:
        delayed, core = line[0], self._core
        if delayed.deadline_ms is None:
            delayed.deadline_ms = self._core.deadline_ms()
        try:
            await core.resolve(topic, delayed.deadline_ms, delayed.queue_id, by_key=delayed.by_key)
            appended = delayed.append()
            if appended is None:
                await self._room(delayed.deadline_ms)
                return
        except DledgerError as error:
            self._refuse_first(line, error)
            return
        except Exception as error:  # a body that is none: those behind it go on
            _logger.exception("a message for %s cannot be sent", topic)
            self._taken_out(line)
            core.accumulator.refuse(delayed.report, NotSentError(f"it cannot be sent ({error!r}); nothing was stored"), delayed.count)
            return
        self._taken_out(line)
        report, index = appended
        delayed.report.split_into([(-index, report)])

    def _refuse_first(self, line: deque[_Delayed], error: DledgerError) -> None:
        """Fail what waits in front, and what follows it: that would wait as long, and fail alike."""
        refused = [self._taken_out(line)]
        while line and line[0].deadline_ms is None:
            refused.append(self._taken_out(line))
        for delayed in refused:
            self._core.accumulator.refuse(delayed.report, error, delayed.count)

    def _taken_out(self, line: deque[_Delayed]) -> _Delayed:
        delayed = line.popleft()
        self.size_bytes -= delayed.size
        delayed.gone.set()
        return delayed

    async def _room(self, deadline_ms: int) -> None:
        core = self._core
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        core.accumulator.when_room(lambda: None if room.done() else room.set_result(None))
        left_ms = deadline_ms - core.router.clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await room
        except TimeoutError:
            raise NotSentError(NO_ROOM) from None
