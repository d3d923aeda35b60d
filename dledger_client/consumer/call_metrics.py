"""What a push consumer counts of its listener: calls, their time, and how old messages are when they come.

Owns the choice of instruments.  A call is counted once, whatever its number of messages.
"""

from __future__ import annotations

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
