"""Sends what a task staged to the staging topic.

Owns the streams of one task: the batches for each replica group are a stream of their own, so that the commit can publish to all groups
at once.  A stream is the messages with one tag in one queue; the queues of all replica groups are used in turn.
"""

from __future__ import annotations

import uuid
from itertools import count

from dledger_client import Message, Producer
from dledger_client.producer.delivery_report import SendFuture
from dledger_wire.checksum import crc32c
from pyspark_dledger.write.publisher import StagedRange
from pyspark_dledger.write.staged_batches import StagedBatch
from pyspark_dledger.write.staging_topic import StagingTopic

PIECE_BYTES = 256 << 10  # small batches wait until they have so much together
MAX_PIECE_BYTES = 4 << 20  # a producer sends no larger body by itself, also where the brokers take some; pieces are joined again


class StagingSender:
    """The streams of one task, number ``partition`` of its stage.  ``max_bytes``: the largest message that the brokers take."""

    def __init__(self, producer: Producer, staging: StagingTopic, partition: int, max_bytes: int) -> None:
        self._producer, self._staging, self._max_bytes = producer, staging, min(max_bytes, MAX_PIECE_BYTES)
        self._places = count(partition)
        self._streams: dict[str, _Stream] = {}

    def add(self, staged: StagedBatch) -> None:
        stream = self._streams.get(staged.group)
        if stream is None:
            place = self._staging.place(next(self._places))
            stream = self._streams[staged.group] = _Stream(self._producer, self._staging.topic, place, self._max_bytes)
        stream.add(staged)

    def finish(self) -> list[StagedRange]:
        """Send the rest and wait for all acknowledgements."""
        for stream in self._streams.values():
            stream.send()
        self._producer.flush()
        return [stream.range(group) for group, stream in self._streams.items()]


class _Stream:
    """Batches for one replica group.  Each message has whole batches, unless one is larger than a message may be."""

    def __init__(self, producer: Producer, topic: str, place: tuple[str, int], max_bytes: int) -> None:
        self._producer, self._topic, self._place, self._max_bytes = producer, topic, place, max_bytes
        self._tag = uuid.uuid4().hex[:16]
        self._sent: list[SendFuture] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._rows = self._crc = self._size = 0

    def add(self, staged: StagedBatch) -> None:
        self._waiting.append(staged.data)
        self._waiting_bytes += len(staged.data)
        self._rows += staged.rows
        if self._waiting_bytes >= PIECE_BYTES:
            self.send()

    def send(self) -> None:
        """Send what waits."""
        whole = b"".join(self._waiting)
        self._crc, self._size = crc32c(whole, value=self._crc), self._size + len(whole)
        for start in range(0, len(whole), self._max_bytes):
            piece = whole[start : start + self._max_bytes]
            self._sent.append(self._producer.send_async(Message(self._topic, piece, tags=self._tag), queue_id=self._place))
        self._waiting.clear()
        self._waiting_bytes = 0

    def range(self, target: str) -> StagedRange:
        placed = [future.result() for future in self._sent]
        first, last = placed[0].queue_offset, placed[-1].queue_offset
        return StagedRange(*self._place, first, last + 1, self._tag, self._rows, self._size, self._crc, target)
