"""Reading half messages by their offsets.

Owns nothing.  What is damaged is put right from a peer; then StorageDamagedError or CorruptFrameError is the caller's to report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.context import ServiceContext
from broker.verified_reads import StoredMessages, mended
from dledger_wire.frames.frame import Frame
from dledger_wire.names import HALF_TOPIC

SPAN_UNITS = 4096  # units between two wanted ones that are cheaper read than skipped


async def read_halves(context: ServiceContext, offsets: Sequence[int]) -> list[Frame]:
    """The half messages at ``offsets``, which rise and are all there."""
    frames: list[Frame] = []
    first = 0
    while first < len(offsets):
        upto = first + 1
        while upto < len(offsets) and offsets[upto] - offsets[first] < SPAN_UNITS:
            upto += 1
        got = await _read(context, offsets[first:upto])
        frames += got
        first += len(got)
    return frames


async def _read(context: ServiceContext, offsets: Sequence[int]) -> list[Frame]:
    """As many of them as the units read at once reach, at least one."""
    count = offsets[-1] + 1 - offsets[0]
    units = await mended(context.raft, lambda: context.store.reader.units(HALF_TOPIC, 0, offsets[0], count))
    wanted = np.array([offset for offset in offsets if offset - offsets[0] < len(units)], np.int64)
    return await StoredMessages(context, HALF_TOPIC, 0).at(units[wanted - offsets[0]], wanted)
