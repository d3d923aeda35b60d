"""A batch put together message by message, of frames and the properties in them: its hashes and keys follow from those.

For writers that have whole frames: a service that stores messages again, and what brings in those of RocketMQ's clients and brokers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dledger_wire.batches.batch import encode_batch_parts
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
        """The record, as ``encode_batch_parts`` makes it, without a sequence."""
        return encode_batch_parts(
            self.topic,
            self._queue_id,
            b"".join(self._frames),
            np.array(self.sizes, np.uint32),
            np.array(self._tags, np.int32),
            np.array(self._unique, np.int32),
            key_owners=np.array(self._key_owners, np.uint32),
            key_hashes=np.array(self._keys, np.int32),
        )
