"""A batch put together message by message, of frames and the properties in them: its hashes and keys follow from those.

For writers that have whole frames: a service that stores messages again, and what brings in those of RocketMQ's clients and brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from dledger_wire.batches.batch import encode_record_parts
from dledger_wire.checksum import Buffer
from dledger_wire.java_hash import cached_java_hash, key_hash, key_words


class FrameBatch:
    """Messages of one queue; their born hosts are all of one kind.  ``sizes``: of their frames."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic, self._queue_id = topic, queue_id
        self.sizes: list[int] = []
        self._frames: list[bytes] = []
        self._tags: list[int] = []
        self._unique: list[int] = []
        self._key_owners: list[int] = []
        self._keys: list[int] = []

    def add(self, frame: bytes, properties: Mapping[str, str]) -> None:
        """Add a message, whose frame has these properties."""
        words = key_words(properties.get("KEYS", ""))
        self._key_owners += [len(self.sizes)] * len(words)
        self._keys += [key_hash(self.topic, word) for word in words]
        self._tags.append(cached_java_hash(properties["TAGS"]) if "TAGS" in properties else 0)
        self._unique.append(key_hash(self.topic, properties["UNIQ_KEY"]) if "UNIQ_KEY" in properties else 0)
        self.sizes.append(len(frame))
        self._frames.append(frame)

    def parts(self) -> list[Buffer]:
        """The record in parts, as ``encode_batch_parts`` makes it, without a sequence."""
        count, keys = len(self.sizes), len(self._keys)
        layout = struct.Struct(f">{count}I{2 * count}i{keys}I{keys}i")
        columns = layout.pack(*self.sizes, *self._tags, *self._unique, *self._key_owners, *self._keys)
        return encode_record_parts(self.topic, self._queue_id, count, keys, columns, b"".join(self._frames))
