"""What is noted of the calls of a listener: a span while tracing is on, and metrics where a sink is installed.

Owns the two in one, so that an executor asks once before each call, and the choice of instruments: calls, their time, and how old messages
are when they come.  A call is counted once, whatever its number of messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from dledger_client import tracing
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.metrics import catalog
from dledger_client.metrics.instruments import Instruments
from dledger_wire.clock import Clock

CONSUMED, REDELIVERED = "consumed", "redelivered"


class CallMetrics:
    """Counts the calls of a listener of one topic, in whatever thread they are made."""

    def __init__(self, instruments: Instruments, clock: Clock, topic: str, consumer_group: str) -> None:
        self._clock = clock
        labels = topic, consumer_group
        self._consumed, self._redelivered = (instruments.counter(catalog.PROCESSED, *labels, each) for each in (CONSUMED, REDELIVERED))
        self._seconds = instruments.histogram(catalog.PROCESS_SECONDS, *labels)
        self._delivery = instruments.histogram(catalog.DELIVERY_SECONDS, *labels)

    def begin(self, oldest: ReceivedMessage) -> int:
        """A call begins; what ``end`` is to be given."""
        self._delivery(max(0, self._clock.wall_ms() - oldest.store_timestamp) / 1000)
        return self._clock.monotonic_ms()

    def end(self, began_ms: int, consumed: int, redelivered: int) -> None:
        """The call ended."""
        self._seconds((self._clock.monotonic_ms() - began_ms) / 1000)
        if consumed:
            self._consumed(consumed)
        if redelivered:
            self._redelivered(redelivered)


class CallNote(Protocol):
    """One call of a listener."""

    def failed(self, error: BaseException) -> None:
        """The listener raised ``error``."""
        ...

    def redelivered(self, count: int) -> None:
        """So many of its messages were not consumed."""
        ...


class CallNotes:
    """Notes of the calls of one listener; here, that none are wanted."""

    def of_call(self, messages: list[ReceivedMessage]) -> AbstractContextManager[CallNote] | None:
        """The note of a call, which is made inside of its context; None: it is not wanted.  Called in the worker of the call."""
        return None


class ListenerNotes(CallNotes):
    """Notes of the listener of a push consumer."""

    def __init__(self, consumer_group: str, clock: Clock, instruments: Instruments | None) -> None:
        self._group, self._clock, self._instruments = consumer_group, clock, instruments
        self._metrics: dict[str, CallMetrics] = {}

    def of_call(self, messages: list[ReceivedMessage]) -> AbstractContextManager[CallNote] | None:
        spans = tracing.spans()
        span = None if spans is None else spans.processing(messages, self._group, in_callback=True)
        return span if self._instruments is None else _counted(self._metrics_of(messages[0].topic, self._instruments), messages, span)

    def _metrics_of(self, topic: str, instruments: Instruments) -> CallMetrics:
        found = self._metrics.get(topic)
        if found is None:  # two threads may make it at once; both count into the same instruments
            found = self._metrics[topic] = CallMetrics(instruments, self._clock, topic, self._group)
        return found


class _Counted:
    """A call that is counted, and may have a span as well."""

    def __init__(self, span: CallNote | None) -> None:
        self._span = span
        self.count = 0

    def failed(self, error: BaseException) -> None:
        if self._span is not None:
            self._span.failed(error)

    def redelivered(self, count: int) -> None:
        self.count = count
        if self._span is not None:
            self._span.redelivered(count)


@contextlib.contextmanager
def _counted(metrics: CallMetrics, messages: list[ReceivedMessage], span: AbstractContextManager[CallNote] | None) -> Iterator[CallNote]:
    with span or contextlib.nullcontext() as work:
        note = _Counted(work)
        began_ms = metrics.begin(messages[0])
        yield note
        metrics.end(began_ms, len(messages) - note.count, note.count)
