"""The structural check of a batch's frames before they are accepted, vectorised: a lying or damaged batch is refused whole.

Owns what must hold of frames that came from a client.  The batch's arrays and hashes are checked by ``batch.py`` and ``batch_hashes.py``.

    check_frames(data, sizes, queue_id, topic, max_body_bytes) -> Records     CorruptBatchError / MessageTooLargeError name the message
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import CorruptBatchError, MessageTooLargeError
from dledger_wire.frames.body_crc import first_bad_body
from dledger_wire.frames.frame_head import head_dtype
from dledger_wire.frames.frame_layout import HEAD_SIZE, MAX_PROPERTIES_BYTES
from dledger_wire.frames.frames import (
    HOST_FLAGS,
    Bytes1D,
    Records,
    equal_at,
    frame_positions,
    gather,
    host_kinds,
    magic_of,
    topic_field,
    uniform_stride,
)
from dledger_wire.status import SysFlag


def check_frames(data: Bytes1D, sizes: npt.NDArray[Any], queue_id: int, topic: bytes, max_body_bytes: int) -> Records:
    """Check every frame of a batch against its size, queue and topic, bodies against their CRCs; the heads, for further use.

    Raises CorruptBatchError or MessageTooLargeError that names the first bad message; nothing is accepted in part.
    """
    sizes = sizes.astype(np.int64)
    field = topic_field(topic)
    fixed_tail = len(field) + 2
    refuse(sizes < HEAD_SIZE + fixed_tail, "frame smaller than its fixed part")
    if int(sizes.sum()) != len(data):
        raise CorruptBatchError(f"frames take {len(data)} bytes, the sizes add up to {int(sizes.sum())}", first_bad=-1)
    positions, stride = frame_positions(sizes), uniform_stride(sizes)
    born_v6, store_v6 = host_kinds(data, positions)
    dtype = head_dtype(born_v6, store_v6)
    refuse(sizes < dtype.itemsize + fixed_tail, "frame smaller than its fixed part")
    heads: Records = np.ascontiguousarray(gather(data, positions, dtype.itemsize, stride)).view(dtype).ravel()
    hosts = int(SysFlag.BORN_HOST_V6) if born_v6 else 0
    refuse((heads["sys_flag"] & HOST_FLAGS) != hosts, "born hosts of two kinds, or an IPv6 store host, within the batch")
    refuse(heads["total_size"] != sizes, "total size differs from the batch's size array")
    refuse(heads["magic"] != magic_of(topic), "magic is not that of a message of this topic")
    refuse(heads["queue_id"] != queue_id, "queue id differs from the batch's")
    lengths = heads["body_length"].astype(np.int64)
    refuse((lengths < 0) | (lengths > sizes - dtype.itemsize - fixed_tail), "body length does not fit the frame")
    too_large = lengths > max_body_bytes
    if too_large.any():
        first = int(too_large.argmax())
        raise MessageTooLargeError(f"message {first}: body of {lengths[first]} bytes; expected at most {max_body_bytes}", first_bad=first)
    even = stride if uniform_stride(lengths + 1) else 0
    tails = positions + (dtype.itemsize + lengths)
    refuse(~equal_at(data, tails, field, even), "topic differs from the batch's")
    packed = gather(data, tails + len(field), 2, even)
    property_lengths = packed[:, 0].astype(np.int64) << 8 | packed[:, 1]
    refuse(dtype.itemsize + lengths + fixed_tail + property_lengths != sizes, "properties length does not fit the frame")
    refuse(property_lengths > MAX_PROPERTIES_BYTES, "properties longer than a frame may carry")
    found = first_bad_body(data, positions + dtype.itemsize, lengths, heads["body_crc"].astype(np.uint32), stride=even)
    if found is not None:
        raise CorruptBatchError(f"message {found}: body CRC differs", first_bad=found)
    return heads


def refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        first = int(bad.argmax())
        raise CorruptBatchError(f"message {first}: {what}", first_bad=first)
