"""The verdicts of a start on one segment (its layout: docs/reference/formats.md).

| what stands after the last good entry | index units | verdict |
|---|---|---|
| filler, in a segment with a successor | none beyond | the segment is whole |
| anything else, in a segment with a successor | none beyond | filler rewritten where the successor's first entry continues the chain, or
its index unit says so: nothing else can have stood there; else damage |
| not a whole entry, in the last segment | one beyond it proves a synced entry | damage |
| anything else, and the last segment behind it begins with no entry that continues the chain | file there, none in it | that segment was
only prepared: removed, what is not zero in it kept in quarantine; this one is the last |
| bad bytes, in the last segment | file there, none beyond | torn tail: never reported durable (but for a power failure that takes the
units of the last ``units_sync_delay_ms`` and damage among just their entries), or given up (``recovery.discard_from``); cut, kept in
quarantine |
| bad bytes, in the last segment | file missing | damage: a torn tail cannot be distinguished from a lost entry; a whole header that
follows the chain names the entry, so peers can be asked for it |
| zeros or filler, in the last segment | none beyond | the log ends here |

Damage is reported, not cut, and the units of a damaged segment are left as they are: they are the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dledger.log import quarantine
from dledger.log.config import LogConfig
from dledger.log.entry import Header, link_fault
from dledger.log.index_units import (
    EntryPlace,
    PlaceTable,
    Units,
    decode_units,
    encode_units,
    place_of_unit,
    proven_count,
    sound_prefix,
    term_runs,
)
from dledger.log.report import DamageKind, Finding, RecoveryReport, TornTail
from dledger.log.scan import Found, SegmentWalk, Stop, StopKind, written_end, written_start
from dledger.log.segment import FilePool, InUse, log_path, units_path
from dledger.runtime.env import Disk, File, read_unless_lost
from dledger_wire.errors import DataDirectoryError
from dledger_wire.formats import ENTRY, newer
from dledger_wire.layout import (
    ENTRY_HEADER_SIZE,
    FILLER,
    FILLER_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC_FILLER,
    MAX_SEGMENT_BYTES,
    segment_name,
)

MAX_FINDINGS = 1000


@dataclass(slots=True)
class Position:
    """Where the walk over the segments stands: what the next entry must follow.  ``chain_crc`` None: unknown, behind damage."""

    index: int
    term: int
    pos: int
    chain_crc: int | None


@dataclass(slots=True)
class UnitsFound:
    """The units of one segment as they stand.  ``proven`` units prove a synced entry, the first ``sound`` agree with each other.

    Without a file that can be read (``exists``) they prove nothing, and that there are none proves nothing either.
    """

    exists: bool
    data: bytes
    units: Units
    proven: int
    sound: int


async def continues(disk: Disk, files: FilePool, start_pos: int, at: Position) -> bool:
    """Whether the entry at the head of a segment is the one that comes next.

    By its header, or, where that is damaged, its index unit: what is put in its place continues the chain, or the next start says so.
    """
    if at.chain_crc is None:
        return False
    async with InUse(files, log_path(start_pos)) as file:
        head = await _header_bytes(file, 0)
    if len(head) == ENTRY_HEADER_SIZE and link_fault(Header.unpack(head), head, at.index, at.term, start_pos, at.chain_crc) is None:
        return True
    return (await load_units(disk, files, start_pos, at.index, None)).sound > 0


async def _header_bytes(file: File, at: int) -> bytes:
    """What stands where an entry's header is expected; empty when that cannot be read: it proves as little as a wrong one."""
    return await read_unless_lost(file, at, ENTRY_HEADER_SIZE) or b""


async def was_only_prepared(disk: Disk, files: FilePool, start_pos: int, at: Position) -> bool:
    """Whether the last segment, where the one before it has no filler, never got an entry, whatever stands in it.

    Entries are written from its first byte on, each followed by its index unit before it is reported durable.
    """
    if at.chain_crc is None:
        return False
    units = await load_units(disk, files, start_pos, None, None)
    return units.exists and not units.proven and not await continues(disk, files, start_pos, at)


async def load_units(disk: Disk, files: FilePool, start_pos: int, first_index: int | None, next_start: int | None) -> UnitsFound:
    """Read a segment's units; with ``first_index`` None the first unit's index counts."""
    path = units_path(start_pos)
    data: bytes | None = None
    if await disk.exists(path):
        async with InUse(files, path) as file:
            data = await read_unless_lost(file, 0, await file.size())
    if data is None:
        return UnitsFound(False, b"", decode_units(b""), 0, 0)
    units = decode_units(data)
    if first_index is None:
        first_index = int(units["index"][0]) if len(units) else 1
    limit = start_pos + MAX_SEGMENT_BYTES if next_start is None else next_start
    proven = proven_count(units, first_index, start_pos, limit)
    return UnitsFound(True, data, units, proven, sound_prefix(units[:proven], first_index, start_pos, limit))


def verdict(stop: Stop, good: int, units: UnitsFound, next_start: int | None, content_behind: bool) -> tuple[DamageKind, str] | None:
    """What it means that a walk ended after ``good`` entries of a segment; None: as it should be.

    ``content_behind``: whether anything but zeros stands at or behind the stop, asked for in the last segment only.
    """
    if good < units.proven:
        kind = DamageKind.BAD_ENTRY if stop.kind is StopKind.BAD else DamageKind.MISSING_ENTRY
        return kind, f"{stop.reason}; an index unit proves that an intact entry was here"
    if next_start is not None:
        if stop.kind is StopKind.FILLER:
            return None
        return DamageKind.BAD_FILLER, f"{stop.reason}; entries follow in {segment_name(next_start)}"
    if not content_behind or stop.kind is StopKind.FILLER:
        return None
    if not units.exists:
        return DamageKind.BAD_ENTRY, f"{stop.reason}; without index units a torn tail cannot be distinguished from damage"
    return DamageKind.TORN_TAIL, f"a write that was never acknowledged ({stop.reason}); the next start truncates it"


def newer_entry(disk: Disk, start_pos: int, index: int, stop: Stop) -> DataDirectoryError:
    """The refusal of a log that holds an entry of a newer release: it is neither torn nor damaged."""
    where = f"{disk.local_path(log_path(start_pos))}: entry {index} at byte {stop.pos - start_pos}"
    return newer(where, stop.newer, ENTRY)


@dataclass(slots=True)
class SegmentRecovery:
    """Recovers the segment at ``start_pos``; moves ``position`` behind its last entry and adds to places, terms and report."""

    disk: Disk
    files: FilePool
    config: LogConfig
    report: RecoveryReport
    places: PlaceTable
    terms: list[tuple[int, int]]
    position: Position
    start_pos: int
    next_start: int | None
    next_is_last: bool = False

    async def run(self, verify_from: int) -> bool:
        """False when the log cannot be followed beyond this segment."""
        first_index = self.position.index
        units = await load_units(self.disk, self.files, self.start_pos, first_index, self.next_start)
        async with InUse(self.files, log_path(self.start_pos)) as file:
            trusted = await self._trusted_count(file, units, verify_from)
            if trusted:
                await self._take_units(file, units.units[:trusted])
            walk = self._walk_from(file, self.position.pos if trusted else self.start_pos)
            found: list[EntryPlace] = []
            while True:
                stop = await self._walk(walk, found)
                damage = await self._damage(file, units, walk.index - first_index, stop)
                if damage is None or (damage.kind is DamageKind.BAD_FILLER and await self._mend_filler(file, stop.pos)):
                    break
                if damage.kind is DamageKind.BAD_FILLER and await self._drop_prepared():
                    continue
                if not self._step_over(walk, units, walk.index - first_index, damage, stop):
                    await self._keep_proof(units)
                    return False
            if self.report.damaged:
                await self._keep_proof(units)
                return True
            if self.next_start is not None and stop.kind is StopKind.FILLER:
                await self._clean_filler(file, stop.pos)
            await self._tidy_end(file, stop, [place for place in found if place.index - first_index >= units.sound])
            await self._rewrite_units(file, units, trusted, found)
        return True

    def _walk_from(self, file: File, pos: int) -> SegmentWalk:
        at = self.position
        return SegmentWalk(
            file, self.start_pos, self.next_start, self.config.piece_bytes, pos=pos, index=at.index, term=at.term, chain_crc=at.chain_crc
        )

    # -- the part before ``verify_from``: by the units alone

    async def _trusted_count(self, file: File, units: UnitsFound, verify_from: int) -> int:
        if not units.sound:
            return 0
        count = int(np.searchsorted(units.units["pos"][: units.sound].astype(np.int64), verify_from))
        return count if await self._terms_are_right(file, units.units[:count]) else 0

    async def _terms_are_right(self, file: File, units: Units) -> bool:
        """Whether the entries on both sides of every change of term, and the last one, say of themselves what their units say.

        Units have no checksum, and a wrong term would be this node's word on what its log holds. Terms never fall from entry to entry, so
        those at both ends of a run stand for all in it.
        """
        firsts = [index - int(units["index"][0]) for _term, index in term_runs(units)]
        for at in sorted({*firsts, *(first - 1 for first in firsts[1:]), *([len(units) - 1] if len(units) else [])}):
            if await self._chain_crc_at(file, place_of_unit(units[at])) is None:
                return False
        return True

    async def _chain_crc_at(self, file: File, place: EntryPlace) -> int | None:
        """The chain CRC in the header at ``place``, None when another header stands there."""
        data = await _header_bytes(file, place.pos - self.start_pos)
        if len(data) < ENTRY_HEADER_SIZE:
            return None
        header = Header.unpack(data)
        return header.chain_crc if header.is_of(place) else None

    async def _take_units(self, file: File, units: Units) -> None:
        last = place_of_unit(units[-1])
        chain_crc = await self._chain_crc_at(file, last)
        self.places.add_units(units, chain_crc)
        for term, first_index in term_runs(units):
            self._note_term(term, first_index)
        self._move_behind(last, chain_crc)

    # -- the rest: byte by byte

    async def _walk(self, walk: SegmentWalk, found: list[EntryPlace]) -> Stop:
        while isinstance(step := await walk.next(), Found):
            found.append(step.place)
            self.places.add(step.place, step.chain_crc)
            self._note_term(step.place.term, step.place.index)
            self._move_behind(step.place, step.chain_crc)
            self.report.entries_checked += 1
        if step.newer:
            raise newer_entry(self.disk, self.start_pos, walk.index, step)
        return step

    def _move_behind(self, place: EntryPlace, chain_crc: int | None) -> None:
        at = self.position
        at.index, at.term, at.pos, at.chain_crc = place.index + 1, place.term, place.end_pos, chain_crc

    def _note_term(self, term: int, first_index: int) -> None:
        if not self.terms or self.terms[-1][0] != term:
            self.terms.append((term, first_index))

    async def _damage(self, file: File, units: UnitsFound, good: int, stop: Stop) -> Finding | None:
        """The damage that a stop after ``good`` entries means, or None."""
        behind = self.next_start is None and await written_end(file, self.start_pos, stop.pos, self.config.piece_bytes) > stop.pos
        found = verdict(stop, good, units, self.next_start, behind)
        if found is None or found[0] is DamageKind.TORN_TAIL:
            return None
        path = self.disk.local_path(log_path(self.start_pos))
        return Finding(path, stop.pos - self.start_pos, self.position.index, found[0], found[1])

    async def _mend_filler(self, file: File, pos: int) -> bool:
        """Rewrite the filler at ``pos`` if the next segment's first entry follows the last one here."""
        next_start = self.next_start
        if next_start is None or next_start - pos < FILLER_SIZE or not await continues(self.disk, self.files, next_start, self.position):
            return False
        await self._write_filler(file, pos, next_start)
        return True

    async def _clean_filler(self, file: File, pos: int) -> None:
        """Behind a filler's head stand zeros, as on every replica."""
        end = await written_end(file, self.start_pos, pos + FILLER_SIZE, self.config.piece_bytes)
        if self.next_start is not None and end > pos + FILLER_SIZE:
            await self._write_filler(file, pos, self.next_start)

    async def _write_filler(self, file: File, pos: int, next_start: int) -> None:
        end = await written_end(file, self.start_pos, pos, self.config.piece_bytes)
        await self._quarantine(file, pos, end)
        await file.truncate(pos - self.start_pos)
        await file.pwrite(pos - self.start_pos, [FILLER.pack(MAGIC_FILLER, next_start - pos)])
        await file.truncate(next_start - self.start_pos)
        await file.fdatasync()
        self.report.fillers_rewritten += 1

    async def _drop_prepared(self) -> bool:
        """Remove the last segment if it was only prepared; this one is the last then."""
        next_start = self.next_start
        if next_start is None or not self.next_is_last or self.report.damaged:
            return False
        if not await was_only_prepared(self.disk, self.files, next_start, self.position):
            return False
        async with InUse(self.files, log_path(next_start)) as file:
            start = await written_start(file, next_start, self.config.piece_bytes)
            if start is not None:
                end = await written_end(file, next_start, start, self.config.piece_bytes)
                self.report.spoilt_prepared = await quarantine.keep_range(
                    self.disk, self.files, file, next_start, start, end, self.config.piece_bytes
                )
        self.next_start = None
        return True

    def _step_over(self, walk: SegmentWalk, units: UnitsFound, good: int, damage: Finding, stop: Stop) -> bool:
        """Report damage and skip it by its index unit, or by its header where the units are lost; False when neither is usable."""
        self.report.damaged.append(damage)
        place = place_of_unit(units.units[good]) if good < units.sound else None if units.exists else stop.named
        if place is None or len(self.report.damaged) >= MAX_FINDINGS:
            return False
        self.places.add(place, None)
        self._note_term(place.term, place.index)
        self._move_behind(place, None)
        walk.step_to(place.end_pos, place.index + 1, place.term, None)
        return True

    # -- leaving it tidy

    async def _tidy_end(self, file: File, stop: Stop, unproven: Sequence[EntryPlace]) -> None:
        """Make durable what will be reported durable; cut what is torn and a filler that nothing stands behind."""
        if self.next_start is not None:
            return
        # What a killed process left in the page cache is not on the disk yet, but counts as stored from here on.  Entries without an
        # index unit may be what a sync failed for: the kernel then takes their pages for clean, and only writing them again helps.
        for place in unproven:
            await file.pwrite(place.pos - self.start_pos, [await file.pread(place.pos - self.start_pos, place.size)])
        await file.fdatasync()
        end = await written_end(file, self.start_pos, stop.pos, self.config.piece_bytes)
        if end == stop.pos:
            return
        if stop.kind is not StopKind.FILLER:
            self.report.torn = TornTail(stop.pos, end - stop.pos, stop.reason, await self._quarantine(file, stop.pos, end))
        await file.truncate(stop.pos - self.start_pos)
        await file.fdatasync()

    async def _quarantine(self, file: File, pos: int, end: int) -> str:
        return await quarantine.keep_range(self.disk, self.files, file, self.start_pos, pos, end, self.config.piece_bytes)

    async def _keep_proof(self, units: UnitsFound) -> None:
        """Units that a killed process left in the page cache must outlive a power failure from here on."""
        if units.exists and self.next_start is None:
            async with InUse(self.files, units_path(self.start_pos)) as file:
                await file.fdatasync()

    async def _rewrite_units(self, file: File, units: UnitsFound, trusted: int, found: list[EntryPlace]) -> None:
        """Make the units those of the entries found, and nothing after them."""
        wanted = encode_units(found)
        at = trusted * INDEX_UNIT_SIZE
        present = units.data[at:]
        if units.exists and present[: len(wanted)] == wanted and not any(present[len(wanted) :]):
            await self._keep_proof(units)
            return
        if self.next_start is not None:
            await file.fdatasync()
        beyond = bytes(max(0, len(present) - len(wanted)))
        path = units_path(self.start_pos)
        if not units.exists and await self.disk.exists(path):  # it cannot be read, nor written in part
            await self.disk.remove(path)
            await self.files.drop(path)
        async with InUse(self.files, path, create=True) as units_file:
            step = self.config.units_step_bytes
            await units_file.allocate(-(-max(at + len(wanted) + len(beyond), 1) // step) * step, fill=True)
            await units_file.pwrite(at, [wanted, beyond], sync=True)
        step = INDEX_UNIT_SIZE
        self.report.units_rewritten += sum(present[n : n + step] != wanted[n : n + step] for n in range(0, len(wanted), step))
