"""Reading an index file whole, to see whether it is what was written.

Owns the comparison with the mark (header, checksum of the entries) and of slots and chains with the entries they are made from.  Where a
file differs, the first wrong byte is named as exactly as the file itself shows.
"""

from __future__ import annotations

import asyncio

import numpy as np

from dledger_wire.checksum import crc32c
from dledger_wire.dtypes import INDEX_ENTRY_DTYPE, INDEX_SLOT_DTYPE
from dledger_wire.store_layout import INDEX_ENTRY_SIZE
from store.key_index.index_file import SLOT_SIZE, DamagedIndexError, IndexFile
from store.key_index.index_keys import Int32s
from store.key_index.index_writer import PIECE_ENTRIES, PIECE_SLOTS, link_entries

Problem = tuple[int, str]  # byte, what is wrong there


async def file_problem(file: IndexFile, *, pause_s: float = 0.0, slots_are_written: bool = True) -> Problem | None:
    """What is wrong with the file first; None when nothing is.  ``pause_s`` after each piece, for others.

    ``slots_are_written`` False: of a file that was being added to when its process ended, only header and entries up to the mark count.
    """
    slots: Int32s = np.zeros(file.geometry.slots, np.int32)
    try:
        if slots_are_written:
            await file.check_header()
        problem = await _entries_problem(file, slots, pause_s)
        if problem is None and slots_are_written:
            problem = await _slots_problem(file, slots, pause_s)
    except DamagedIndexError as found:
        return found.at, found.text
    return problem


async def _entries_problem(file: IndexFile, slots: Int32s, pause_s: float) -> Problem | None:
    """Check entries 1 to the mark's count; ``slots`` becomes what they make of it."""
    geometry, count = file.geometry, file.mark.count
    crc, problem = 0, None
    for first in range(1, count + 1, PIECE_ENTRIES):
        data = await file.pread(geometry.entry_at(first), min(PIECE_ENTRIES, count + 1 - first) * INDEX_ENTRY_SIZE)
        crc = crc32c(data, value=crc)
        entries = np.frombuffer(data, INDEX_ENTRY_DTYPE)
        wrong = link_entries(slots, entries["key_hash"] % np.int32(geometry.slots), first) != entries["previous"]
        wrong |= (entries["pos"] < file.mark.begin_pos) | (entries["pos"] > file.mark.end_pos)
        if problem is None and wrong.any():
            number = first + int(wrong.argmax())
            problem = geometry.entry_at(number), f"entry {number} does not belong to its chain, or to this file"
        await asyncio.sleep(pause_s)
    if crc == file.mark.crc:
        return None
    return problem or (geometry.entry_at(1), "the entries are not those that were written")


async def _slots_problem(file: IndexFile, slots: Int32s, pause_s: float) -> Problem | None:
    geometry = file.geometry
    for first in range(0, geometry.slots, PIECE_SLOTS):
        expected = slots[first : first + PIECE_SLOTS]
        found = np.frombuffer(await file.pread(geometry.slot_at(first), len(expected) * SLOT_SIZE), INDEX_SLOT_DTYPE)
        wrong = found != expected
        if wrong.any():
            at = int(wrong.argmax())
            return geometry.slot_at(first + at), f"slot {first + at} names entry {found[at]}; its newest one is {expected[at]}"
        await asyncio.sleep(pause_s)
    return None
