"""Sends that are known by their UNIQ_KEY: those of clients without a producer id, which send a message again under the same key.

Owns what is known of them, which is made of the log on every replica, so that a new leader knows what the old one stored: of the newest
``KEEP_MS`` of the log, ``MAX_KNOWN`` sends at most, and since the start of the process.  A client gives up after seconds.

A batch counts by the key of its first message; one without a key is never known.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger_wire.batches.batch import BatchView
from dledger_wire.frames.frame import unique_key_at

KEEP_MS = 60_000
MAX_KNOWN = 100_000

_Key = tuple[str, bytes, int]


class SentPlace(NamedTuple):
    """Where the messages of a send are."""

    queue_id: int
    first_queue_offset: int
    physical_offset: int
    store_ms: int


class UniqueSends:
    """``placed`` in the log by the leader, then ``applied`` by every replica."""

    def __init__(self) -> None:
        self._applied: dict[_Key, SentPlace] = {}  # oldest first
        self._tail: dict[_Key, SentPlace] = {}  # placed in this term, not applied yet

    def stored(self, batch: BatchView) -> SentPlace | None:
        """Where the send is, once that is applied."""
        return self._applied.get(_key(batch)) if self._applied else None

    def under_way(self, batch: BatchView) -> SentPlace | None:
        """Where it will be, if what is in the log of this term is committed."""
        return self._tail.get(_key(batch)) if self._tail else None

    def placed(self, batch: BatchView, place: SentPlace) -> None:
        key = _key(batch)
        if key[1]:
            self._tail[key] = place

    def applied(self, batch: BatchView, pos: int) -> None:
        """A batch whose record lies at ``pos`` of the log was applied."""
        key, now_ms = _key(batch), batch.store_timestamp
        if not key[1]:
            return
        self._tail.pop(key, None)
        self._applied.pop(key, None)
        self._applied[key] = SentPlace(batch.queue_id, batch.first_queue_offset, pos + batch.frames_at, now_ms)
        while self._applied:
            oldest = next(iter(self._applied))
            if len(self._applied) <= MAX_KNOWN and now_ms - self._applied[oldest].store_ms <= KEEP_MS:
                return
            del self._applied[oldest]

    def resign(self) -> None:
        """What was placed and not applied may never be."""
        self._tail.clear()

    def forget_topic(self, name: str) -> None:
        for known in (self._applied, self._tail):
            for key in [key for key in known if key[0] == name]:
                del known[key]


def _key(batch: BatchView) -> _Key:
    return batch.topic, unique_key_at(batch.data, batch.frames_at), batch.count
