"""Which messages of a queue a reader gets: by the hash of their tag, by an SQL92 expression over their properties, or both.

Owns the choice among messages that were read.  It is made at the replica, so messages that do not match never cross the network.
Work is done in slices, so other requests run in between.  ``Chunk.looked_at`` counts it, so a request can be ended in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dledger_wire.errors import CorruptFrameError
from dledger_wire.frames.frames import cut_bytes, frame_columns, frame_positions
from store.queues.queue_files import Units
from store.queues.read import FrameMismatchError
from store.queues.sql_filter import SqlFilter

TagHashes = npt.NDArray[np.int64]
SLICE_COST = 1000  # of messages looked at without a pause: some 1 ms
COST_BYTES = 100  # what could be read in the time of one comparison
FEWEST_MESSAGES = 16


async def _next_turn() -> None:
    await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class FetchFilter:
    """``tag_hashes`` None: any tag; ``sql`` None: any properties.  Every slice of work waits for ``turn``."""

    tag_hashes: TagHashes | None = None
    sql: SqlFilter | None = None
    turn: Callable[[], Awaitable[None]] = _next_turn

    @property
    def everything(self) -> bool:
        return self.tag_hashes is None and self.sql is None

    def by_tag(self, units: Units) -> npt.NDArray[np.int64]:
        """The places of the units whose tag hash is wanted."""
        if self.tag_hashes is None:
            return np.arange(len(units))
        return np.flatnonzero(np.isin(units["tag_hash"].astype(np.int64), self.tag_hashes))


EVERYTHING = FetchFilter()


def max_filtered_messages(sql: SqlFilter, budget: int) -> int:
    """How many messages may be looked at for ``budget`` bytes' worth of time."""
    return max(FEWEST_MESSAGES, budget // (COST_BYTES * sql.cost))


async def choose(
    fetch_filter: FetchFilter, sql: SqlFilter, frames: bytes | memoryview, units: Units, offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The places of the frames that ``sql`` lets pass.  FrameMismatchError when bytes among them are no frame."""
    await fetch_filter.turn()
    try:
        columns = frame_columns(np.frombuffer(frames, np.uint8), frame_positions(units["size"]))
    except CorruptFrameError as error:
        raise FrameMismatchError(int(offsets[max(error.detail_int("first_bad"), 0)])) from None
    step = max(1, SLICE_COST // sql.cost)
    found: list[int] = []
    for first in range(0, len(units), step):
        if first:
            await fetch_filter.turn()
        part = slice(first, first + step)
        packed = cut_bytes(frames, columns.properties_at[part], columns.properties_length[part])
        found += [first + number for number in sql.chosen(packed)]
    return np.array(found, np.int64)
