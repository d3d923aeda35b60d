"""Whether bodies are what their CRCs say, for many at a time: the leader asks it of what it stores, every consumer of what it reads.

first_bad_body(data, starts, lengths, crcs, *, stride) -> int | None
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dledger_wire.checksum import crc32
from dledger_wire.frames.frame_layout import BODY_CRC_MASK
from dledger_wire.frames.frames import Bytes1D, Bytes2D, Int64s, gather

FEW = 8


def first_bad_body(data: Bytes1D, starts: Int64s, lengths: Int64s, crcs: npt.NDArray[np.uint32], *, stride: int) -> int | None:
    """The number of the first body in ``data`` whose CRC-32 (without its top bit) differs from its ``crcs``; None when all agree.

    ``stride`` > 0 promises bodies of equal length at equal distances, which are checked together: CRC-32 is affine over GF(2), so the XOR
    of the CRCs is the CRC of the XOR of the bodies (up to the CRC of zeros when their number is even).  The first alone shows a writer that
    computes it wrongly for all, three parts each by itself make it unlikely that errors cancel.  Only a mismatch, or mixed lengths, costs
    a call a message.
    """
    count = len(starts)
    if stride and count >= FEW and int(lengths[0]):
        bodies = gather(data, starts, int(lengths[0]), stride)
        if all(_crcs_agree(bodies[part], crcs[part]) for part in (slice(0, 1), *(slice(first, None, 3) for first in range(3)))):
            return None
    view = memoryview(data)  # type: ignore[arg-type]
    spans = map(slice, starts.tolist(), (starts + lengths).tolist())
    found = np.fromiter(map(crc32, map(view.__getitem__, spans)), np.uint32, count) & np.uint32(BODY_CRC_MASK)
    bad = found != crcs
    return int(bad.argmax()) if bad.any() else None


def _crcs_agree(bodies: Bytes2D, crcs: npt.NDArray[np.uint32]) -> bool:
    expected = crc32(np.bitwise_xor.reduce(bodies, axis=0).tobytes())
    if len(bodies) % 2 == 0:
        expected ^= crc32(bytes(bodies.shape[1]))
    # A stored CRC with its top bit set is wrong by itself; two of them must not cancel.
    return expected & BODY_CRC_MASK == int(np.bitwise_xor.reduce(crcs)) and not bool((crcs > BODY_CRC_MASK).any())
