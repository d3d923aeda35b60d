"""The message frame of the CommitLog, byte-compatible with RocketMQ 5: one at a time, and whole batches with numpy.

Owns the frame layout.  Knows nothing of queues, logs or batches.  All integers are big-endian.

    total size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4 | queue offset 8 | physical offset 8 | sys flag 4 | born time 8 |
    born host 8/20 | store time 8 | store host 8/20 | reconsume times 4 | prepared offset 8 | body length 4 | body |
    topic length 1/2 | topic | properties length 2 | properties

``encode_frame``/``decode_frame`` are the plain twins; ``encode_frames``/``frame_heads``/``check_frames``/``stamp_frames`` work on a batch
without a Python loop over messages.  Frames made by our clients carry UNIQ_KEY as their first property.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dledger_wire.checksum import Buffer
from dledger_wire.errors import CorruptBatchError, CorruptFrameError, InvalidArgumentError
from dledger_wire.status import SysFlag

MAGIC_V1 = -626843481  # 0xDAA320A7: topic length in one byte
MAGIC_V2 = -626843477  # 0xDAA320AB: topic length in two bytes, for topics over 127 bytes
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
HEAD_SIZE = 88  # up to and with the body length, both hosts IPv4
MIN_FRAME_SIZE = HEAD_SIZE + 1 + 2  # without topic
MAX_PROPERTIES_BYTES = 32767
UNIQUE_ID_SIZE = 32
UNIQ_KEY_PREFIX = b"UNIQ_KEY\x01"
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
Bytes2D = npt.NDArray[np.uint8]
Records = npt.NDArray[Any]

_FIRST = struct.Struct(">iiiiiqqiq")  # total size .. born time, 48 bytes


@lru_cache(maxsize=4)
def head_dtype(born_v6: bool = False, store_v6: bool = False) -> np.dtype[np.void]:
    """The fixed fields before the body as a numpy record; hosts are raw bytes (address and 4-byte port)."""
    fields = [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", f"V{20 if born_v6 else 8}"),
        ("store_timestamp", ">i8"),
        ("store_host", f"V{20 if store_v6 else 8}"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_length", ">i4"),
    ]
    return np.dtype(fields)


if head_dtype().itemsize != HEAD_SIZE:
    raise AssertionError("the frame head must take 88 bytes")


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


def pack_host(address: str) -> bytes:
    """``host:port`` (``[v6]:port``) as 8 or 20 bytes.  A host that is a name, not an address, becomes 0.0.0.0."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host) + struct.pack(">i", int(port))
        except OSError:
            continue
    return bytes(4) + struct.pack(">i", int(port))


def unpack_host(packed: bytes) -> str:
    """``address:port`` of 8 or 20 packed bytes."""
    port = struct.unpack(">i", packed[-4:])[0]
    if len(packed) == 8:
        return f"{socket.inet_ntop(socket.AF_INET, packed[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed[:16])}]:{port}"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """``name \\x01 value \\x02 ...``.  Raises InvalidArgumentError for separators inside, an empty name, or over 32767 bytes."""
    for name, value in properties.items():
        if not name or any(mark in text for mark in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR) for text in (name, value)):
            raise InvalidArgumentError(f"property {name!r}: expected a name, and neither \\x01 nor \\x02 in name or value")
    packed = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    if len(packed) > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(f"properties take {len(packed)} bytes; expected at most {MAX_PROPERTIES_BYTES}")
    return packed


def decode_properties(packed: Buffer) -> dict[str, str]:
    """The map of a property string; a pair without a separator is skipped, as upstream does."""
    text = bytes(packed).decode("utf-8", "replace")
    pairs = (pair.partition(NAME_VALUE_SEPARATOR) for pair in text.split(PROPERTY_SEPARATOR) if pair)
    return {name: value for name, separator, value in pairs if separator}


def encode_frame(frame: Frame) -> bytes:
    """One frame's bytes; total size, magic, body CRC and the IPv6 flags are computed."""
    born, store = pack_host(frame.born_host), pack_host(frame.store_host)
    sys_flag = frame.sys_flag & ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    sys_flag |= SysFlag.BORN_HOST_V6 if len(born) == 20 else 0
    sys_flag |= SysFlag.STORE_HOST_V6 if len(store) == 20 else 0
    topic, properties = frame.topic.encode(), encode_properties(frame.properties)
    wide = len(topic) > 127
    tail = struct.pack(">h" if wide else ">b", len(topic)) + topic + struct.pack(">h", len(properties)) + properties
    size = HEAD_SIZE - 16 + len(born) + len(store) + len(frame.body) + len(tail)
    crc = zlib.crc32(frame.body) & 0x7FFFFFFF
    magic = MAGIC_V2 if wide else MAGIC_V1
    first = _FIRST.pack(
        size, magic, crc, frame.queue_id, frame.flag, frame.queue_offset, frame.physical_offset, sys_flag, frame.born_timestamp
    )
    middle = struct.pack(">iqi", frame.reconsume_times, frame.prepared_offset, len(frame.body))
    return b"".join([first, born, struct.pack(">q", frame.store_timestamp), store, middle, frame.body, tail])


def decode_frame(buffer: Buffer, pos: int = 0, *, check_crc: bool = True) -> Frame:
    """The frame at ``pos``.  Raises CorruptFrameError for anything else there; never reads past the frame's own size."""
    view = memoryview(buffer)[pos:]
    if len(view) < MIN_FRAME_SIZE:
        raise CorruptFrameError(f"frame at {pos}: {len(view)} bytes left, expected at least {MIN_FRAME_SIZE}")
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = _FIRST.unpack_from(view)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptFrameError(f"frame at {pos}: magic {magic & 0xFFFFFFFF:#010x} is not a message's")
    born_size = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    head_size = HEAD_SIZE - 16 + born_size + store_size
    if not head_size < size <= len(view):
        raise CorruptFrameError(f"frame at {pos}: size {size}, expected {head_size + 1} to {len(view)}")
    view = view[:size]
    born_host = unpack_host(bytes(view[48 : 48 + born_size]))
    store_at = 48 + born_size
    (store_timestamp,) = struct.unpack_from(">q", view, store_at)
    store_host = unpack_host(bytes(view[store_at + 8 : store_at + 8 + store_size]))
    reconsume_times, prepared_offset, body_length = struct.unpack_from(">iqi", view, head_size - 16)
    body, topic, properties = _decode_tail(view, head_size, body_length, magic == MAGIC_V2, pos)
    if check_crc and zlib.crc32(body) & 0x7FFFFFFF != crc:
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


def encode_frames(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    unique_ids: Bytes2D,
    extras: Sequence[bytes] | bytes,
    *,
    born_timestamp: int,
    born_host: bytes,
    flags: npt.NDArray[np.int32] | int = 0,
    sys_flags: npt.NDArray[np.int32] | int = 0,
) -> tuple[bytes, npt.NDArray[np.uint32]]:
    """(frames back to back, size of each) of a batch: unique ids are an (n, 32) matrix of ASCII, ``extras`` further property bytes
    (one constant, or one a message).  Places and store fields are left zero for the leader to stamp; the store host is IPv4."""
    count = len(bodies)
    packed_topic = topic.encode()
    lengths = np.fromiter(map(len, bodies), np.int64, count)
    extra_lengths: npt.NDArray[np.int64] | int
    constant = extras if isinstance(extras, bytes) else b""
    extra_lengths = len(constant) if isinstance(extras, bytes) else np.fromiter(map(len, extras), np.int64, count)
    fixed_tail = 1 + len(packed_topic) + 2 + len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + 1
    property_lengths = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + 1 + extra_lengths
    if np.max(property_lengths, initial=0) > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(f"properties take {np.max(property_lengths)} bytes; expected at most {MAX_PROPERTIES_BYTES}")
    born_v6 = len(born_host) == 20
    dtype = head_dtype(born_v6)
    heads = np.zeros(count, dtype)
    sizes = dtype.itemsize + lengths + fixed_tail + extra_lengths
    heads["total_size"] = sizes
    heads["magic"] = MAGIC_V1
    heads["body_crc"] = np.fromiter(map(zlib.crc32, bodies), np.uint32, count) & np.uint32(0x7FFFFFFF)
    heads["queue_id"] = queue_id
    heads["flag"] = flags
    heads["sys_flag"] = sys_flags | (int(SysFlag.BORN_HOST_V6) if born_v6 else 0)
    heads["born_timestamp"] = born_timestamp
    heads["born_host"] = np.void(born_host)
    heads["body_length"] = lengths
    tails = _encode_tails(packed_topic, property_lengths, unique_ids, constant)
    width = 3 if isinstance(extras, bytes) else 4
    parts: list[bytes] = [b""] * (width * count)
    parts[0::width] = heads.view(f"V{dtype.itemsize}").tolist()
    parts[1::width] = bodies
    parts[2::width] = tails.view(f"V{tails.shape[1]}").ravel().tolist()
    if width == 4:
        parts[3::4] = cast(Sequence[bytes], extras)
    return b"".join(parts), sizes.astype(np.uint32)


def _encode_tails(topic: bytes, property_lengths: npt.NDArray[np.int64] | int, unique_ids: Bytes2D, constant: bytes) -> Bytes2D:
    """(n, width) matrix of topic, properties length, UNIQ_KEY and constant properties."""
    count = len(unique_ids)
    prefix = bytes([len(topic)]) + topic + b"\0\0" + UNIQ_KEY_PREFIX
    length_at, id_at = 1 + len(topic), len(prefix)
    template = np.frombuffer(prefix + bytes(UNIQUE_ID_SIZE) + b"\x02" + constant, np.uint8)
    tails = np.empty((count, len(template)), np.uint8)
    tails[:] = template
    lengths = np.broadcast_to(np.asarray(property_lengths, dtype=">u2"), count)
    tails[:, length_at : length_at + 2] = lengths.copy().view(np.uint8).reshape(-1, 2)
    tails[:, id_at : id_at + UNIQUE_ID_SIZE] = unique_ids
    return tails


def frame_positions(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Start of each frame from the sizes of frames that lie back to back."""
    positions = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=positions[1:])
    return positions


def gather(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int, stride: int = 0) -> Bytes2D:
    """(n, width) matrix of the bytes at ``positions``; ``stride`` > 0 promises equal distances from the first, which needs no index."""
    count = len(positions)
    if stride and count:
        start = int(positions[0])
        return np.lib.stride_tricks.as_strided(data[start:], (count, width), (stride, 1), writeable=False)
    return cast(Bytes2D, data[positions[:, None] + np.arange(width)])


def uniform_stride(sizes: npt.NDArray[Any]) -> int:
    """The common size of frames that are all equally large, else 0."""
    return int(sizes[0]) if len(sizes) and bool((sizes == sizes[0]).all()) else 0


def frame_heads(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], *, stride: int = 0) -> Records:
    """The fixed fields of every frame as records.  All frames must have hosts of the kinds the first has (see ``host_kinds``)."""
    dtype = head_dtype(*host_kinds(data, positions))
    matrix = np.ascontiguousarray(gather(data, positions, dtype.itemsize, stride))
    return matrix.view(dtype).ravel()


def host_kinds(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]) -> tuple[bool, bool]:
    """(born host is IPv6, store host is IPv6) of the first frame."""
    if not len(positions):
        return False, False
    low = int(data[int(positions[0]) + SYS_FLAG_AT + 3])
    return bool(low & SysFlag.BORN_HOST_V6), bool(low & SysFlag.STORE_HOST_V6)


def stamp_frames(
    data: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    *,
    first_queue_offset: int,
    physical_base: int,
    store_timestamp: int,
    store_host: bytes,
    born_v6: bool = False,
    stride: int = 0,
) -> None:
    """Write queue offset, physical offset, store time and store host (8 bytes) into the frames of ``data`` (writable, in place).

    ``physical_base`` is the log position of ``data[0]``.
    """
    count = len(positions)
    store_at = 68 if born_v6 else 56
    # Queue offset and physical offset are neighbours, as are store time and store host: two scatters of 16 bytes.
    places = np.empty((count, 2), ">i8")
    places[:, 0] = np.arange(first_queue_offset, first_queue_offset + count)
    places[:, 1] = positions + physical_base
    stored = np.frombuffer(struct.pack(">q", store_timestamp) + store_host, np.uint8)
    if stride and count:
        start = int(positions[0])
        rows = np.lib.stride_tricks.as_strided(data[start:], (count, store_at + 16), (stride, 1))
        rows[:, QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 16] = places.view(np.uint8).reshape(count, 16)
        rows[:, store_at : store_at + 16] = stored
        return
    spread = np.arange(16)
    data[positions[:, None] + (QUEUE_OFFSET_AT + spread)] = places.view(np.uint8).reshape(count, 16)
    data[positions[:, None] + (store_at + spread)] = stored


def check_frames(data: npt.NDArray[np.uint8], sizes: npt.NDArray[Any], queue_id: int, topic: bytes, max_body_bytes: int) -> Records:
    """Check every frame of a batch against its size, queue and topic, bodies against their CRCs; the heads, for further use.

    Raises CorruptBatchError that names the first bad message; nothing is accepted in part.
    """
    sizes = sizes.astype(np.int64)
    least = MIN_FRAME_SIZE + len(topic)
    _refuse(sizes < least, "frame smaller than its fixed part")
    if int(sizes.sum()) != len(data):
        raise CorruptBatchError(f"frames take {len(data)} bytes, the sizes add up to {int(sizes.sum())}", first_bad=-1)
    positions, stride = frame_positions(sizes), uniform_stride(sizes)
    born_v6, store_v6 = host_kinds(data, positions)
    head_size = head_dtype(born_v6, store_v6).itemsize
    _refuse(sizes < head_size + 3 + len(topic), "frame smaller than its fixed part")
    heads = frame_heads(data, positions, stride=stride)
    mixed = (heads["sys_flag"] & 0x30) != (heads["sys_flag"][0] & 0x30)
    _refuse(mixed, "host kinds differ within the batch")
    _refuse(heads["total_size"] != sizes, "total size differs from the batch's size array")
    _refuse(heads["magic"] != MAGIC_V1, "magic is not a message's")
    _refuse(heads["queue_id"] != queue_id, "queue id differs from the batch's")
    lengths = heads["body_length"].astype(np.int64)
    _refuse((lengths < 0) | (lengths > sizes - head_size - 3 - len(topic)), "body length does not fit the frame")
    _refuse(lengths > max_body_bytes, f"body larger than {max_body_bytes} bytes")
    tails = positions + head_size + lengths
    even = stride if uniform_stride(lengths + 1) else 0
    ends = gather(data, tails, 1 + len(topic) + 2, even)
    named = np.frombuffer(bytes([len(topic)]) + topic, np.uint8)
    _refuse((ends[:, : len(named)] != named).any(axis=1), "topic differs from the batch's")
    property_lengths = ends[:, -2].astype(np.int64) << 8 | ends[:, -1]
    _refuse(head_size + lengths + 1 + len(topic) + 2 + property_lengths != sizes, "properties length does not fit the frame")
    _check_body_crcs(data, positions + head_size, lengths, heads["body_crc"].astype(np.uint32), stride=even)
    return heads


def _refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        first = int(bad.argmax())
        raise CorruptBatchError(f"message {first}: {what}", first_bad=first)


def _check_body_crcs(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], crcs: npt.NDArray[np.uint32], *, stride: int
) -> None:
    """Bodies of equal length at equal distances are checked together: CRC-32 is affine over GF(2), so the XOR of the CRCs is the CRC of the
    XOR of the bodies (up to the CRC of zeros when their number is even).  The even half is checked again by itself, so that two errors
    side by side do not cancel.  Only a mismatch, or bodies of mixed lengths, costs a call a message."""
    count = len(starts)
    if stride and count >= 8 and int(lengths[0]):
        bodies = gather(data, starts, int(lengths[0]), stride)
        if all(_crcs_agree(bodies[part], crcs[part]) for part in (slice(None), slice(None, None, 2))):
            return
    view = memoryview(data)  # type: ignore[arg-type]
    spans = map(slice, starts.tolist(), (starts + lengths).tolist())
    found = np.fromiter(map(zlib.crc32, map(view.__getitem__, spans)), np.uint32, count) & np.uint32(0x7FFFFFFF)
    _refuse(found != crcs, "body CRC differs")


def _crcs_agree(bodies: Bytes2D, crcs: npt.NDArray[np.uint32]) -> bool:
    expected = zlib.crc32(np.bitwise_xor.reduce(bodies, axis=0).tobytes())
    if len(bodies) % 2 == 0:
        expected ^= zlib.crc32(bytes(bodies.shape[1]))
    return expected & 0x7FFFFFFF == int(np.bitwise_xor.reduce(crcs))
