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
from dledger_wire.frame_layout import UNIQ_KEY_PREFIX, UNIQUE_ID_SIZE, decode_properties
from dledger_wire.frames import Bytes1D, Bytes2D, Int64s, Records, frame_positions, gather, topic_field, uniform_stride
from dledger_wire.java_hash import cached_java_hash, fold_key_hashes, hash_columns, key_hash

_ID_AT = len(UNIQ_KEY_PREFIX)
_LEAD = _ID_AT + UNIQUE_ID_SIZE + 1  # the UNIQ_KEY property with its separator
_TAGS = b"TAGS\x01"
_MAX_DISTINCT_TAGS = 64
_CONSTANT_DIGITS = 20  # of a unique id: the same for all ids of one producer

Hashes = npt.NDArray[Any]


def check_hashes(data: Bytes1D, sizes: Hashes, heads: Records, topic: str, tag_hashes: Hashes, unique_hashes: Hashes) -> None:
    """Raise CorruptBatchError that names the first message whose hashes differ from its properties.  The frames passed ``check_frames``."""
    frame_sizes = sizes.astype(np.int64)
    positions = frame_positions(frame_sizes)
    ends = positions + frame_sizes
    starts = positions + heads.dtype.itemsize + heads["body_length"] + len(topic_field(topic.encode())) + 2
    stride = uniform_stride(frame_sizes) if uniform_stride(ends - starts) else 0
    ids = _leading_ids(data, starts, ends, stride)
    if ids is None:
        _check_each(data, np.arange(len(starts)), starts, ends, topic, tag_hashes, unique_hashes)
        return
    _refuse(_id_hashes(ids, topic) != unique_hashes, "unique-key hash differs from its UNIQ_KEY")
    doubtful = _doubtful_tags(data, starts + _LEAD, ends, stride, tag_hashes)
    if len(doubtful):
        _check_each(data, doubtful, starts, ends, topic, tag_hashes, unique_hashes)


def _leading_ids(data: Bytes1D, starts: Int64s, ends: Int64s, stride: int) -> Bytes2D | None:
    """The unique ids when every message has one of ours as its first property, else None."""
    if bool((ends - starts < _LEAD).any()):
        return None
    lead = gather(data, starts, _LEAD, stride)
    ids = lead[:, _ID_AT : _ID_AT + UNIQUE_ID_SIZE]
    ours = (lead[:, :_ID_AT] == np.frombuffer(UNIQ_KEY_PREFIX, np.uint8)).all() and (lead[:, -1] == 2).all()
    # Digits and letters only: a separator inside would end the id early, and other bytes are no single UTF-16 units.
    return ids if ours and int(ids.min()) > 2 and int(ids.max()) < 0x80 else None


def _id_hashes(ids: Bytes2D, topic: str) -> npt.NDArray[np.int32]:
    front = ids[:, :_CONSTANT_DIGITS]
    if (front == front[0]).all():
        return fold_key_hashes(hash_columns(ids[:, _CONSTANT_DIGITS:], f"{topic}#{front[0].tobytes().decode()}"))
    return fold_key_hashes(hash_columns(ids, f"{topic}#"))


def _doubtful_tags(data: Bytes1D, starts: Int64s, ends: Int64s, stride: int, claimed: Hashes) -> Int64s:
    """Messages whose tag hash is not proven by a TAGS property at ``starts`` (one comparison for each distinct tag)."""
    room = ends - starts
    fits = room >= len(_TAGS)
    tagged = fits.copy()
    if fits.all():
        tagged = (gather(data, starts, len(_TAGS), stride) == np.frombuffer(_TAGS, np.uint8)).all(axis=1)
    elif fits.any():
        tagged[fits] = (gather(data, starts[fits], len(_TAGS)) == np.frombuffer(_TAGS, np.uint8)).all(axis=1)
    proven = ~tagged & (claimed == 0)
    same = bool((claimed == claimed[0]).all())
    values = [claimed[0]] if same else np.unique(claimed[tagged])
    if len(values) > _MAX_DISTINCT_TAGS:
        return np.flatnonzero(~proven)
    for value in values:
        mine = np.flatnonzero(tagged & (claimed == value))
        if not len(mine):
            continue
        first = int(mine[0])
        tag = data[int(starts[first]) : int(ends[first])].tobytes().partition(b"\x02")[0] + b"\x02"
        if cached_java_hash(tag[len(_TAGS) : -1].decode("utf-8", "replace")) != value:
            continue
        mine = mine[room[mine] >= len(tag)]
        whole = stride if len(mine) == len(starts) else 0
        proven[mine] = (gather(data, starts[mine], len(tag), whole) == np.frombuffer(tag, np.uint8)).all(axis=1)
    return np.flatnonzero(~proven)


def _check_each(data: Bytes1D, which: Int64s, starts: Int64s, ends: Int64s, topic: str, tag_hashes: Hashes, unique_hashes: Hashes) -> None:
    for place in which.tolist():
        properties = decode_properties(data[int(starts[place]) : int(ends[place])].tobytes())
        unique, tag = properties.get("UNIQ_KEY"), properties.get("TAGS")
        if unique_hashes[place] != (key_hash(topic, unique) if unique is not None else 0):
            raise CorruptBatchError(f"message {place}: unique-key hash differs from its UNIQ_KEY", first_bad=place)
        if tag_hashes[place] != (cached_java_hash(tag) if tag is not None else 0):
            raise CorruptBatchError(f"message {place}: tag hash differs from its TAGS", first_bad=place)


def _refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        first = int(bad.argmax())
        raise CorruptBatchError(f"message {first}: {what}", first_bad=first)
