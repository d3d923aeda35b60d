"""The structural check of a batch's frames before they are accepted, vectorised: a lying or damaged batch is refused whole.

Owns what must hold of frames that came from a client.  The batch's arrays and hashes are checked by ``batch.py`` and ``batch_hashes.py``.

    check_frames(data, sizes, queue_id, topic, max_body_bytes) -> Records     CorruptBatchError / MessageTooLargeError name the message
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import CorruptBatchError, MessageTooLargeError
from dledger_wire.frame_layout import BODY_CRC_MASK, HEAD_SIZE, MAX_PROPERTIES_BYTES, head_dtype
from dledger_wire.frames import (
    HOST_FLAGS,
    Bytes1D,
    Bytes2D,
    Int64s,
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
    _refuse(sizes < HEAD_SIZE + fixed_tail, "frame smaller than its fixed part")
    if int(sizes.sum()) != len(data):
        raise CorruptBatchError(f"frames take {len(data)} bytes, the sizes add up to {int(sizes.sum())}", first_bad=-1)
    positions, stride = frame_positions(sizes), uniform_stride(sizes)
    born_v6, store_v6 = host_kinds(data, positions)
    dtype = head_dtype(born_v6, store_v6)
    _refuse(sizes < dtype.itemsize + fixed_tail, "frame smaller than its fixed part")
    heads: Records = np.ascontiguousarray(gather(data, positions, dtype.itemsize, stride)).view(dtype).ravel()
    hosts = int(SysFlag.BORN_HOST_V6) if born_v6 else 0
    _refuse((heads["sys_flag"] & HOST_FLAGS) != hosts, "born hosts of two kinds, or an IPv6 store host, within the batch")
    _refuse(heads["total_size"] != sizes, "total size differs from the batch's size array")
    _refuse(heads["magic"] != magic_of(topic), "magic is not that of a message of this topic")
    _refuse(heads["queue_id"] != queue_id, "queue id differs from the batch's")
    lengths = heads["body_length"].astype(np.int64)
    _refuse((lengths < 0) | (lengths > sizes - dtype.itemsize - fixed_tail), "body length does not fit the frame")
    too_large = lengths > max_body_bytes
    if too_large.any():
        first = int(too_large.argmax())
        raise MessageTooLargeError(f"message {first}: body of {lengths[first]} bytes; expected at most {max_body_bytes}", first_bad=first)
    even = stride if uniform_stride(lengths + 1) else 0
    tails = positions + (dtype.itemsize + lengths)
    _refuse(~equal_at(data, tails, field, even), "topic differs from the batch's")
    packed = gather(data, tails + len(field), 2, even)
    property_lengths = packed[:, 0].astype(np.int64) << 8 | packed[:, 1]
    _refuse(dtype.itemsize + lengths + fixed_tail + property_lengths != sizes, "properties length does not fit the frame")
    _refuse(property_lengths > MAX_PROPERTIES_BYTES, "properties longer than a frame may carry")
    _check_body_crcs(data, positions + dtype.itemsize, lengths, heads["body_crc"].astype(np.uint32), stride=even)
    return heads


def _refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        first = int(bad.argmax())
        raise CorruptBatchError(f"message {first}: {what}", first_bad=first)


def _check_body_crcs(data: Bytes1D, starts: Int64s, lengths: Int64s, crcs: npt.NDArray[np.uint32], *, stride: int) -> None:
    """Bodies of equal length at equal distances are checked together: CRC-32 is affine over GF(2), so the XOR of the CRCs is the CRC of the
    XOR of the bodies (up to the CRC of zeros when their number is even).  The first alone tells a writer that computes it wrongly for all,
    a third of them by itself makes it unlikely that errors cancel.  Only a mismatch, or mixed lengths, costs a call a message."""
    count = len(starts)
    if stride and count >= 8 and int(lengths[0]):
        bodies = gather(data, starts, int(lengths[0]), stride)
        if all(_crcs_agree(bodies[part], crcs[part]) for part in (slice(0, 1), slice(None), slice(None, None, 3))):
            return
    view = memoryview(data)  # type: ignore[arg-type]
    spans = map(slice, starts.tolist(), (starts + lengths).tolist())
    found = np.fromiter(map(zlib.crc32, map(view.__getitem__, spans)), np.uint32, count) & np.uint32(BODY_CRC_MASK)
    _refuse(found != crcs, "body CRC differs")


def _crcs_agree(bodies: Bytes2D, crcs: npt.NDArray[np.uint32]) -> bool:
    expected = zlib.crc32(np.bitwise_xor.reduce(bodies, axis=0).tobytes())
    if len(bodies) % 2 == 0:
        expected ^= zlib.crc32(bytes(bodies.shape[1]))
    # A stored CRC with its top bit set is wrong by itself; two of them must not cancel.
    return expected & BODY_CRC_MASK == int(np.bitwise_xor.reduce(crcs)) and not bool((crcs > BODY_CRC_MASK).any())
