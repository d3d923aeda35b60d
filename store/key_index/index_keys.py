"""The keys of message batches as columns: what the key index is built from.

Owns the order of keys: as they stand in the log, of each message its unique id first and then its words of KEYS.  Made of the batches'
arrays alone; a batch's messages share their store time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.batches.batch import BatchView
from dledger_wire.frames.frames import frame_positions

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """One element a key: its hash, where its message's frame lies, when that was stored, and the log entry it came in."""

    hashes: Int32s
    positions: Int64s
    times: Int64s
    entries: Int64s

    def __len__(self) -> int:
        return len(self.hashes)

    def part(self, first: int, end: int) -> KeyColumns:
        return KeyColumns(self.hashes[first:end], self.positions[first:end], self.times[first:end], self.entries[first:end])


class KeyCollector:
    """Takes batches in log order; ``take`` gives the keys of all of them."""

    def __init__(self) -> None:
        self._parts: list[KeyColumns] = []
        self._few: list[tuple[int, int, int, int]] = []  # keys of batches of one message: cheaper without arrays
        self.count = 0

    def add(self, entry_index: int, pos: int, batch: BatchView) -> None:
        """``pos``: where the batch's record lies in the log."""
        if batch.count == 1:
            place = (pos + batch.frames_at, batch.store_timestamp, entry_index)
            unique, *keys = batch.only_key_hashes()
            before = len(self._few)
            if unique:
                self._few.append((unique, *place))
            self._few += [(key, *place) for key in keys if key >= 0]
            self.count += len(self._few) - before
            return
        self._settle_few()
        hashes, positions = batch_keys(pos, batch)
        if len(hashes):
            self._append(hashes, positions, np.full(len(hashes), batch.store_timestamp), np.full(len(hashes), entry_index))
            self.count += len(hashes)

    def _append(self, hashes: npt.NDArray[Any], positions: Int64s, times: Int64s, entries: Int64s) -> None:
        self._parts.append(KeyColumns(hashes.astype(np.int32), positions, times, entries))

    def _settle_few(self) -> None:
        if self._few:
            columns = np.array(self._few, np.int64).T
            self._append(columns[0], columns[1], columns[2], columns[3])
            self._few.clear()

    def take(self) -> KeyColumns:
        self._settle_few()
        parts, self._parts, self.count = self._parts, [], 0
        if len(parts) == 1:
            return parts[0]
        return KeyColumns(
            np.concatenate([np.empty(0, np.int32), *(part.hashes for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.positions for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.times for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.entries for part in parts)]),
        )


def batch_keys(pos: int, batch: BatchView) -> tuple[npt.NDArray[Any], Int64s]:
    """(hash, frame's position in the log) of every key of a batch whose record lies at ``pos``.

    A unique hash of 0 stands for a message without a unique id (one id in 2^31 hashes to 0 too, and is not found by it).
    """
    frames_at = frame_positions(batch.sizes) + (pos + batch.frames_at)
    unique = batch.unique_hashes
    with_id = unique != 0
    hashes, positions = (unique, frames_at) if with_id.all() else (unique[with_id], frames_at[with_id])
    if not batch.key_count:
        return hashes, positions
    # A client's array, not recomputed here: what cannot be a key's hash is left out.
    real = batch.key_hashes >= 0
    hashes = np.concatenate([hashes, batch.key_hashes[real]])
    positions = np.concatenate([positions, frames_at[batch.key_owners[real].astype(np.int64)]])
    order = np.argsort(positions, kind="stable")
    return hashes[order], positions[order]
