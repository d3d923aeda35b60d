"""The check that a batch's hash arrays say what its frames say, vectorised.

Owns the two rules.  Unique-key hash: index hash of TOPIC#UNIQ_KEY, 0 without that property.  Tag hash: Java hash of the TAGS property, 0
without one.  Our clients write UNIQ_KEY first and TAGS behind it; that order is checked without looking at each message.  Any other order
is right too and costs a parse a message; only a tag that a writer hides further behind while he claims to have none goes unnoticed, and
then the message is simply not found by it.  Hashes of further keys are not recomputed: a query compares the real key anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import CorruptBatchError
from dledger_wire.frames.frame_check import refuse
from dledger_wire.frames.frame_layout import UNIQ_KEY_PREFIX, decode_properties
from dledger_wire.frames.frames import Bytes1D, Int64s, Records, equal_at, frame_positions, gather, topic_field, uniform_stride
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.java_hash import CHANGING_DIGITS, cached_java_hash, key_hash

_ID_AT = len(UNIQ_KEY_PREFIX)
_TAGS = b"TAGS\x01"
_MAX_DISTINCT_TAGS = 64
_MAX_ID_SIZE = 64  # of an id that is looked at in columns

_NOBODY: Int64s = np.empty(0, np.int64)
Hashes = npt.NDArray[Any]


def check_hashes(data: Bytes1D, sizes: Hashes, heads: Records, topic: str, tag_hashes: Hashes, unique_hashes: Hashes) -> None:
    """Raise CorruptBatchError that names the first message whose hashes differ from its properties.  The frames passed ``check_frames``."""
    frame_sizes = sizes.astype(np.int64)
    positions = frame_positions(frame_sizes)
    ends = positions + frame_sizes
    starts = positions + heads.dtype.itemsize + heads["body_length"] + len(topic_field(topic.encode())) + 2
    stride = uniform_stride(frame_sizes) if uniform_stride(ends - starts) else 0
    size = _id_size(data, starts, ends)
    found = _id_hashes(data, starts, size, stride, topic) if size else None
    if found is None:
        _check_each(data, np.arange(len(starts)), starts, ends, topic, tag_hashes, unique_hashes)
        return
    refuse(found != unique_hashes, "unique-key hash differs from its UNIQ_KEY")
    doubtful = _doubtful_tags(data, starts + (_ID_AT + size + 1), ends, stride, tag_hashes)
    if len(doubtful):
        _check_each(data, doubtful, starts, ends, topic, tag_hashes, unique_hashes)


def _id_size(data: Bytes1D, starts: Int64s, ends: Int64s) -> int:
    """Size of the unique id that is the first property of the first message, if every message has room for such a one, else 0."""
    first = data[int(starts[0]) : min(int(ends[0]), int(starts[0]) + _ID_AT + _MAX_ID_SIZE + 1)].tobytes()
    size = first.find(b"\x02") - _ID_AT
    return size if size >= CHANGING_DIGITS and int((ends - starts).min()) > _ID_AT + size else 0


def _id_hashes(data: Bytes1D, starts: Int64s, size: int, stride: int, topic: str) -> npt.NDArray[np.int32] | None:
    """Index hashes of the unique ids when every message has one of ``size`` digits as its first property, else None."""
    # Ids of one producer begin alike: comparing that part is cheaper than hashing it for each.
    front = data[int(starts[0]) : int(starts[0]) + _ID_AT + size - CHANGING_DIGITS].tobytes()
    alike = bool(equal_at(data, starts, front, stride).all())
    constant = size - CHANGING_DIGITS if alike else 0
    ours = front.startswith(UNIQ_KEY_PREFIX) if alike else bool(equal_at(data, starts, UNIQ_KEY_PREFIX, stride).all())
    digits = gather(data, starts + (_ID_AT + constant), size - constant, stride)
    shared = front[_ID_AT : _ID_AT + constant]
    # No separator inside an id, which would end it early; other bytes than ASCII are no single UTF-16 units.
    if not ours or not shared.isascii() or b"\x02" in shared or int(digits.min()) <= 2 or int(digits.max()) >= 0x80:
        return None
    if not equal_at(data, starts + (_ID_AT + size), b"\x02", stride).all():
        return None
    return fold_key_hashes(hash_columns(digits, f"{topic}#{shared.decode()}"))


def _doubtful_tags(data: Bytes1D, starts: Int64s, ends: Int64s, stride: int, claimed: Hashes) -> Int64s:
    """Messages whose tag hash is not proven by a TAGS property at ``starts`` (one comparison for each distinct tag)."""
    room = ends - starts
    first_claim = int(claimed[0])
    if (claimed == first_claim).all():
        if not first_claim and int(room.max()) < len(_TAGS):
            return _NOBODY
        tag = _tag_at(data, int(starts[0]), int(ends[0]), first_claim)
        if tag is not None and int(room.min()) >= len(tag) and equal_at(data, starts, tag, stride).all():
            return _NOBODY
    tagged = room >= len(_TAGS)
    tagged[tagged] = equal_at(data, starts[tagged], _TAGS)
    proven = ~tagged & (claimed == 0)
    values = np.unique(claimed[tagged])
    for value in values.tolist() if len(values) <= _MAX_DISTINCT_TAGS else ():
        mine = np.flatnonzero(tagged & (claimed == value))
        tag = _tag_at(data, int(starts[mine[0]]), int(ends[mine[0]]), value)
        if tag is not None:
            mine = mine[room[mine] >= len(tag)]
            proven[mine] = equal_at(data, starts[mine], tag)
    return np.flatnonzero(~proven)


def _tag_at(data: Bytes1D, start: int, end: int, claimed: int) -> bytes | None:
    """The TAGS property at ``start``, with its separator, if its hash is ``claimed``."""
    name_value = data[start:end].tobytes().partition(b"\x02")[0]
    tag = name_value[len(_TAGS) :].decode("utf-8", "replace")
    return name_value + b"\x02" if name_value.startswith(_TAGS) and cached_java_hash(tag) == claimed else None


def _check_each(data: Bytes1D, which: Int64s, starts: Int64s, ends: Int64s, topic: str, tag_hashes: Hashes, unique_hashes: Hashes) -> None:
    for place in which.tolist():
        properties = decode_properties(data[int(starts[place]) : int(ends[place])].tobytes())
        unique, tag = properties.get("UNIQ_KEY"), properties.get("TAGS")
        if unique_hashes[place] != (key_hash(topic, unique) if unique is not None else 0):
            raise CorruptBatchError(f"message {place}: unique-key hash differs from its UNIQ_KEY", first_bad=place)
        if tag_hashes[place] != (cached_java_hash(tag) if tag is not None else 0):
            raise CorruptBatchError(f"message {place}: tag hash differs from its TAGS", first_bad=place)
