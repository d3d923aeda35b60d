"""Reading half messages by their offsets, every body checked: what is copied from here would hide damage under a fresh checksum.

Owns nothing.  A damaged message is put right from a peer once; then StorageDamagedError or CorruptFrameError is the caller's to report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.services.face import ServiceFace
from dledger_wire.errors import CorruptFrameError, StorageDamagedError
from dledger_wire.frame import Frame, decode_frame, frame_positions
from dledger_wire.names import HALF_TOPIC

SPAN_UNITS = 4096  # units between two wanted ones that are cheaper read than skipped


async def read_halves(face: ServiceFace, offsets: Sequence[int]) -> list[Frame]:
    """The half messages at ``offsets``, which rise and are all there."""
    frames: list[Frame] = []
    first = 0
    while first < len(offsets):
        upto = first + 1
        while upto < len(offsets) and offsets[upto] - offsets[first] < SPAN_UNITS:
            upto += 1
        got = await _read_span(face, offsets[first:upto])
        frames += got
        first += len(got)
    return frames


async def _read_span(face: ServiceFace, offsets: Sequence[int]) -> list[Frame]:
    try:
        return await _read(face, offsets)
    except CorruptFrameError:
        try:
            await face.store.reader.verify(HALF_TOPIC, 0, offsets[0], offsets[-1] + 1)
        except StorageDamagedError as damage:
            await face.raft.mend(damage)
        return await _read(face, offsets)


async def _read(face: ServiceFace, offsets: Sequence[int]) -> list[Frame]:
    """As many of them as the units read at once reach, at least one."""
    reader = face.store.reader
    units = await reader.units(HALF_TOPIC, 0, offsets[0], offsets[-1] + 1 - offsets[0])
    wanted = np.array([offset for offset in offsets if offset - offsets[0] < len(units)], np.int64)
    rows = units[wanted - offsets[0]]
    data = b"".join(await reader.frames_of(HALF_TOPIC, 0, rows, wanted))
    return [decode_frame(data, position) for position in frame_positions(rows["size"]).tolist()]
