"""How many messages, and how many of their bytes, this node stored as master and gave to readers since its start.

Owns these counters.  They rise once a batch and once a chunk, never once a message.  What waits inside the store for its time or for a
transaction to end counts when it becomes readable, and not before.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger_wire.batches.batch import BatchView
from dledger_wire.measures import BYTES, Histogram
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

_WAITING = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})


class Counts:
    """Of one topic, or of all.  ``in``: stored, duplicates left out; ``out``: given to readers.  Bytes are those of frames."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0

    @property
    def values(self) -> tuple[int, int, int, int]:
        """Messages in, bytes in, messages out, bytes out."""
        return self.messages_in, self.bytes_in, self.messages_out, self.bytes_out


class Traffic:
    """Of one node; ``exists`` says whether there is a topic.

    Attributes:
        changed: Topics with traffic since the last collection.
        sizes: How large messages were.
    """

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self.total = Counts()
        self.topics: dict[str, Counts] = {}
        self.changed: dict[str, None] = {}
        self.sizes = Histogram(BYTES)

    def stored(self, batch: BatchView) -> None:
        """A batch was committed while this node was master."""
        topic = batch.topic
        if topic in _WAITING:
            return
        count, size = batch.count, batch.frames_size
        for counts in (self._of(topic), self.total):
            counts.messages_in += count
            counts.bytes_in += size
        if count == 1:
            self.sizes.observe(size)
        else:
            self.sizes.observe_all(batch.sizes)

    def read(self, topic: str, count: int, size_bytes: int) -> None:
        """A reader gets ``count`` messages; the topic may have been deleted meanwhile."""
        for counts in (self._of(topic), self.total) if self._exists(topic) else (self.total,):
            counts.messages_out += count
            counts.bytes_out += size_bytes

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.topics.pop(topic, None)
        self.changed.pop(topic, None)  # it would stay where nothing collects

    def _of(self, topic: str) -> Counts:
        self.changed[topic] = None
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = Counts()
        return counts
