"""Offline check of what a node's store derived from its log: the snapshot, the files of the queues, the key index.  Changes nothing.

Owns the comparison of queue files with the checksums that the newest good snapshot names for them, and, where one differs, of each unit
with the frame it points at.  What was written after the snapshot is cut and rebuilt by the next start, so it is not looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from dledger.log.report import DamageKind, Finding
from dledger.log.segment import FilePool, InUse, list_starts, log_path
from dledger.log.start import LogStart, load_log_start
from dledger.runtime.env import Disk, is_unreadable, read_unless_lost
from dledger.runtime.folders import LOG_FOLDER
from dledger_wire.checksum import crc32c
from dledger_wire.errors import DledgerError, StorageDamagedError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.timer import due_times
from dledger_wire.java_hash import java_hash
from dledger_wire.layout import ENTRY_HEADER_SIZE
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.store_layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from store.durability.persistence import ABORT_PATH
from store.durability.snapshots import APPLIED, Snapshot, Snapshots, config_path, no_snapshot
from store.offline.verify_index import verify_index
from store.queues.consume_queue import QueueMark
from store.queues.queue_files import QueueFiles, Units, queue_folder
from store.state.sequences import QueueKey

OPEN_FILES = 16


async def verify_store(disk: Disk) -> AsyncIterator[Finding]:
    """Everything that is not as it should be, the snapshot first, then queue by queue, then the key index."""
    snapshots = Snapshots(disk)
    found = await snapshots.load()
    log_start = await _log_start(disk)
    first_index = log_start.first_index
    starts = first_index == 1 or any(snapshot.index >= first_index - 1 for snapshot in found)
    for path in snapshots.damaged:
        instead = (
            "; a start takes the snapshot before" if found and starts else "; a start takes the log from its beginning" if starts else ""
        )
        yield Finding(path, 0, 0, DamageKind.SNAPSHOT, f"not what was written{instead}")
    if not starts:
        yield Finding(disk.local_path(config_path(APPLIED)), 0, 0, DamageKind.SNAPSHOT, no_snapshot(first_index))
    if not found or not starts:
        return
    lost = await _lost_end(disk, log_start, max(snapshot.end_pos for snapshot in found))
    if lost is not None:
        yield lost
        return
    files = FilePool(disk, OPEN_FILES)
    clean = snapshots.newest_is_good and not await disk.exists(ABORT_PATH)
    try:
        check = _Check(disk, files, clean=clean)
        async for finding in check.run(found[0]):
            yield finding
        async for finding in verify_index(disk, files, check.log_bytes, clean=clean):
            yield finding
    finally:
        await files.close()


async def _log_start(disk: Disk) -> LogStart:
    """Where the log begins; at its first entry where that is not known, which the check of the log reports."""
    try:
        return await load_log_start(disk)
    except StorageDamagedError:
        return LogStart()


async def _lost_end(disk: Disk, start: LogStart, end_pos: int) -> Finding | None:
    """The log's file that is missing, too short or only prepared although a snapshot was made of it: the log alone looks whole."""
    if end_pos <= start.first_pos:
        return None
    starts = [found for found in (await list_starts(disk, LOG_FOLDER))[0] if found < end_pos]
    last = max(starts, default=start.first_pos)
    size = await _written_bytes(disk, log_path(last)) if starts else 0
    if last + size >= end_pos:
        return None
    text = f"the log's files end at position {last + size}, but the state was made of it up to {end_pos}: a start refuses that"
    return Finding(disk.local_path(log_path(last)), size, 0, DamageKind.MISSING_SEGMENT, text)


async def _written_bytes(disk: Disk, path: str) -> int:
    """How large a file of the log is; 0 for one that was made ahead of use."""
    file = await disk.open(path)
    try:
        size = await file.size()
        return size if any(await read_unless_lost(file, 0, min(size, ENTRY_HEADER_SIZE)) or b"?") else 0
    finally:
        await file.close()


class _Check:
    """``clean``: the store ended in order and this is its newest snapshot, so that the files are exactly what it says.  Else more was
    written since, and a topic may have been deleted or created again."""

    def __init__(self, disk: Disk, files: FilePool, *, clean: bool) -> None:
        self._disk = disk
        self._files = files
        self._clean = clean
        self._log_starts: list[int] = []

    async def run(self, snapshot: Snapshot) -> AsyncIterator[Finding]:
        self._log_starts = (await list_starts(self._disk, LOG_FOLDER))[0]
        for key, mark in snapshot.queues.items():
            files = QueueFiles(self._disk, self._files, queue_folder(*key), snapshot.queue_file_units)
            for number, checksum in enumerate(mark.crcs, mark.first_file):
                finding = await self._readable_file(key, mark, files, number, checksum)
                if finding is not None:
                    yield finding

    async def _readable_file(self, key: QueueKey, mark: QueueMark, files: QueueFiles, number: int, checksum: int) -> Finding | None:
        try:
            return await self._file(key, mark, files, number, checksum)
        except OSError as error:
            if not is_unreadable(error):
                raise
            text = f"cannot be read: {error.strerror} (it is made again from the log)"
            return Finding(files.local_path(number), 0, 0, DamageKind.QUEUE_FILE, text)

    async def _file(self, key: QueueKey, mark: QueueMark, files: QueueFiles, number: int, checksum: int) -> Finding | None:
        first = number * files.file_units
        expected = min(first + files.file_units, mark.max_offset) - first
        path = files.local_path(number)
        count = await files.unit_count(number)
        if count < expected:
            if not self._clean:
                return None
            text = f"{count} units; expected {expected} (a start makes them again from the log)"
            return Finding(path, count * QUEUE_UNIT_SIZE, 0, DamageKind.QUEUE_FILE, text)
        if self._clean and expected < files.file_units and (await files.read(first + expected, 1))["size"].any():
            text = f"units from offset {first + expected} on that nothing belongs to (a start cuts them)"
            return Finding(path, expected * QUEUE_UNIT_SIZE, 0, DamageKind.QUEUE_FILE, text)
        units = await files.read(first, expected)
        if crc32c(units.view(np.uint8).data) == checksum:
            return None
        return await self._first_bad_unit(key, path, first, units, mark.min_offset)

    async def _first_bad_unit(self, key: QueueKey, path: str, first: int, units: Units, min_offset: int) -> Finding | None:
        """The checksum differs: which unit does not belong to the frame it points at."""
        for number, unit in enumerate(units):
            offset = first + number
            if offset < min_offset or unit["size"] == QUEUE_FILLER_SIZE:
                continue
            wrong = await self._wrong(key, offset, int(unit["pos"]), int(unit["size"]), int(unit["tag_hash"]))
            if wrong:
                return Finding(path, number * QUEUE_UNIT_SIZE, 0, DamageKind.QUEUE_FILE, f"unit of offset {offset}: {wrong}")
        if not self._clean:
            return None
        return Finding(path, 0, 0, DamageKind.QUEUE_FILE, "its checksum does not match")

    async def _wrong(self, key: QueueKey, offset: int, pos: int, size: int, tag_hash: int) -> str:
        """What is wrong with a unit; empty when its message is where it says."""
        data = await self.log_bytes(pos, size)
        if data is None:
            return f"position {pos} is not in the log"
        try:
            frame = decode_frame(data, check_crc=False)
        except DledgerError:
            return f"no message of {size} bytes begins at position {pos}"
        if frame.total_size != size:
            return f"the message at position {pos} has {frame.total_size} bytes, not {size}"
        if (frame.topic, frame.queue_id, frame.queue_offset) != (*key, offset):
            return f"the message at position {pos} is {frame.topic}/{frame.queue_id} offset {frame.queue_offset}"
        if key[0] == TIMER_TOPIC:
            due_ms = int(due_times(np.frombuffer(data, np.uint8), np.zeros(1, np.int64))[0])
            return "" if tag_hash == due_ms else f"not the time at which the message is due, {due_ms}"
        tags = frame.properties.get("TAGS")
        if tag_hash != (java_hash(tags) if tags else 0):
            return "not the hash of the message's tag"
        return ""

    async def log_bytes(self, pos: int, size: int) -> bytes | None:
        start = max((start for start in self._log_starts if start <= pos), default=None)
        if start is None or size <= 0:
            return None
        async with InUse(self._files, log_path(start)) as file:
            data = await read_unless_lost(file, pos - start, size)
        return data if data is not None and len(data) == size else None
