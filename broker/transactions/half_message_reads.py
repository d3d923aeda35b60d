"""Reading half messages by their offsets.

Owns no state.  Damage is repaired from a peer; where that fails, the error stands for the half message, and the others are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.context import ServiceContext
from broker.delivery.verified_reads import StoredMessages, read_with_repair, unreadable_offset
from dledger_wire.errors import CorruptFrameError, StorageDamagedError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import HALF_TOPIC

SPAN_UNITS = 4096  # offsets this close are read with one call


Unreadable = StorageDamagedError | CorruptFrameError


async def read_halves(context: ServiceContext, offsets: Sequence[int]) -> list[Frame | Unreadable]:
    """The half messages at ``offsets``, which are in rising order and all exist; for each that cannot be repaired now, why."""
    try:
        return list(await _read_all(context, offsets))
    except (StorageDamagedError, CorruptFrameError) as error:
        if len(offsets) == 1:
            return [error]
    half = len(offsets) // 2
    return await read_halves(context, offsets[:half]) + await read_halves(context, offsets[half:])


async def verify_halves(context: ServiceContext, offsets: Sequence[int]) -> dict[int, Unreadable] | None:
    """Check the log entries that hold these half messages, since properties and times have no checksum of their own.

    None when one was repaired: they are to be read again.  Otherwise why each that is damaged cannot be repaired now.
    """
    damaged: dict[int, Unreadable] = {}
    left = list(offsets)
    while left:
        try:
            return damaged if await StoredMessages(context, HALF_TOPIC, 0).verify(left) else None
        except StorageDamagedError as error:
            bad = unreadable_offset(error)
            if bad not in left:
                raise
            left.remove(bad)
            damaged[bad] = error
    return damaged


async def _read_all(context: ServiceContext, offsets: Sequence[int]) -> list[Frame]:
    frames: list[Frame] = []
    first = 0
    while first < len(offsets):
        end = first + 1
        while end < len(offsets) and offsets[end] - offsets[first] < SPAN_UNITS:
            end += 1
        got = await _read(context, offsets[first:end])
        frames += got
        first += len(got)
    return frames


async def _read(context: ServiceContext, offsets: Sequence[int]) -> list[Frame]:
    """The first of them, as many as one read of units covers, at least one."""
    count = offsets[-1] + 1 - offsets[0]
    units = await read_with_repair(context.raft, lambda: context.store.reader.units(HALF_TOPIC, 0, offsets[0], count))
    wanted = np.array([offset for offset in offsets if offset - offsets[0] < len(units)], np.int64)
    return await StoredMessages(context, HALF_TOPIC, 0).at(units[wanted - offsets[0]], wanted)
