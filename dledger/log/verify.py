"""Offline check of one node's log: every entry, every index unit, the hard state.  Changes nothing.

Owns the wording of findings for ``dledger verify``.  It walks like recovery does, but everything from the first byte on, and goes on
behind damage as far as index units or the next file allow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from dledger.log.entry import Header
from dledger.log.hard_state import COPY_BYTES, lost_slot, newest_of, read_copies
from dledger.log.index_units import EntryPlace, encode_units
from dledger.log.report import DamageKind, Finding
from dledger.log.scan import Found, SegmentWalk, Stop, StopKind, written_end, written_start
from dledger.log.segment import UNITS_FOLDER, FilePool, InUse, list_starts, log_path, units_path
from dledger.log.segment_recovery import Position, UnitsFound, load_units, newer_entry, verdict, was_only_prepared
from dledger.log.start import LOG_START_PATH, LogStart, load_log_start
from dledger.runtime.env import Disk
from dledger.runtime.folders import HARD_STATE_PATH, LOG_FOLDER
from dledger_wire.errors import StorageDamagedError
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER_SIZE, INDEX_UNIT_SIZE, segment_name


@dataclass(slots=True)
class _At:
    """What the next entry must follow; ``chain_crc`` None behind damage, ``index`` 0 when not even that is known."""

    index: int
    term: int
    chain_crc: int | None


async def verify_log(disk: Disk, *, piece_bytes: int = 4 << 20, on_progress: Callable[[int], None] | None = None) -> AsyncIterator[Finding]:
    """Everything that is not as it should be, in file order.  ``on_progress`` gets the bytes of log checked so far.

    DataDirectoryError for an entry that only a newer release knows: what is behind it cannot be judged.
    """
    files = FilePool(disk, 16)
    check = _Check(disk, files, piece_bytes, on_progress or (lambda _bytes: None))
    try:
        async for finding in check.run():
            yield finding
    finally:
        await files.close()


class _Check:
    def __init__(self, disk: Disk, files: FilePool, piece_bytes: int, on_progress: Callable[[int], None]) -> None:
        self._disk = disk
        self._files = files
        self._piece_bytes = piece_bytes
        self._on_progress = on_progress
        self._checked_bytes = 0
        self._last_term = 0
        self._entries = 0
        self._ended = False  # what follows is no part of the log

    async def run(self) -> AsyncIterator[Finding]:
        try:
            start = await load_log_start(self._disk)
        except StorageDamagedError as error:
            yield Finding(self._disk.local_path(LOG_START_PATH), 0, 0, DamageKind.LOG_START, error.message)
            start = LogStart()
        starts, foreign = await list_starts(self._disk, LOG_FOLDER)
        units_starts, foreign_units = await list_starts(self._disk, UNITS_FOLDER)
        for path in [f"{LOG_FOLDER}/{name}" for name in foreign] + [f"{UNITS_FOLDER}/{name}" for name in foreign_units]:
            yield Finding(self._disk.local_path(path), 0, 0, DamageKind.FOREIGN_FILE, "not a file of ours; left alone")
        starts = [start_pos for start_pos in starts if start_pos >= start.first_pos]
        for start_pos in units_starts:
            if start_pos < start.first_pos or start_pos in starts:
                continue
            if (await load_units(self._disk, self._files, start_pos, None, None)).proven:
                yield self._finding(start_pos, 0, 0, DamageKind.MISSING_SEGMENT, "the file is gone, but its index units are there")
        if starts and starts[0] != start.first_pos:
            text = f"the first file is {segment_name(starts[0])}, expected {segment_name(start.first_pos)}"
            yield self._finding(start.first_pos, 0, 0, DamageKind.MISSING_SEGMENT, text)
        contents = await self._contents(starts)
        at = _At(start.first_index, start.before_term, start.before_chain_crc)
        for number, start_pos in enumerate(contents):
            next_start = contents[number + 1] if number + 1 < len(contents) else None
            async for finding in self._segment(start_pos, next_start, at, next_is_last=number + 2 == len(contents)):
                yield finding
            if self._ended:
                break
        async for finding in self._hard_state():
            yield finding

    def _finding(self, start_pos: int, at: int, index: int, kind: DamageKind, text: str) -> Finding:
        return Finding(self._disk.local_path(log_path(start_pos)), at, index, kind, text)

    async def _contents(self, starts: list[int]) -> list[int]:
        """Without the files at the end that were only prepared."""
        kept = list(starts)
        while kept:
            if (await load_units(self._disk, self._files, kept[-1], None, None)).proven:
                break
            async with InUse(self._files, log_path(kept[-1])) as file:
                if await written_end(file, kept[-1], kept[-1], self._piece_bytes) > kept[-1]:
                    break
            kept.pop()
        return kept

    # -- one segment

    async def _segment(self, start_pos: int, next_start: int | None, at: _At, *, next_is_last: bool) -> AsyncIterator[Finding]:
        if not at.index:
            await self._take_first_word(start_pos, at)
        first_index = at.index
        units = await load_units(self._disk, self._files, start_pos, first_index, next_start)
        found: dict[int, EntryPlace] = {}
        async with InUse(self._files, log_path(start_pos)) as file:
            walk = SegmentWalk(
                file, start_pos, next_start, self._piece_bytes, pos=start_pos, index=at.index, term=at.term, chain_crc=at.chain_crc
            )
            while True:
                step = await self._walk(walk, start_pos, first_index, found)
                at.index, at.term, at.chain_crc = walk.index, walk.term, walk.chain_crc
                behind = next_start is None and await written_end(file, start_pos, step.pos, self._piece_bytes) > step.pos
                found_out = verdict(step, walk.index - first_index, units, next_start, behind)
                if found_out is not None and found_out[0] is DamageKind.BAD_FILLER and next_start is not None and next_is_last:
                    position = Position(walk.index, walk.term, step.pos, walk.chain_crc)
                    if await was_only_prepared(self._disk, self._files, next_start, position):
                        yield await self._prepared(next_start)
                        next_start, self._ended = None, True
                        continue
                if found_out is not None:
                    yield self._finding(start_pos, step.pos - start_pos, walk.index, *found_out)
                if found_out is None or found_out[0] is DamageKind.TORN_TAIL:
                    break
                if not _step_over(walk, units, walk.index - first_index):
                    at.index = 0
                    break
            if next_start is not None and step.kind is StopKind.FILLER:
                end = await written_end(file, start_pos, step.pos + FILLER_SIZE, self._piece_bytes)
                if end > step.pos + FILLER_SIZE:
                    yield self._finding(
                        start_pos,
                        end - 1 - start_pos,
                        0,
                        DamageKind.BAD_FILLER,
                        "a byte behind the filler is not zero (the next start rewrites it)",
                    )
        for finding in self._units(start_pos, first_index, units, found, sealed=next_start is not None):
            yield finding

    async def _walk(self, walk: SegmentWalk, start_pos: int, first_index: int, found: dict[int, EntryPlace]) -> Stop:
        """Note every entry up to where the walk stops."""
        while isinstance(step := await walk.next(), Found):
            found[step.place.index - first_index] = step.place
            self._progress(step.place)
        if step.newer:
            raise newer_entry(self._disk, start_pos, walk.index, step)
        return step

    async def _prepared(self, start_pos: int) -> Finding:
        """What to say of a file that never got an entry, and is not all zeros."""
        async with InUse(self._files, log_path(start_pos)) as file:
            first = await written_start(file, start_pos, self._piece_bytes)
        text = "preallocated and not all zeros; it holds no entry (the next start moves the bytes to quarantine and recreates the file)"
        return self._finding(start_pos, (first or start_pos) - start_pos, 0, DamageKind.PREPARED, text)

    async def _take_first_word(self, start_pos: int, at: _At) -> None:
        """Behind damage that hid where entries end, only the first entry's own header says where it belongs."""
        async with InUse(self._files, log_path(start_pos)) as file:
            head = await file.pread(0, ENTRY_HEADER_SIZE)
        at.index = max(1, Header.unpack(head).index) if len(head) == ENTRY_HEADER_SIZE else 1
        at.term, at.chain_crc = 0, None

    def _progress(self, place: EntryPlace) -> None:
        self._entries += 1
        self._last_term = place.term
        self._checked_bytes += place.size
        self._on_progress(self._checked_bytes)

    def _units(
        self, start_pos: int, first_index: int, units: UnitsFound, found: dict[int, EntryPlace], *, sealed: bool
    ) -> Iterator[Finding]:
        """Units that are not those of their entries."""
        path = self._disk.local_path(units_path(start_pos))
        if not units.exists:
            yield Finding(path, 0, first_index, DamageKind.MISSING_UNITS, "the file is missing, or cannot be read")
            return
        stored = len(units.units)
        for number, place in found.items():
            at = number * INDEX_UNIT_SIZE
            present = units.data[at : at + INDEX_UNIT_SIZE]
            if present == encode_units([place]):
                continue
            if not any(present):
                # The newest entries may be without: their units were not written yet.
                if sealed or number < units.proven:
                    yield Finding(path, at, place.index, DamageKind.BAD_UNIT, "no unit")
                continue
            yield Finding(path, at, place.index, DamageKind.BAD_UNIT, "not the place of its entry")
        for number in range(units.proven, stored):
            if number not in found and any(units.data[number * INDEX_UNIT_SIZE : (number + 1) * INDEX_UNIT_SIZE]):
                yield Finding(path, number * INDEX_UNIT_SIZE, 0, DamageKind.BAD_UNIT, "a unit behind the last entry")

    # -- the hard state

    async def _hard_state(self) -> AsyncIterator[Finding]:
        path = self._disk.local_path(HARD_STATE_PATH)
        try:
            file = await self._disk.open(HARD_STATE_PATH)
        except FileNotFoundError:
            if self._entries:
                yield Finding(path, 0, 0, DamageKind.HARD_STATE, "the file is missing, but the log holds entries")
            return
        try:
            copies = await read_copies(file)
        finally:
            await file.close()
        for copy in copies:
            if copy.record is None and not copy.blank:
                yield Finding(path, copy.pos, 0, DamageKind.HARD_STATE_COPY, f"the {COPY_BYTES} bytes here hold no record")
        newest, lost_pos = newest_of(copies), lost_slot(copies)
        if newest is None:
            yield Finding(path, 0, 0, DamageKind.HARD_STATE, "no copy is readable: the node's term and vote are lost")
        elif lost_pos is not None:
            yield Finding(path, lost_pos, 0, DamageKind.HARD_STATE, "neither copy of the promise here is readable; it may be the newest")
        elif newest.state.term < self._last_term:
            text = f"term {newest.state.term}, but the log has entries of term {self._last_term}"
            yield Finding(path, 0, 0, DamageKind.HARD_STATE, text)


def _step_over(walk: SegmentWalk, units: UnitsFound, good: int) -> bool:
    """Skip a bad entry, as far as its index unit says where it ends."""
    if good >= units.sound:
        return False
    unit = units.units[good]
    walk.step_to(int(unit["pos"]) + int(unit["size"]), int(unit["index"]) + 1, int(unit["term"]), None)
    return True
