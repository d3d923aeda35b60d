"""The message frame of the CommitLog, byte-compatible with RocketMQ 5: the plain twin, one frame at a time.

Owns ``Frame`` and its two codecs.  ``frame_layout.py`` has the layout, hosts and properties, ``frames.py`` and ``frame_check.py`` the numpy
twin for whole batches.

    encode_frame(frame) -> bytes                              total size, magic, body CRC and IPv6 flags are computed
    decode_frame(buffer, pos=0, *, check_crc=True) -> Frame   CorruptFrameError for anything else; both magics, IPv4 and IPv6 hosts
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from dledger_wire.checksum import Buffer, crc32
from dledger_wire.errors import CorruptFrameError, InvalidArgumentError
from dledger_wire.frames.frame_layout import (
    BODY_CRC_MASK,
    BORN_HOST_AT,
    HEAD_SIZE,
    IPV4_HOST_SIZE,
    IPV6_HOST_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MAX_V1_TOPIC_BYTES,
    MIN_FRAME_SIZE,
    SYS_FLAG_AT,
    UNIQ_KEY_PREFIX,
    decode_properties,
    encode_properties,
    pack_host,
    unpack_host,
)
from dledger_wire.status import SysFlag

_FIRST = struct.Struct(">iiiiiqqiq")  # total size .. born time, 48 bytes
_TIME = struct.Struct(">q")
_LAST = struct.Struct(">iqi")  # reconsume times, prepared offset, body length
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)  # as numbers: flags as such cost a call each time


@dataclass(slots=True)
class Frame:
    """One decoded frame; every field of the layout, hosts as ``address:port``."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    topic: str
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "0.0.0.0:0"
    store_timestamp: int = 0
    store_host: str = "0.0.0.0:0"
    reconsume_times: int = 0
    prepared_offset: int = 0
    total_size: int = 0
    body_crc: int = 0


def encode_frame(frame: Frame) -> bytes:
    """One frame's bytes; total size, magic, body CRC and the IPv6 flags are computed.  InvalidArgumentError for a field out of range."""
    born, store = pack_host(frame.born_host), pack_host(frame.store_host)
    sys_flag = frame.sys_flag & ~(_BORN_V6 | _STORE_V6)
    sys_flag |= _BORN_V6 if len(born) == IPV6_HOST_SIZE else 0
    sys_flag |= _STORE_V6 if len(store) == IPV6_HOST_SIZE else 0
    topic, properties = frame.topic.encode(), encode_properties(frame.properties)
    wide = len(topic) > MAX_V1_TOPIC_BYTES
    magic, crc = MAGIC_V2 if wide else MAGIC_V1, crc32(frame.body) & BODY_CRC_MASK
    try:
        tail = struct.pack(">h" if wide else ">b", len(topic)) + topic + struct.pack(">h", len(properties)) + properties
        size = HEAD_SIZE - 2 * IPV4_HOST_SIZE + len(born) + len(store) + len(frame.body) + len(tail)
        first = _FIRST.pack(
            size, magic, crc, frame.queue_id, frame.flag, frame.queue_offset, frame.physical_offset, sys_flag, frame.born_timestamp
        )
        last = _LAST.pack(frame.reconsume_times, frame.prepared_offset, len(frame.body))
        return b"".join([first, born, _TIME.pack(frame.store_timestamp), store, last, frame.body, tail])
    except struct.error as error:
        raise InvalidArgumentError(f"message of topic {frame.topic[:40]!r}: a field is out of its range ({error})") from None


def decode_frame(buffer: Buffer, pos: int = 0, *, check_crc: bool = True) -> Frame:
    """The frame at ``pos``.  Raises CorruptFrameError for anything else there; never reads past the frame's own size."""
    view = memoryview(buffer)[pos:] if pos >= 0 else memoryview(b"")
    if len(view) < MIN_FRAME_SIZE:
        raise CorruptFrameError(f"frame at {pos}: {len(view)} bytes left, expected at least {MIN_FRAME_SIZE}")
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = _FIRST.unpack_from(view)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptFrameError(f"frame at {pos}: magic {magic & 0xFFFFFFFF:#010x} is not a message's")
    born_size = IPV6_HOST_SIZE if sys_flag & _BORN_V6 else IPV4_HOST_SIZE
    store_size = IPV6_HOST_SIZE if sys_flag & _STORE_V6 else IPV4_HOST_SIZE
    head_size = HEAD_SIZE - 2 * IPV4_HOST_SIZE + born_size + store_size
    if not head_size < size <= len(view):
        raise CorruptFrameError(f"frame at {pos}: size {size}, expected {head_size + 1} to {len(view)}")
    view = view[:size]
    born_host = unpack_host(bytes(view[BORN_HOST_AT : BORN_HOST_AT + born_size]))
    store_at = BORN_HOST_AT + born_size
    (store_timestamp,) = _TIME.unpack_from(view, store_at)
    store_host = unpack_host(bytes(view[store_at + 8 : store_at + 8 + store_size]))
    reconsume_times, prepared_offset, body_length = _LAST.unpack_from(view, head_size - _LAST.size)
    body, topic, properties = _decode_tail(view, head_size, body_length, magic == MAGIC_V2, pos)
    if check_crc and crc32(body) & BODY_CRC_MASK != crc:
        raise CorruptFrameError(f"frame at {pos}: body CRC differs")
    return Frame(
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        topic=topic,
        properties=properties,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        total_size=size,
        body_crc=crc,
    )


def unique_key_at(buffer: Buffer, pos: int) -> bytes:
    """UNIQ_KEY of the frame at ``pos``, which has been checked, if that is its first property; else nothing."""
    view = memoryview(buffer)
    sys_flag = view[pos + SYS_FLAG_AT + 3]
    wide_hosts = (1 if sys_flag & _BORN_V6 else 0) + (1 if sys_flag & _STORE_V6 else 0)
    body_at = pos + HEAD_SIZE + wide_hosts * (IPV6_HOST_SIZE - IPV4_HOST_SIZE)
    topic_at = body_at + int.from_bytes(view[body_at - 4 : body_at], "big")
    width = 2 if int.from_bytes(view[pos + 4 : pos + 8], "big", signed=True) == MAGIC_V2 else 1
    at = topic_at + width + int.from_bytes(view[topic_at : topic_at + width], "big")
    length = int.from_bytes(view[at : at + 2], "big")
    first = bytes(view[at + 2 : at + 2 + length]).partition(b"\x02")[0]
    return first.removeprefix(UNIQ_KEY_PREFIX) if first.startswith(UNIQ_KEY_PREFIX) else b""


def _decode_tail(view: memoryview, at: int, body_length: int, wide: bool, pos: int) -> tuple[bytes, str, dict[str, str]]:
    """Body, topic and properties from ``at`` to the end of the frame."""
    topic_at = at + body_length
    width = 2 if wide else 1
    if body_length < 0 or topic_at + width + 2 > len(view):
        raise CorruptFrameError(f"frame at {pos}: body length {body_length} does not fit size {len(view)}")
    topic_length = int.from_bytes(view[topic_at : topic_at + width], "big")
    properties_at = topic_at + width + topic_length
    if properties_at + 2 > len(view):
        raise CorruptFrameError(f"frame at {pos}: topic length {topic_length} does not fit size {len(view)}")
    properties_length = int.from_bytes(view[properties_at : properties_at + 2], "big")
    if properties_at + 2 + properties_length != len(view):
        raise CorruptFrameError(f"frame at {pos}: properties length {properties_length} does not fit size {len(view)}")
    try:
        topic = bytes(view[topic_at + width : properties_at]).decode()
    except UnicodeDecodeError:
        raise CorruptFrameError(f"frame at {pos}: topic is not UTF-8") from None
    return bytes(view[at:topic_at]), topic, decode_properties(view[properties_at + 2 :])
