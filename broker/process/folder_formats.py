"""Refuses a data folder in which a newer release has left files that this build cannot read, before anything in it is opened or written.

Owns the look at the first bytes of every file that states its version.  Three are looked at elsewhere, where their checksums are known:
entries of the log (``dledger/log/scan.py``), snapshots and their sections (``store/durability/snapshots.py``).
"""

from __future__ import annotations

from dledger.log.hard_state import newer_version, read_copies
from dledger.runtime.env import Disk, File, read_unless_lost
from dledger_wire.formats import ENTRY, FORMATS, HARD_STATE, HEAD_BYTES, RECORD, SECTION, SNAPSHOT, Format, json_version, newer

_ELSEWHERE = (ENTRY, RECORD, SNAPSHOT, SECTION)
LOOKED_AT = tuple(each for each in FORMATS if not each.rebuilt and each not in _ELSEWHERE)


async def refuse_newer_files(disk: Disk) -> None:
    """DataDirectoryError that names the first file of a newer format."""
    for known in LOOKED_AT:
        found = await _version(disk, known)
        if found is not None and found > known.current:
            raise newer(disk.local_path(known.file), found, known)


async def _version(disk: Disk, known: Format) -> int | None:
    try:
        file = await disk.open(known.file)
    except FileNotFoundError:
        return None
    try:
        return await _stated(file, known)
    finally:
        await file.close()


async def _stated(file: File, known: Format) -> int | None:
    if known is HARD_STATE:
        return newer_version(await read_copies(file))
    return json_version(await read_unless_lost(file, 0, HEAD_BYTES) or b"")  # what is lost is judged by its readers
