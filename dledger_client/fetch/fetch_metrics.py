"""What consumers count of their fetches, a chunk at a time."""

from __future__ import annotations

from dledger_client.fetch.records import Chunk
from dledger_client.metrics import catalog
from dledger_client.metrics.instruments import Amount, installed


class FetchMetrics:
    """Counts what one consumer fetches, where a sink was installed when it was made."""

    def __init__(self, consumer_group: str) -> None:
        self._instruments, self._group = installed(), consumer_group
        self._topics: dict[str, tuple[Amount, Amount]] = {}

    def chunk(self, chunk: Chunk) -> None:
        """A chunk arrived."""
        if self._instruments is None:
            return
        found = self._topics.get(chunk.topic)
        if found is None:
            made = [self._instruments.counter(each, chunk.topic, self._group) for each in (catalog.RECEIVED, catalog.RECEIVED_BYTES)]
            found = self._topics[chunk.topic] = made[0], made[1]
        if chunk.count:
            found[0](chunk.count)
            found[1](len(chunk.frames))

    def failed(self, topic: str) -> None:
        """A fetch failed."""
        if self._instruments is not None:
            self._instruments.counter(catalog.FETCH_FAILURES, topic, self._group)(1)
