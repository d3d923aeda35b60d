"""Encoding of a batch of messages into one record: properties, hashes and frames, a batch at a time.

Owns no layout: frames and records are ``dledger_wire``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dledger_client.message import Message
from dledger_client.producer.message_columns import MessageColumns
from dledger_wire.batches.batch import encode_batch_parts
from dledger_wire.batches.small_batch import SMALL_COUNT, encode_small
from dledger_wire.checksum import Buffer
from dledger_wire.clock import Clock
from dledger_wire.frames.frame_layout import IPV4_HOST_SIZE
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.java_hash import cached_java_hash, key_hash, key_words

Int32s = npt.NDArray[np.int32]


class RecordEncoder:
    """Encodes the batches of one producer; messages get their unique ids and born timestamp here."""

    def __init__(self, ids: UniqueIds, clock: Clock, born_host: bytes) -> None:
        self._ids, self._clock, self._born_host = ids, clock, born_host

    def encode(self, topic: str, queue_id: int, messages: Sequence[Message]) -> tuple[npt.NDArray[np.uint8], list[Buffer]]:
        """(the unique ids of the messages, the parts of the record)."""
        ids = self._ids.take(len(messages))
        return ids, encode_messages(topic, queue_id, messages, ids, born_ms=self._clock.wall_ms(), born_host=self._born_host)


def encode_messages(
    topic: str, queue_id: int, messages: Sequence[Message], ids: npt.NDArray[np.uint8], *, born_ms: int, born_host: bytes
) -> list[Buffer]:
    """The parts of one batch record, still without a sequence (``dledger_wire.batches.batch.stamp_sequence``)."""
    if isinstance(messages, MessageColumns):
        return _encode_columns(queue_id, messages, ids, FrameFields(born_ms, born_host))
    count = len(messages)
    if (
        count <= SMALL_COUNT
        and len(born_host) == IPV4_HOST_SIZE
        and not any(message.keys or message.flag or message.sys_flag for message in messages)
    ):
        return _encode_few(topic, queue_id, messages, ids, born_ms, born_host)
    bodies, extras = [message.body for message in messages], [message.extras for message in messages]
    if extras.count(extras[0]) == count:
        columns = MessageColumns(topic, bodies, extras[0], messages[0].keys, messages[0].tags)
    else:
        columns = MessageColumns(topic, bodies, extras, [message.keys for message in messages], [message.tags for message in messages])
    if not any(message.flag or message.sys_flag for message in messages):
        return _encode_columns(queue_id, columns, ids, FrameFields(born_ms, born_host))
    flags, sys_flags = (np.array([getattr(message, name) for message in messages], np.int32) for name in ("flag", "sys_flag"))
    return _encode_columns(queue_id, columns, ids, FrameFields(born_ms, born_host, flags, sys_flags))


def _encode_few(
    topic: str, queue_id: int, messages: Sequence[Message], ids: npt.NDArray[np.uint8], born_ms: int, born_host: bytes
) -> list[Buffer]:
    """The same without arrays: what a message sent alone costs its producer halves."""
    unique = [row.tobytes() for row in ids]
    bodies, extras = [message.body for message in messages], [message.extras for message in messages]
    frames, sizes = encode_small(topic, queue_id, bodies, unique, extras, born_ms=born_ms, born_host=born_host)
    hashes = [key_hash(topic, each.decode("ascii")) for each in unique]
    tags = [cached_java_hash(message.tags) if message.tags else 0 for message in messages]
    return encode_batch_parts(topic, queue_id, frames, np.array(sizes, np.uint32), np.array(tags, np.int32), np.array(hashes, np.int32))


def _encode_columns(queue_id: int, columns: MessageColumns, ids: npt.NDArray[np.uint8], fields: FrameFields) -> list[Buffer]:
    topic, count = columns.topic, len(columns)
    frames, sizes = encode_frames(topic, queue_id, columns.bodies, ids, columns.extras, fields)
    keys = [columns.keys] * count if columns.keys and isinstance(columns.keys, str) else columns.keys
    owners, hashes = _key_columns(topic, keys) if keys else (None, None)
    unique_hashes = fold_key_hashes(hash_columns(ids, f"{topic}#"))
    tag_hashes = _tag_hashes(columns.tags, count)
    return encode_batch_parts(topic, queue_id, frames, sizes, tag_hashes, unique_hashes, key_owners=owners, key_hashes=hashes)


def _tag_hashes(tags: str | Sequence[str], count: int) -> Int32s:
    if isinstance(tags, str):
        return np.full(count, cached_java_hash(tags) if tags else 0, np.int32)
    return np.array([cached_java_hash(tag) if tag else 0 for tag in tags], np.int32)


def _key_columns(topic: str, keys: Sequence[str]) -> tuple[npt.NDArray[np.uint32], Int32s]:
    """(message number, index hash) of every word of every message's keys."""
    owners: list[int] = []
    words: list[str] = []
    for number, each in enumerate(keys):
        if each:
            found = key_words(each)
            words += found
            owners += [number] * len(found)
    return np.array(owners, np.uint32), hash_words(topic, words)


def hash_words(topic: str, words: Sequence[str]) -> Int32s:
    """Index hashes of TOPIC#WORD; ASCII words of equal width are hashed together."""
    hashes = np.empty(len(words), np.int32)
    by_width: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word.isascii():
            by_width.setdefault(len(word), []).append(place)
        else:
            hashes[place] = key_hash(topic, word)
    for width, places in by_width.items():
        packed = np.frombuffer("".join([words[place] for place in places]).encode("ascii"), np.uint8)
        hashes[places] = fold_key_hashes(hash_columns(packed.reshape(-1, width), f"{topic}#"))
    return hashes
