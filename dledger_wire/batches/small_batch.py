"""Batches of a few messages, without arrays: encoding, checking and stamping them one message at a time.

numpy costs some 0.3 ms a batch whatever its size, which is a third of what the leader spends on a message sent alone.  Owns a proof, not
a second set of rules: ``proven_good`` says yes only to batches that ``batch.check_batch`` accepts too; whatever it is not sure of goes
the vectorised way, which finds the words for what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from dledger_wire.checksum import Buffer, crc32
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame_layout import (
    BODY_CRC_MASK,
    BORN_HOST_AT,
    HEAD_SIZE,
    IPV4_HOST_SIZE,
    MAX_PROPERTIES_BYTES,
    QUEUE_OFFSET_AT,
    UNIQ_KEY_PREFIX,
    UNIQUE_ID_SIZE,
    decode_properties,
)
from dledger_wire.frames.frames import HOST_FLAGS, magic_of, topic_field
from dledger_wire.java_hash import cached_java_hash, key_hash

if TYPE_CHECKING:
    from dledger_wire.batches.batch import BatchView

SMALL_COUNT = 8
_HEAD = struct.Struct(">iiiii8x8xi")  # total size, magic, body CRC, queue id, flag, (offsets), sys flag
_LENGTH = struct.Struct(">i")
_FULL_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")  # the whole fixed part with IPv4 hosts, see frame_layout
_PLACES = struct.Struct(">qq")
_SEPARATOR = b"\x02"
_ONLY_ID_SIZE = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + len(_SEPARATOR)  # of properties without any other
_STORE_AT = BORN_HOST_AT + IPV4_HOST_SIZE
_COLUMNS = [struct.Struct(f">{count}I{2 * count}i") for count in range(SMALL_COUNT + 1)]  # sizes, tag hashes, unique hashes


@lru_cache(maxsize=1024)
def _topic_parts(topic: str) -> tuple[bytes, int]:
    """The topic as it stands in a frame, and the frame's magic."""
    packed = topic.encode()
    return topic_field(packed), magic_of(packed)


def proven_good(batch: BatchView, max_body_bytes: int) -> bool:
    """Whether every frame, body CRC and hash of a batch of plain frames (IPv4 hosts, no further keys) is right.

    At most ``SMALL_COUNT`` messages.  The batch's own CRC and header are the caller's to check.
    """
    count, data, topic = batch.count, batch.data, batch.topic
    if batch.key_count:
        return False
    numbers = _COLUMNS[count].unpack_from(data, batch.frames_at - 12 * count)
    field, magic = _topic_parts(topic)
    at, end = batch.frames_at, batch.frames_at + batch.frames_size
    for place in range(count):
        size = numbers[place]
        if size < HEAD_SIZE + len(field) + 2 or at + size > end:
            return False
        total, found_magic, crc, queue_id, _flag, sys_flag = _HEAD.unpack_from(data, at)
        (body_length,) = _LENGTH.unpack_from(data, at + HEAD_SIZE - 4)
        topic_at = at + HEAD_SIZE + body_length
        properties_at = topic_at + len(field) + 2
        if (total, found_magic, queue_id) != (size, magic, batch.queue_id) or sys_flag & HOST_FLAGS:
            return False
        if not 0 <= body_length <= max_body_bytes or properties_at > at + size or data[topic_at : properties_at - 2] != field:
            return False
        length = int.from_bytes(data[properties_at - 2 : properties_at], "big")
        if length > MAX_PROPERTIES_BYTES or properties_at + length != at + size:
            return False
        if crc32(data[at + HEAD_SIZE : topic_at]) & BODY_CRC_MASK != crc:
            return False
        if not _hashes_right(bytes(data[properties_at : at + size]), topic, numbers[count + place], numbers[2 * count + place]):
            return False
        at += size
    return bool(at == end)


def _hashes_right(properties: bytes, topic: str, tag_hash: int, unique_hash: int) -> bool:
    if not properties.startswith(UNIQ_KEY_PREFIX) or not properties.isascii():
        return False
    if len(properties) == _ONLY_ID_SIZE and properties.find(_SEPARATOR) == _ONLY_ID_SIZE - 1:
        found = {"UNIQ_KEY": properties[len(UNIQ_KEY_PREFIX) : -1].decode()}
    else:
        found = decode_properties(properties)
    if key_hash(topic, found["UNIQ_KEY"]) != unique_hash:
        return False
    tag = found.get("TAGS")
    return tag_hash == (cached_java_hash(tag) if tag is not None else 0)


def encode_small(
    topic: str, queue_id: int, bodies: Sequence[bytes], ids: Sequence[bytes], extras: Sequence[bytes], *, born_ms: int, born_host: bytes
) -> tuple[bytes, list[int]]:
    """(frames, their sizes): what ``frames.encode_frames`` makes of messages with flag 0 and an IPv4 host."""
    field, magic = _topic_parts(topic)
    parts: list[bytes] = []
    sizes: list[int] = []
    for body, unique_id, extra in zip(bodies, ids, extras, strict=True):
        length = _ONLY_ID_SIZE + len(extra)
        if length > MAX_PROPERTIES_BYTES:
            raise InvalidArgumentError(f"properties take {length} bytes; expected at most {MAX_PROPERTIES_BYTES}")
        size = HEAD_SIZE + len(body) + len(field) + 2 + length
        crc = crc32(body) & BODY_CRC_MASK
        head = _FULL_HEAD.pack(size, magic, crc, queue_id, 0, 0, 0, 0, born_ms, born_host, 0, bytes(8), 0, 0, len(body))
        parts += (head, body, field, length.to_bytes(2, "big"), UNIQ_KEY_PREFIX, unique_id, _SEPARATOR, extra)
        sizes.append(size)
    return b"".join(parts), sizes


def stamp_small(out: bytearray, at: int, sizes: Buffer, *, first_queue_offset: int, log_pos: int, stamp: bytes) -> None:
    """Stamp frames with IPv4 hosts that lie at ``out[at:]``, which is log position ``log_pos``; ``sizes`` are big-endian u32.

    ``stamp``: store time and store host, 16 bytes.
    """
    offset, start = first_queue_offset, at
    for (size,) in struct.iter_unpack(">I", sizes):
        _PLACES.pack_into(out, at + QUEUE_OFFSET_AT, offset, log_pos + at - start)
        out[at + _STORE_AT : at + _STORE_AT + 16] = stamp
        offset, at = offset + 1, at + size
