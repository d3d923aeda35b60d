"""Quarantine: bytes removed from the log and kept for diagnosis.

Owns the names in ``quarantine``: the segment's, the position of the first byte, and a number or what became of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dledger.log.segment import FilePool, InUse, log_path
from dledger.runtime.env import BLOCK_BYTES, Disk, File, read_unless_lost
from dledger_wire.layout import segment_name

FOLDER = "quarantine"


async def keep_range(disk: Disk, files: FilePool, segment: File, start_pos: int, pos: int, end: int, piece_bytes: int) -> str:
    """Copy log positions ``pos`` to ``end`` of the segment at ``start_pos``; returns the copy's path.

    The same bytes of an earlier start that crashed are kept once.
    """
    number = 0
    while True:
        path = f"{FOLDER}/{segment_name(start_pos)}-{pos}-{number}"
        if not await disk.exists(path):
            break
        async with InUse(files, path) as kept:
            if await kept.size() == end - pos and await _are_same(segment, pos - start_pos, kept, end - pos, piece_bytes):
                return path
        number += 1
    unfinished = f"{path}.part"
    async with InUse(files, unfinished, create=True) as copy:
        await copy.truncate(0)
        async for at, data in _pieces(segment, pos - start_pos, end - pos, piece_bytes):
            await copy.pwrite(at, [data])
        await copy.fdatasync()
    await files.drop(unfinished)
    await disk.rename(unfinished, path)
    return path


async def keep_replaced(disk: Disk, start_pos: int, pos: int, data: bytes) -> None:
    """Keep the bytes of an entry that a peer's are written over."""
    await disk.write_atomic(f"{FOLDER}/{segment_name(start_pos)}-{pos}-repaired", data)


async def keep_segment(disk: Disk, files: FilePool, start_pos: int) -> None:
    """Move the file of a whole segment here."""
    number = 0
    while await disk.exists(path := f"{FOLDER}/{segment_name(start_pos)}-whole-{number}"):
        number += 1
    await disk.rename(log_path(start_pos), path)
    await files.drop(log_path(start_pos))  # last: a reader may have opened it meanwhile


async def _pieces(file: File, at: int, size: int, piece_bytes: int) -> AsyncIterator[tuple[int, bytes]]:
    for done in range(0, size, piece_bytes):
        yield done, await _readable(file, at + done, min(piece_bytes, size - done))


async def _readable(file: File, at: int, size: int) -> bytes:
    """A range of a file; zeros for what of it cannot be read, and so cannot be kept."""
    data = await read_unless_lost(file, at, size)
    if data is not None:
        return data
    if size <= BLOCK_BYTES:
        return bytes(size)
    blocks = [await _readable(file, at + done, min(BLOCK_BYTES, size - done)) for done in range(0, size, BLOCK_BYTES)]
    return b"".join(blocks)


async def _are_same(segment: File, at: int, kept: File, size: int, piece_bytes: int) -> bool:
    async for done, data in _pieces(segment, at, size, piece_bytes):
        if await kept.pread(done, len(data)) != data:
            return False
    return True
