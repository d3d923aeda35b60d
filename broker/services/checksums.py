"""Checksums of a replica's committed log, segment by segment: what ``dledger verify --online`` compares.

Replicas are byte-identical up to any position all of them have committed, so equal checksums prove equal content.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dledger.log.log import Log
from dledger_wire.checksum import crc32c

PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SegmentSum:
    """The entries of one segment below the wanted position; the filler behind them is not part of it."""

    start_pos: int
    size_bytes: int
    crc: int


async def committed_end(log: Log, commit_index: int) -> int:
    """The position behind the last committed entry."""
    if commit_index < log.first_index:
        return log.first_pos
    place = log.locate(commit_index) or await log.find(commit_index)
    return place.end_pos


async def segment_sums(log: Log, upto_pos: int) -> list[SegmentSum]:
    """One checksum a segment, in order; reads in bounded pieces off the loop and lets other work run between them."""
    sums = []
    segments = log.segments
    for number, segment in enumerate(segments):
        if segment.start_pos >= upto_pos:
            break
        end = upto_pos
        if number + 1 < len(segments) and segments[number + 1].start_pos < upto_pos:
            end = (await log.find(segments[number + 1].first_index - 1)).end_pos
        crc, pos = 0, segment.start_pos
        while pos < end:
            piece = await log.read_bytes(pos, min(PIECE_BYTES, end - pos))
            crc = crc32c(piece, value=crc)
            pos += len(piece)
            await asyncio.sleep(0)
        sums.append(SegmentSum(segment.start_pos, end - segment.start_pos, crc))
    return sums
