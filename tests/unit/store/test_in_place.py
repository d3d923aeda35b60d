"""Where a reader on this machine finds frames: each within a piece, few pieces, not too many bytes, nothing that is not durable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dledger_wire.frames.frame_layout import MIN_FRAME_SIZE
from store.queues import read
from store.queues.queue_files import Units
from store.queues.rebuild import fillers

SEGMENT = 1 << 20


@dataclass
class Segment:
    start_pos: int


class Log:
    """As far as ``frames_in_place`` looks at one: four segments."""

    first_pos = 0
    end_pos = 4 * SEGMENT
    durable = 4 * SEGMENT

    @property
    def segments(self) -> list[Segment]:
        return [Segment(start) for start in range(0, self.end_pos, SEGMENT)]

    def durable_end(self) -> int:
        return self.durable

    def file_of(self, pos: int) -> tuple[str, int]:
        start = pos // SEGMENT * SEGMENT
        return f"/data/commitlog/{start:020d}", start


def units_of(places: list[tuple[int, int]]) -> Units:
    units = fillers(len(places))
    units["pos"], units["size"] = [at for at, _ in places], [size for _, size in places]
    return units


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(MIN_FRAME_SIZE, 9_000)), min_size=1, max_size=600))
def test_pieces_hold_the_frames_and_little_else(steps: list[tuple[int, int]]) -> None:
    places, at = [], 0
    for gap, size in steps:
        at += gap
        if at // SEGMENT != (at + size) // SEGMENT:
            at = (at // SEGMENT + 1) * SEGMENT
        if at + size > Log.end_pos:
            break
        places.append((at, size))
        at += size
    pieces, taken = read.frames_in_place(Log(), units_of(places), np.arange(len(places)), 16 << 10)  # type: ignore[arg-type]
    assert 0 < taken <= len(places)
    assert len(pieces) <= read.MAX_PIECES
    assert sum(piece.size for piece in pieces) <= max(read.MAX_IN_PLACE_BYTES, places[0][1])
    for start, size in places[:taken]:
        (piece,) = (piece for piece in pieces if piece.pos <= start < piece.pos + piece.size)
        assert start + size <= piece.pos + piece.size
        assert piece.file.endswith(f"{piece.pos - piece.at:020d}")
    wanted = sum(size for _, size in places[:taken])
    assert sum(piece.size for piece in pieces) <= wanted + taken * (16 << 10)
    if taken < len(places):
        assert len(pieces) == read.MAX_PIECES or sum(piece.size for piece in pieces) > read.MAX_IN_PLACE_BYTES - (16 << 10) - 9_000


def test_what_is_not_durable_is_not_read_from_files() -> None:
    log, units = Log(), units_of([(0, 200), (200, 300)])
    log.durable = 499
    assert read.frames_in_place(log, units, np.arange(2), 0) == ([], 0)  # type: ignore[arg-type]
    log.durable = 500
    pieces, taken = read.frames_in_place(log, units, np.arange(2), 0)  # type: ignore[arg-type]
    assert (pieces, taken) == ([read.LogPiece("/data/commitlog/" + "0" * 20, 0, 500, 0)], 2)
