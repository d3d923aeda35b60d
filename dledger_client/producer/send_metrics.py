"""What a producer counts: messages by result, times, sizes, resends, and what is buffered.

Owns the choice of instruments.  A batch is counted once, when its report is settled, whatever its number of messages.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger_client.metrics import catalog
from dledger_client.metrics.instruments import Instruments
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError

STORED, FAILED, UNKNOWN = "stored", "failed", "unknown"


class TopicMetrics:
    """Counts the batches of one topic.  Delayed and half messages are of the system topic that holds them until they are delivered."""

    def __init__(self, instruments: Instruments, clock: Clock, topic: str) -> None:
        self._clock = clock
        self._stored, self._failed, self._unknown = (instruments.counter(catalog.SENT, topic, each) for each in (STORED, FAILED, UNKNOWN))
        self._bytes = instruments.counter(catalog.SENT_BYTES, topic)
        self._resent = instruments.counter(catalog.RESENT, topic)
        self._seconds = instruments.histogram(catalog.SEND_SECONDS, topic)
        self._messages = instruments.histogram(catalog.BATCH_MESSAGES, topic)

    def stored(self, count: int, size_bytes: int, began_ms: int, attempts: int) -> None:
        """A batch that a sender first saw at ``began_ms`` is stored, after so many attempts."""
        self._stored(count)
        self._bytes(size_bytes)
        self._messages(count)
        self._seconds((self._clock.monotonic_ms() - began_ms) / 1000)
        self._attempts(attempts)

    def failed(self, count: int, error: DledgerError, attempts: int = 0) -> None:
        """So many messages failed with ``error``."""
        (self._unknown if error.outcome_unknown else self._failed)(count)
        self._attempts(attempts)

    def _attempts(self, attempts: int) -> None:
        if attempts > 1:
            self._resent(attempts - 1)


class SendMetrics:
    """Counts for one producer; ``buffered``: the bytes that it holds."""

    def __init__(self, instruments: Instruments, clock: Clock, producer_group: str, buffered: Callable[[], float]) -> None:
        self._instruments, self._clock = instruments, clock
        self._topics: dict[str, TopicMetrics] = {}
        self.close = instruments.gauge(catalog.BUFFERED, producer_group, read=buffered)

    def of_topic(self, topic: str) -> TopicMetrics:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicMetrics(self._instruments, self._clock, topic)
        return found
