"""Receiving a snapshot: every entry checked, whole segments stored with their index units, and the progress recorded.

Owns the folder ``copy/``.  Bytes are written as they arrive and checked as soon as an entry is complete.  A segment counts as received once
its last entry is checked, the file has its filler, and both files are synced.  After a broken stream or a restart received segments are
kept; one in progress is walked from its start and truncated behind its last intact entry.

Segments of committed entries are identical on every replica, so a snapshot from one source can be resumed from another.  The chain
checksums would reveal a difference.

    copy/progress.json   copy/commitlog/START   copy/index-units/START   copy/state/NUMBER
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dledger.log.entry import Header, header_fault, link_fault
from dledger.log.segment import UNITS_FOLDER
from dledger.log.start import LogStart
from dledger.runtime.env import Buffer, Disk, File, read_file_unless_lost
from dledger.runtime.folders import LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.snapshot.plan import PlanSegment, SnapshotPlan
from dledger_wire import strict_json
from dledger_wire.check import InvariantBrokenError
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptEntryError
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER, INDEX_UNIT, MAGIC_FILLER, parse_segment_name, segment_name

PROGRESS_PATH = f"{SNAPSHOT_FOLDER}/progress.json"
WALK_BYTES = 4 << 20


def received_log_path(start_pos: int) -> str:
    return f"{SNAPSHOT_FOLDER}/{LOG_FOLDER}/{segment_name(start_pos)}"


def received_units_path(start_pos: int) -> str:
    return f"{SNAPSHOT_FOLDER}/{UNITS_FOLDER}/{segment_name(start_pos)}"


def received_state_path(number: int) -> str:
    return f"{SNAPSHOT_FOLDER}/state/{number}"


@dataclass(frozen=True, slots=True)
class _Received:
    """A segment that is whole here, and what the next one must follow."""

    start_pos: int
    first_index: int
    end_pos: int
    sealed: bool
    last_index: int
    last_term: int
    chain_crc: int


class EntryCheck:
    """Checks a run of entries that comes in pieces of any size; the index units of what was checked gather in ``units``."""

    def __init__(self, index: int, term: int, pos: int, chain_crc: int, end_pos: int) -> None:
        self.index, self.term, self.pos, self.chain_crc = index, term, pos, chain_crc  # of the next entry; term of the one before
        self.end_pos = end_pos  # where the run ends
        self.units = bytearray()
        self._rest = bytearray()  # of an entry that is not whole yet
        self._wanted = ENTRY_HEADER_SIZE

    def feed(self, data: Buffer) -> None:
        """The next bytes.  CorruptEntryError when an entry in them is not what must stand there."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
        view = memoryview(data)
        at = self._take(view)
        self._rest = bytearray(view[at:])

    def _take(self, view: memoryview) -> int:
        """Check the whole entries in ``view``; where the first one begins that is not whole."""
        at = 0
        while len(view) - at >= ENTRY_HEADER_SIZE:
            head = view[at : at + ENTRY_HEADER_SIZE]
            header = Header.unpack(head)
            fault = header_fault(header, self.end_pos - self.pos)
            fault = fault or link_fault(header, head, self.index, self.term, self.pos, self.chain_crc)
            if fault is not None:
                raise CorruptEntryError(f"entry {self.index} at {self.pos}: {fault}", index=self.index)
            if header.size > len(view) - at:
                self._wanted = header.size
                return at
            if crc32c(view[at + ENTRY_HEADER_SIZE : at + header.size]) != header.body_crc:
                raise CorruptEntryError(f"entry {self.index} at {self.pos}: the body's checksum does not match", index=self.index)
            self.units += INDEX_UNIT.pack(header.magic, header.pos, header.size, header.index, header.term)
            at += header.size
            self.index, self.term, self.pos, self.chain_crc = header.index + 1, header.term, self.pos + header.size, header.chain_crc
        self._wanted = ENTRY_HEADER_SIZE
        return at


class SnapshotReceiver:
    """Receives the log of one plan.  ``pos`` is the next position; ``done`` when everything is received."""

    def __init__(self, disk: Disk, plan: SnapshotPlan) -> None:
        self._disk = disk
        self._plan = plan
        self._received: list[_Received] = []
        self._file: File | None = None
        self._check: EntryCheck | None = None
        self.pos = plan.start.first_pos

    @property
    def done(self) -> bool:
        return len(self._received) == len(self._plan.segments)

    @property
    def received_bytes(self) -> int:
        return self.pos - self._plan.start.first_pos

    @property
    def _segment(self) -> PlanSegment:
        return self._plan.segments[len(self._received)]

    # Going on where it stopped

    async def resume(self) -> None:
        """Find what is here already of this plan, remove the rest of the folder, and open the segment under way."""
        await self._close_file()
        noted = await self._load_progress()
        self._received = await self._whole(_fitting(list(noted), self._plan))
        if self._received != noted:
            await self._save_progress()  # it never names a file that is not there
        keep = {segment.start_pos for segment in self._plan.segments[: len(self._received) + 1]}
        for folder in (LOG_FOLDER, UNITS_FOLDER):
            for name in await self._disk.list(f"{SNAPSHOT_FOLDER}/{folder}"):
                if parse_segment_name(name) not in keep:
                    await self._disk.remove(f"{SNAPSHOT_FOLDER}/{folder}/{name}")
        if not self.done:
            await self._open()

    async def _whole(self, received: list[_Received]) -> list[_Received]:
        """The first of these segments, as far as both of their files are there."""
        paths = [(received_log_path(segment.start_pos), received_units_path(segment.start_pos)) for segment in received]
        for number, (log, units) in enumerate(paths):
            if not (await self._disk.exists(log) and await self._disk.exists(units)):
                return received[:number]
        return received

    async def _load_progress(self) -> list[_Received]:
        data = await read_file_unless_lost(self._disk, PROGRESS_PATH)
        if data is None:
            return []
        try:
            record = strict_json.parse(data)
            if record["crc32c"] != crc32c(json.dumps(record["received"]).encode()):
                return []
            return [_Received(**fields) for fields in record["received"]]
        except (ValueError, KeyError, TypeError):
            return []

    async def _save_progress(self) -> None:
        received = [asdict(segment) for segment in self._received]
        record = {"received": received, "crc32c": crc32c(json.dumps(received).encode())}
        await self._disk.write_atomic(PROGRESS_PATH, json.dumps(record).encode())

    async def _open(self) -> None:
        """Open the segment under way, checking what is already in its file; what is not whole is cut."""
        segment = self._segment
        file = self._file = await self._disk.open(received_log_path(segment.start_pos), create=True)
        before = self._received[-1] if self._received else None
        start = self._plan.start
        index, term, chain_crc = start.first_index, start.before_term, start.before_chain_crc
        if before is not None:
            index, term, chain_crc = before.last_index + 1, before.last_term, before.chain_crc
        if index != segment.first_index:
            raise CorruptEntryError(f"the plan's segment at {segment.start_pos} begins with {segment.first_index}, expected {index}")
        check = self._check = EntryCheck(index, term, segment.start_pos, chain_crc, segment.end_pos)
        await self._walk(file, check, segment)
        await file.truncate(check.pos - segment.start_pos)
        self.pos = check.pos
        if self.pos == segment.end_pos:
            await self._finish_segment()

    async def _walk(self, file: File, check: EntryCheck, segment: PlanSegment) -> None:
        read_pos, size = segment.start_pos, min(await file.size(), segment.end_pos - segment.start_pos)
        walk = EntryCheck(check.index, check.term, check.pos, check.chain_crc, segment.end_pos)
        try:
            while read_pos < segment.start_pos + size:
                data = await file.pread(read_pos - segment.start_pos, min(WALK_BYTES, segment.start_pos + size - read_pos))
                if not data:
                    break
                walk.feed(data)
                read_pos += len(data)
        except CorruptEntryError:
            pass  # torn by a crash, or of a plan before: it comes again
        check.index, check.term, check.pos, check.chain_crc = walk.index, walk.term, walk.pos, walk.chain_crc
        check.units = walk.units

    # Taking what comes

    async def take(self, pos: int, data: Buffer) -> None:
        """The next piece of the log.  CorruptEntryError when it is not what must stand there; then ``resume`` before the next one."""
        file, check, segment = self._file, self._check, self._segment
        if file is None or check is None or pos != self.pos or pos + len(data) > segment.end_pos:
            raise CorruptEntryError(f"a piece of {len(data)} bytes at {pos}, expected one at {self.pos}")
        check.feed(data)
        await file.pwrite(pos - segment.start_pos, [data])
        self.pos += len(data)
        if self.pos == segment.end_pos:
            if check.pos != segment.end_pos:
                raise CorruptEntryError(f"the entries of the segment at {segment.start_pos} end at {check.pos}, expected {segment.end_pos}")
            await self._finish_segment()

    async def _finish_segment(self) -> None:
        """The current segment is complete: seal it, write its units, record it, continue with the next one."""
        file, check, segment = self._file, self._check, self._segment
        if file is None or check is None:
            raise InvariantBrokenError("no segment in progress")
        number = len(self._received)
        sealed = number + 1 < len(self._plan.segments)
        if sealed:
            await self._seal(file, segment, self._plan.segments[number + 1].start_pos)
        await file.fdatasync()
        units = await self._disk.open(received_units_path(segment.start_pos), create=True)
        await units.truncate(0)
        await units.pwrite(0, [check.units], sync=True)
        await units.close()
        received = _Received(segment.start_pos, segment.first_index, segment.end_pos, sealed, check.index - 1, check.term, check.chain_crc)
        self._received.append(received)
        await self._save_progress()
        await self._close_file()
        if not self.done:
            self.pos = self._segment.start_pos
            await self._open()

    async def _seal(self, file: File, segment: PlanSegment, next_start: int) -> None:
        """The filler behind the last entry, as the log's writer makes it."""
        size = next_start - segment.end_pos
        await file.pwrite(segment.end_pos - segment.start_pos, [FILLER.pack(MAGIC_FILLER, size)])
        if await file.size() > next_start - segment.start_pos:
            await file.truncate(next_start - segment.start_pos)
        await file.allocate(next_start - segment.start_pos, fill=False)

    async def _close_file(self) -> None:
        file, self._file, self._check = self._file, None, None
        if file is not None:
            await file.close()

    async def close(self) -> None:
        await self._close_file()

    def check_end(self) -> None:
        """CorruptEntryError unless the log received ends with the plan's last entry."""
        last = self._received[-1]
        if (last.last_index, last.last_term) != (self._plan.last.index, self._plan.last.term):
            raise CorruptEntryError(f"the snapshot ends with entry {last.last_index} of term {last.last_term}, expected {self._plan.last}")


def _fitting(received: list[_Received], plan: SnapshotPlan) -> list[_Received]:
    """The segments that are here and are the plan's first ones; none when the two do not join."""
    before: _Received | None = None
    while received and received[0].start_pos < plan.start.first_pos:
        before = received.pop(0)
    if before is not None and not _joins(before, plan.start):
        return []
    kept = []
    for number, (segment, here) in enumerate(zip(plan.segments, received, strict=False)):
        sealed = number + 1 < len(plan.segments)
        if (here.start_pos, here.first_index, here.end_pos, here.sealed) != (*_place(segment), sealed):
            break
        kept.append(here)
    return kept


def _joins(before: _Received, start: LogStart) -> bool:
    """Whether the plan begins right behind a segment that was here already."""
    return (before.last_index + 1, before.last_term, before.chain_crc) == (start.first_index, start.before_term, start.before_chain_crc)


def _place(segment: PlanSegment) -> tuple[int, int, int]:
    return segment.start_pos, segment.first_index, segment.end_pos
