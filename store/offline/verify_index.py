"""Offline check of the key index: its marks and the files they name, byte by byte.  Changes nothing.

Owns the comparison with the log where a file alone does not show which of its entries is wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from dledger.log.report import DamageKind, Finding
from dledger.log.segment import FilePool
from dledger.runtime.env import Disk
from dledger_wire.dtypes import INDEX_ENTRY_DTYPE
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frame_layout import MIN_FRAME_SIZE
from dledger_wire.java_hash import key_hash, key_words
from dledger_wire.store_layout import INDEX_ENTRY_SIZE
from store.durability.snapshots import config_path
from store.key_index.index_check import file_problem
from store.key_index.index_file import INDEX_FOLDER, DamagedIndexError, IndexFile, IndexMark, created_ms_of
from store.key_index.manifest import MARKS, IndexMarks, read_marks

MADE_AGAIN = "a start makes it again from the log"
PIECE_ENTRIES = 4096

LogBytes = Callable[[int, int], Awaitable[bytes | None]]


async def verify_index(disk: Disk, files: FilePool, log_bytes: LogBytes, *, clean: bool) -> AsyncIterator[Finding]:
    """Everything that is not as it should be.  ``log_bytes`` reads the log at (position, size); ``clean``: the store ended in order."""
    marks, is_there = await read_marks(disk)
    if marks is None:
        if is_there:
            yield Finding(disk.local_path(config_path(MARKS)), 0, 0, DamageKind.INDEX_FILE, f"not what was written; {MADE_AGAIN}")
        return
    for mark in marks.files:
        file = IndexFile(files, marks.geometry, mark)
        problem = await file_problem(file, slots_are_written=clean or mark is not marks.files[-1])
        if problem is not None:
            at, text = problem
            if at >= marks.geometry.entry_at(1):
                at, text = await _wrong_entry(file, log_bytes) or problem
            yield Finding(file.local_path, at, 0, DamageKind.INDEX_FILE, f"{text} ({MADE_AGAIN})")
    if clean:
        async for finding in _unmarked(disk, marks):
            yield finding


async def _unmarked(disk: Disk, marks: IndexMarks) -> AsyncIterator[Finding]:
    known = {mark.name for mark in marks.files}
    for name in await disk.list(INDEX_FOLDER):
        if name not in known:
            fate = "a start removes it" if created_ms_of(name) is not None else "it is left alone"
            path = disk.local_path(f"{INDEX_FOLDER}/{name.rstrip('/')}")
            yield Finding(path, 0, 0, DamageKind.FOREIGN_FILE, f"not part of the key index; {fate}")


async def _wrong_entry(file: IndexFile, log_bytes: LogBytes) -> tuple[int, str] | None:
    """The first entry whose message, where the log still has it, does not say what the entry says."""
    geometry, mark = file.geometry, file.mark
    for first in range(1, mark.count + 1, PIECE_ENTRIES):
        try:
            data = await file.pread(geometry.entry_at(first), min(PIECE_ENTRIES, mark.count + 1 - first) * INDEX_ENTRY_SIZE)
        except DamagedIndexError:
            return None
        entries = np.frombuffer(data, INDEX_ENTRY_DTYPE)
        for number, entry in enumerate(entries, first):
            wrong = await _wrong(mark, int(entry["key_hash"]), int(entry["pos"]), int(entry["seconds"]), log_bytes)
            if wrong:
                return geometry.entry_at(number), f"entry {number}: {wrong}"
    return None


async def _wrong(mark: IndexMark, found_hash: int, pos: int, seconds: int, log_bytes: LogBytes) -> str:
    head = await log_bytes(pos, MIN_FRAME_SIZE)
    size = int.from_bytes(head[:4], "big") if head is not None else 0
    data = await log_bytes(pos, size)
    if data is None:
        return "" if mark.begin_pos <= pos <= mark.end_pos and head is None else f"no message begins at position {pos}"
    try:
        frame = decode_frame(data, check_crc=False)
    except DledgerError:
        return f"no message begins at position {pos}"
    keys = [frame.properties.get("UNIQ_KEY", ""), *key_words(frame.properties.get("KEYS", ""))]
    if found_hash not in [key_hash(frame.topic, key) for key in keys if key]:
        return f"the message at position {pos} has no key with hash {found_hash}"
    if seconds != max(0, frame.store_timestamp - mark.begin_ms) // 1000:
        return f"the message at position {pos} was not stored {seconds} s after the file's begin time"
    return ""
