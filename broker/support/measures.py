"""What the services of a process count: requests by outcome, waits of producers, checks of transactions, what readers were given.

Owns the counters, and the wrapper of a server that times its calls.  Streams are timed by their services, request by request, since a
stream lives as long as its client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from dledger_wire.errors import DledgerError
from dledger_wire.measures import SECONDS, Histogram
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server, UnaryHandler, WrappedServer

OK, CANCELLED, INTERNAL = "OK", "CANCELLED", "INTERNAL"  # beside the codes of errors
MAX_GIVEN = 10_000  # queues of consumer groups whose last answer is remembered, and groups in topics that are counted
GIVEN_MS = 300_000  # a group that asks here no more has nothing in flight here


class Given:
    """Up to where this node gave messages to consumer groups, by (group, topic, queue).

    Attributes:
        counts: How many, and their bytes, by (topic, group).
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], tuple[int, int]] = {}
        self._until: dict[tuple[str, str, int], tuple[int, int]] = {}  # oldest first; offset, and when

    def give(self, group: str, topic: str, queue_id: int, next_offset: int, now_ms: int) -> None:
        """A member of the group got messages up to ``next_offset``."""
        key = group, topic, queue_id
        self._until.pop(key, None)
        self._until[key] = next_offset, now_ms
        if len(self._until) > MAX_GIVEN:
            del self._until[next(iter(self._until))]
        self._forget_old(now_ms)

    def count(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """A member of the group got so many messages."""
        before = self.counts.get((topic, group), (0, 0))
        self.counts[topic, group] = before[0] + messages, before[1] + size_bytes
        if len(self.counts) > MAX_GIVEN:
            del self.counts[next(iter(self.counts))]

    def inflight(self, position: Callable[[str, str, int], int | None], now_ms: int) -> dict[tuple[str, str], int]:
        """(topic, group) -> how many of these messages are behind the group's ``position``; a queue it never committed is left out."""
        self._forget_old(now_ms)
        found: dict[tuple[str, str], int] = {}
        for (group, topic, queue_id), (next_offset, _) in self._until.items():
            committed = position(group, topic, queue_id)
            if committed is not None:
                found[topic, group] = found.get((topic, group), 0) + max(0, next_offset - committed)
        return found

    def _forget_old(self, now_ms: int) -> None:
        while self._until:
            oldest = next(iter(self._until))
            if now_ms - self._until[oldest][1] <= GIVEN_MS:
                return
            del self._until[oldest]


class Redelivered:
    """What this node gave to a consumer group again, or moved to its dead letters, since it was not acknowledged.

    Attributes:
        counts: Deliveries after the first one, and dead letters, by consumer group.
        changed: The groups whose counts have risen since this was taken.
    """

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}
        self.changed: dict[str, None] = {}

    def count(self, group: str, *, again: int = 0, dead: int = 0) -> None:
        if not again and not dead:
            return
        before = self.counts.get(group, (0, 0))
        self.counts[group], self.changed[group] = (before[0] + again, before[1] + dead), None
        if len(self.counts) > MAX_GIVEN:
            oldest = next(iter(self.counts))
            del self.counts[oldest]
            self.changed.pop(oldest, None)


class ServiceMeasures:
    """Of one process."""

    def __init__(self, stopwatch: Callable[[], float] = lambda: 0.0) -> None:
        self.stopwatch = stopwatch
        self.requests: dict[tuple[str, str], Histogram] = {}  # by method and code
        self.backpressure_s = 0.0
        self.transaction_checks: Counter[str] = Counter()  # by result: asked, no producer, given up
        self.given = Given()
        self.redelivered = Redelivered()

    def request(self, method: str, code: str, took_s: float) -> None:
        """A request was answered."""
        found = self.requests.get((method, code))
        if found is None:
            found = self.requests[method, code] = Histogram(SECONDS)
        found.observe(took_s)


class MeasuredServer(WrappedServer):
    """A server whose calls are timed."""

    def __init__(self, server: Server, measures: ServiceMeasures) -> None:
        super().__init__(server)
        self._measures = measures

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        measures, name = self._measures, method_name(method)

        async def measured(request: bytes, caller: CallContext) -> bytes:
            began_s, code = measures.stopwatch(), INTERNAL
            try:
                response = await handler(request, caller)
                code = OK
            except DledgerError as error:
                code = error.code
                raise
            except asyncio.CancelledError:
                code = CANCELLED
                raise
            finally:
                measures.request(name, code, measures.stopwatch() - began_s)
            return response

        self._server.add_unary(method, measured)


def method_name(path: str) -> str:
    """``Admin/NodeStatus`` for a method of ours, the whole path without its first slash for others."""
    return path.removeprefix(methods.PACKAGE).removeprefix("/")
