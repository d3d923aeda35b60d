"""Frames that are sent to a reader out of the log's files, without being read here.

Owns the choice: only long runs of a queue's frames are worth it, since each run is a step of its own, and what memory has is not read from
the files.  What a read checks of frames is checked of these too, by their heads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dledger_wire.rpc.stored import StoredBytes
from store.log_view import ReadableLog
from store.queues.queue_files import Units
from store.queues.read import HEAD_BYTES, check_heads, check_places, runs_of_frames


async def stored_frames(
    log: ReadableLog, units: Units, offsets: npt.NDArray[np.int64], least_bytes: int, least_run_bytes: int
) -> StoredBytes | None:
    """The frames of ``units`` in order; None when they are better read: they are few, or their runs short on average.

    FrameMismatchError when one is not where its unit says.
    """
    whole = int(units["size"].sum(dtype=np.int64))
    if whole < least_bytes:
        return None
    starts = units["pos"].astype(np.int64)
    ends = starts + units["size"]
    check_places(log, starts, ends, offsets)
    firsts, lasts = runs_of_frames(starts, ends)
    if whole < least_run_bytes * len(firsts):
        return None
    sizes = ends[lasts] - starts[firsts]
    stored = log.stored(list(zip(starts[firsts].tolist(), sizes.tolist(), strict=True)))
    if stored is None:
        return None
    edges = np.unique(np.concatenate((firsts, lasts)))
    heads = b"".join(await log.read_each([(pos, HEAD_BYTES) for pos in starts[edges].tolist()]))
    check_heads(np.frombuffer(heads, np.uint8).reshape(-1, HEAD_BYTES), starts[edges], units["size"][edges], offsets[edges])
    return stored
