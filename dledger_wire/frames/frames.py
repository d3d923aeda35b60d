"""Message frames, a whole batch at a time with numpy: the twin of ``frame.py`` without a Python loop over messages.

Owns encoding, stamping and reading frames that lie in one buffer; ``frame_check.py`` checks them.  ``data`` is always a uint8 array over
that buffer (``np.frombuffer(buffer, np.uint8)``, no copy), ``positions`` an int64 array of where frames start in it.  ``stride`` is the
distance of frames that lie equally far apart (``uniform_stride``), 0 when they do not: it turns index gathers into plain views.

    encode_frames(topic, queue_id, bodies, unique_ids, extras, fields) -> (frames, sizes)
    stamp_frames(data, positions, *, first_queue_offset, physical_base, store_timestamp, store_host, ...)      in place
    frame_columns(data, positions) -> FrameColumns     every fixed field, places of body, topic, properties; CorruptFrameError
    cut_bytes(buffer, starts, lengths) -> list[bytes]

Frames made by our clients carry UNIQ_KEY as their first property.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dledger_wire.checksum import Buffer, crc32
from dledger_wire.errors import CorruptFrameError, InvalidArgumentError
from dledger_wire.frames.frame_head import head_dtype
from dledger_wire.frames.frame_layout import (
    BODY_CRC_MASK,
    BORN_HOST_AT,
    IPV4_HOST_SIZE,
    IPV6_HOST_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MAX_V1_TOPIC_BYTES,
    MIN_FRAME_SIZE,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    UNIQ_KEY_PREFIX,
    UNIQUE_ID_SIZE,
    unpack_host,
)
from dledger_wire.status import SysFlag

Bytes1D = npt.NDArray[np.uint8]
Bytes2D = npt.NDArray[np.uint8]
Records = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

FEW = 8  # frames that are not worth a matrix
HOST_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


def frame_positions(sizes: npt.NDArray[Any]) -> Int64s:
    """Start of each frame from the sizes of frames that lie back to back."""
    positions = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=positions[1:])
    return positions


def uniform_stride(sizes: npt.NDArray[Any]) -> int:
    """The common size of frames that are all equally large, else 0."""
    return int(sizes[0]) if len(sizes) and bool((sizes == sizes[0]).all()) else 0


def _step(positions: Int64s) -> int:
    """The stride of ``positions`` that are equally far apart, else 0."""
    if len(positions) < 2:
        return len(positions)
    steps = np.diff(positions)
    return int(steps[0]) if steps[0] > 0 and bool((steps == steps[0]).all()) else 0


def _rows(data: Bytes1D, start: int, count: int, width: int, stride: int) -> Bytes2D:
    """(count, width) view of ``data``, one row every ``stride`` bytes; numpy refuses one that would leave ``data``."""
    return np.ndarray((count, width), np.uint8, cast(Any, data), start, (stride, 1))


def _everywhere(data: Bytes1D, dtype: Any, width: int) -> npt.NDArray[Any]:
    """``data`` as overlapping items of ``width`` bytes, one at each byte: indexing it moves whole items, not bytes."""
    return np.ndarray((max(len(data) - width + 1, 0),), dtype, cast(Any, data), 0, (1,))


@lru_cache(maxsize=256)
def _void(width: int) -> np.dtype[Any]:
    return np.dtype(f"V{width}")


def gather(data: Bytes1D, positions: Int64s, width: int, stride: int = 0) -> Bytes2D:
    """(n, width) matrix of the bytes at ``positions``; ``stride`` > 0 promises equal distances from the first, which needs no copy."""
    count = len(positions)
    if stride and count:
        return _rows(data, int(positions[0]), count, width, stride)
    return _everywhere(data, _void(width), width)[positions].view(np.uint8).reshape(count, width)


def equal_at(data: Bytes1D, positions: Int64s, wanted: bytes, stride: int = 0) -> npt.NDArray[np.bool_]:
    """Whether the bytes ``wanted`` (at least one) stand at each position, compared in words as wide as they come."""
    count = len(positions)
    if not count:
        return np.ones(0, np.bool_)
    dtype, words = _words(wanted)
    equal: npt.NDArray[np.bool_] | None = None
    start = int(positions[0])
    for at, value in words:
        if stride:
            found = np.ndarray((count,), dtype, cast(Any, data), start + at, (stride,)) == value
        else:
            found = _everywhere(data, dtype, dtype.itemsize)[positions + at] == value
        equal = found if equal is None else equal & found
    return cast(npt.NDArray[np.bool_], equal)


@lru_cache(maxsize=1024)
def _words(wanted: bytes) -> tuple[np.dtype[Any], tuple[tuple[int, int], ...]]:
    """(type, (place, value) of each word); the last one overlaps the one before when the length is no multiple of the width."""
    width = next(size for size in (8, 4, 2, 1) if size <= len(wanted))
    places = sorted({*range(0, len(wanted) - width + 1, width), len(wanted) - width})
    return np.dtype(f"<u{width}"), tuple((at, int.from_bytes(wanted[at : at + width], "little")) for at in places)


def cut_bytes(buffer: Buffer, starts: Int64s, lengths: Int64s) -> list[bytes]:
    """The byte strings that start at ``starts``; a copy each, made without a Python loop."""
    width, step = uniform_stride(lengths), _step(starts)
    if width and step:  # a third of the time
        found: list[bytes] = np.ndarray((len(starts),), f"V{width}", cast(Any, buffer), int(starts[0]), (step,)).tolist()
        return found
    spans = map(slice, starts.tolist(), (starts + lengths).tolist())
    if isinstance(buffer, bytes):
        return list(map(buffer.__getitem__, spans))
    return list(map(bytes, map(memoryview(buffer).__getitem__, spans)))


@dataclass(frozen=True, slots=True)
class FrameFields:
    """What the frames of a batch say of their origin and of their contents: one value for all, or one for each."""

    born_timestamp: int
    born_host: bytes
    flags: npt.NDArray[np.int32] | int = 0
    sys_flags: npt.NDArray[np.int32] | int = 0


def encode_frames(
    topic: str, queue_id: int, bodies: Sequence[bytes], unique_ids: Bytes2D, extras: Sequence[bytes] | bytes, fields: FrameFields
) -> tuple[Buffer, npt.NDArray[np.uint32]]:
    """(frames back to back, size of each) of a batch: unique ids are an (n, 32) matrix of ASCII, ``extras`` further property bytes
    (one constant, or one a message).  Places and store fields are left zero for the leader to stamp; the store host is IPv4."""
    count = len(bodies)
    packed_topic = topic.encode()
    lengths = np.fromiter(map(len, bodies), np.int64, count)
    constant = extras if isinstance(extras, bytes) else b""
    extra_lengths: Int64s | int = len(constant) if isinstance(extras, bytes) else np.fromiter(map(len, extras), np.int64, count)
    property_lengths = len(UNIQ_KEY_PREFIX) + UNIQUE_ID_SIZE + 1 + extra_lengths
    if np.max(property_lengths, initial=0) > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(f"properties take {np.max(property_lengths)} bytes; expected at most {MAX_PROPERTIES_BYTES}")
    born_v6 = len(fields.born_host) == IPV6_HOST_SIZE
    dtype = head_dtype(born_v6)
    heads = np.zeros(count, dtype)
    sizes = dtype.itemsize + lengths + _topic_width(packed_topic) + len(packed_topic) + 2 + property_lengths
    heads["total_size"] = sizes
    heads["magic"] = magic_of(packed_topic)
    heads["body_crc"] = np.fromiter(map(crc32, bodies), np.uint32, count) & np.uint32(BODY_CRC_MASK)
    heads["queue_id"] = queue_id
    heads["flag"] = fields.flags
    heads["sys_flag"] = fields.sys_flags | (int(SysFlag.BORN_HOST_V6) if born_v6 else 0)
    heads["born_timestamp"] = fields.born_timestamp
    heads["born_host"] = np.void(fields.born_host)
    heads["body_length"] = lengths
    tails = _encode_tails(packed_topic, property_lengths, unique_ids, constant)
    if isinstance(extras, bytes) and count >= FEW and bool((lengths == lengths[0]).all()):
        return _joined_rows(heads, bodies, tails), sizes.astype(np.uint32)
    width = 3 if isinstance(extras, bytes) else 4
    parts: list[bytes] = [b""] * (width * count)
    parts[0::width] = heads.view(f"V{dtype.itemsize}").tolist()
    parts[1::width] = bodies
    parts[2::width] = tails.view(f"V{tails.shape[1]}").ravel().tolist()
    if width == 4:
        parts[3::4] = cast(Sequence[bytes], extras)
    return b"".join(parts), sizes.astype(np.uint32)


def _joined_rows(heads: Records, bodies: Sequence[bytes], tails: Bytes2D) -> memoryview:
    """Frames of equal length, put together a column at a time instead of three byte strings a message."""
    count, head = len(heads), heads.dtype.itemsize
    content = np.frombuffer(b"".join(bodies), np.uint8).reshape(count, -1) if bodies[0] else np.empty((count, 0), np.uint8)
    rows = np.empty((count, head + content.shape[1] + tails.shape[1]), np.uint8)
    rows[:, :head] = heads.view(np.uint8).reshape(count, head)
    rows[:, head : head + content.shape[1]] = content
    rows[:, head + content.shape[1] :] = tails
    return memoryview(rows.ravel())  # type: ignore[arg-type]


def _topic_width(topic: bytes) -> int:
    """Bytes of the topic length field."""
    return 2 if len(topic) > MAX_V1_TOPIC_BYTES else 1


def magic_of(topic: bytes) -> int:
    return MAGIC_V2 if len(topic) > MAX_V1_TOPIC_BYTES else MAGIC_V1


def topic_field(topic: bytes) -> bytes:
    return len(topic).to_bytes(_topic_width(topic), "big") + topic


def _encode_tails(topic: bytes, property_lengths: Int64s | int, unique_ids: Bytes2D, constant: bytes) -> Bytes2D:
    """(n, width) matrix of topic, properties length, UNIQ_KEY and constant properties."""
    count = len(unique_ids)
    field = topic_field(topic)
    prefix = field + b"\0\0" + UNIQ_KEY_PREFIX
    length_at, id_at = len(field), len(prefix)
    template = np.frombuffer(prefix + bytes(UNIQUE_ID_SIZE) + b"\x02" + constant, np.uint8)
    tails = np.empty((count, len(template)), np.uint8)
    tails[:] = template
    lengths = np.broadcast_to(np.asarray(property_lengths, dtype=">u2"), count)
    tails[:, length_at : length_at + 2] = lengths.copy().view(np.uint8).reshape(-1, 2)
    tails[:, id_at : id_at + UNIQUE_ID_SIZE] = unique_ids
    return tails


def stamp_frames(
    data: Bytes1D,
    positions: Int64s,
    *,
    first_queue_offset: int,
    physical_base: int,
    store_timestamp: int,
    store_host: bytes,
    born_v6: bool = False,
    stride: int = 0,
) -> None:
    """Write queue offset, physical offset, store time and store host into the frames of ``data`` (writable, in place).

    ``physical_base`` is the log position of ``data[0]``.  ``store_host`` is as wide as the frames' field for it.
    """
    count = len(positions)
    if not count:
        return
    store_at = BORN_HOST_AT + (IPV6_HOST_SIZE if born_v6 else IPV4_HOST_SIZE)
    # Queue offset and physical offset are neighbours, as are store time and store host: two moves a frame.
    places = np.empty((count, 2), ">i8")
    places[:, 0] = np.arange(first_queue_offset, first_queue_offset + count)
    places[:, 1] = positions + physical_base
    width = 8 + len(store_host)
    stored = np.frombuffer(struct.pack(">q", store_timestamp) + store_host, f"V{width}")
    if stride:
        rows = _rows(data, int(positions[0]), count, store_at + width, stride)
        rows[:, QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 16] = places.view(np.uint8)
        rows[:, store_at : store_at + width] = stored.view(np.uint8)
        return
    _everywhere(data, _void(16), 16)[positions + QUEUE_OFFSET_AT] = places.view(_void(16)).ravel()
    _everywhere(data, _void(width), width)[positions + store_at] = stored


def host_kinds(data: Bytes1D, positions: Int64s) -> tuple[bool, bool]:
    """(born host is IPv6, store host is IPv6) of the first frame."""
    if not len(positions):
        return False, False
    low = int(data[int(positions[0]) + SYS_FLAG_AT + 3])
    return bool(low & SysFlag.BORN_HOST_V6), bool(low & SysFlag.STORE_HOST_V6)


def frame_heads(data: Bytes1D, positions: Int64s, *, stride: int = 0) -> tuple[Records, Int64s]:
    """(the fixed fields of every frame as records, where their bodies start); host fields are 20 bytes wide when the frames mix IPv4 and
    IPv6.  CorruptFrameError when there are not as many bytes."""
    _demand((positions >= 0) & (positions <= len(data) - MIN_FRAME_SIZE), "not enough bytes for a frame")
    kinds = gather(data, positions + SYS_FLAG_AT + 3, 1, stride)[:, 0] & np.uint8(HOST_FLAGS)
    if len(kinds) and not bool((kinds == kinds[0]).all()):
        return _mixed_heads(data, positions, kinds)
    dtype = head_dtype(*host_kinds(data, positions))
    _demand(positions <= len(data) - dtype.itemsize, "not enough bytes for a frame")
    heads: Records = np.ascontiguousarray(gather(data, positions, dtype.itemsize, stride)).view(dtype).ravel()
    return heads, positions + dtype.itemsize


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Frames as columns.  ``heads`` has a field for each fixed field (``frame_head.head_dtype``; host fields are 20 bytes wide when the
    frames mix IPv4 and IPv6); the places are positions in the buffer, lengths in bytes."""

    heads: Records
    body_at: Int64s
    body_length: Int64s
    topic_at: Int64s
    topic_length: Int64s
    properties_at: Int64s
    properties_length: Int64s

    def hosts(self, field: str) -> list[str]:
        """``address:port`` of ``born_host`` or ``store_host`` of every frame."""
        flag = SysFlag.BORN_HOST_V6 if field == "born_host" else SysFlag.STORE_HOST_V6
        sizes = np.where(self.heads["sys_flag"] & flag, IPV6_HOST_SIZE, IPV4_HOST_SIZE).tolist()
        return [unpack_host(bytes(host)[:size]) for host, size in zip(self.heads[field].tolist(), sizes, strict=True)]


def frame_columns(data: Bytes1D, positions: Int64s, *, bodiless: bool = False) -> FrameColumns:
    """Every field of the frames at ``positions``, whatever their hosts and magics.  Raises CorruptFrameError (``first_bad``) unless each is
    whole and its lengths add up; body CRCs are not looked at.  ``bodiless``: bodies are cut out, heads still hold their lengths."""
    end = len(data)
    positions = positions.astype(np.int64, copy=False)
    heads, body_at = frame_heads(data, positions, stride=_step(positions))
    ends = positions + heads["total_size"]
    body_length = heads["body_length"].astype(np.int64)
    if bodiless:
        _demand(body_length >= 0, "body length is none")
        ends, body_length = ends - body_length, np.zeros_like(body_length)
    wide = heads["magic"] == MAGIC_V2
    widths = 1 + wide
    _demand(wide | (heads["magic"] == MAGIC_V1), "magic is not a message's")
    _demand((ends >= body_at + 3) & (ends <= end), "size does not fit the bytes there")
    _demand((body_length >= 0) & (body_at + body_length + widths + 2 <= ends), "body length does not fit the frame")
    topic_at = body_at + body_length + widths
    topic_length = data[topic_at - 1].astype(np.int64)
    if wide.any():
        topic_length[wide] |= data[topic_at[wide] - 2].astype(np.int64) << 8
    properties_at = topic_at + topic_length + 2
    _demand(properties_at <= ends, "topic length does not fit the frame")
    properties_length = data[properties_at - 2].astype(np.int64) << 8 | data[properties_at - 1]
    _demand(properties_at + properties_length == ends, "properties length does not fit the frame")
    return FrameColumns(heads, body_at, body_length, topic_at, topic_length, properties_at, properties_length)


def _mixed_heads(data: Bytes1D, positions: Int64s, kinds: Bytes1D) -> tuple[Records, Int64s]:
    """(heads with 20-byte host fields, where the bodies start) of frames whose hosts are of different kinds."""
    heads = np.zeros(len(positions), head_dtype(True, True))
    body_at = np.empty(len(positions), np.int64)
    for kind in np.unique(kinds).tolist():
        mine = np.flatnonzero(kinds == kind)
        dtype = head_dtype(bool(kind & SysFlag.BORN_HOST_V6), bool(kind & SysFlag.STORE_HOST_V6))
        _demand((positions <= len(data) - dtype.itemsize) | (kinds != kind), "not enough bytes for a frame")
        part: Records = gather(data, positions[mine], dtype.itemsize).view(dtype).ravel()
        for name in dtype.names or ():
            heads[name][mine] = _padded_hosts(part[name]) if name.endswith("_host") else part[name]
        body_at[mine] = positions[mine] + dtype.itemsize
    return heads, body_at


def _padded_hosts(hosts: Records) -> Records:
    """Host fields as 20 raw bytes each, zeros behind an IPv4 host."""
    padded = np.zeros((len(hosts), IPV6_HOST_SIZE), np.uint8)
    padded[:, : hosts.dtype.itemsize] = np.ascontiguousarray(hosts).view(np.uint8).reshape(len(hosts), -1)
    return padded.view(f"V{IPV6_HOST_SIZE}").ravel()


def _demand(good: npt.NDArray[np.bool_], what: str) -> None:
    if not good.all():
        first = int(good.argmin())
        raise CorruptFrameError(f"frame {first}: {what}", first_bad=first)
