"""Finding the log again after a stop of any kind.

Owns the order of a start, and giving up a tail for the next one; the verdicts on a single segment are ``segment_recovery.py``'s.  The rules
it rests on, kept by ``writer.py``:
* a segment is synced up to and with its filler before the next one gets a byte, so only the last segment with content can be torn;
* an index unit is written after its entry was synced and before that is reported, and made void durably before its entry is cut.
Running it again, also after a crash in the middle of it, gives the same log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.core.types import EntryId
from dledger.log import quarantine
from dledger.log.config import LogConfig
from dledger.log.index_units import EntryPlace, PlaceTable
from dledger.log.report import DamageKind, Finding, RecoveryReport
from dledger.log.scan import written_end
from dledger.log.segment import UNITS_FOLDER, FilePool, InUse, Segment, list_starts, log_path, units_path
from dledger.log.segment_recovery import Position, SegmentRecovery, load_units
from dledger.log.start import LogStart, load_log_start
from dledger.runtime.env import Disk
from dledger.runtime.folders import LOG_FOLDER
from dledger_wire.layout import INDEX_UNIT_SIZE, segment_name


@dataclass(slots=True)
class Recovered:
    """The log as found: everything ``Log`` starts from."""

    start: LogStart
    segments: list[Segment]
    places: PlaceTable
    terms: list[tuple[int, int]]
    last: EntryId
    end_pos: int
    chain_crc: int
    report: RecoveryReport


@dataclass(slots=True)
class _Files:
    """The segments that hold something, in order, and the empty ones after them."""

    contents: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)


async def recover(disk: Disk, files: FilePool, config: LogConfig) -> Recovered:
    """Find the log; cut a torn tail; write missing index units."""
    report = RecoveryReport()
    start = await load_log_start(disk)
    found = await _find_files(disk, files, config, start, report)
    places = PlaceTable(config.places_limit)
    places.restart(start.first_index)
    position = Position(start.first_index, start.before_term, start.first_pos, start.before_chain_crc)
    terms: list[tuple[int, int]] = []
    segments: list[Segment] = []
    verify_from = await _verify_from(files, disk, config, found.contents)
    for at, start_pos in enumerate(found.contents):
        next_start = found.contents[at + 1] if at + 1 < len(found.contents) else None
        segments.append(Segment(start_pos, position.index))
        recovery = SegmentRecovery(
            disk, files, config, report, places, terms, position, start_pos, next_start, next_is_last=next_start == found.contents[-1]
        )
        if not await recovery.run(verify_from):
            break
        if recovery.next_start != next_start:  # that one was only prepared
            found.empty.insert(0, found.contents[-1])
            break
    if not report.damaged:
        await _remove_empty_end(disk, files, found.empty, segments, position)
    if not segments:
        segments.append(Segment(start.first_pos, start.first_index))
    last = EntryId(position.index - 1, position.term)
    return Recovered(start, segments, places, terms, last, position.pos, position.chain_crc or 0, report)


async def _find_files(disk: Disk, files: FilePool, config: LogConfig, start: LogStart, report: RecoveryReport) -> _Files:
    """Which segments there are; what a trim left half deleted goes, what is missing is damage."""
    starts, foreign = await list_starts(disk, LOG_FOLDER)
    units_starts, foreign_units = await list_starts(disk, UNITS_FOLDER)
    report.foreign_files += [f"{LOG_FOLDER}/{name}" for name in foreign] + [f"{UNITS_FOLDER}/{name}" for name in foreign_units]
    for start_pos in [start_pos for start_pos in starts if start_pos < start.first_pos]:
        await remove_segment(disk, files, start_pos)
    kept = [start_pos for start_pos in starts if start_pos >= start.first_pos]
    for start_pos in units_starts:
        if start_pos in kept:
            continue
        if start_pos >= start.first_pos and (await load_units(disk, files, start_pos, None, None)).proven:
            _missing(disk, report, start_pos, "the file is gone, but its index units are there")
        elif await disk.exists(units_path(start_pos)):
            # It was just read: a handle kept open would be written to by the next segment of that name, with no file behind it.
            await disk.remove(units_path(start_pos))
            await files.drop(units_path(start_pos))
    if kept and kept[0] != start.first_pos:
        _missing(disk, report, start.first_pos, f"the first file is {segment_name(kept[0])}, expected {segment_name(start.first_pos)}")
        return _Files()
    if not kept and start.first_index > 1:
        _missing(disk, report, start.first_pos, "the log has no file at all, but was trimmed once")
    empty: list[int] = []
    while kept and await _is_empty(disk, files, config, kept[-1]):
        empty.insert(0, kept.pop())
    if not kept and empty:
        kept.append(empty.pop(0))
    return _Files(kept, empty)


def _missing(disk: Disk, report: RecoveryReport, start_pos: int, text: str) -> None:
    report.damaged.append(Finding(disk.local_path(log_path(start_pos)), start_pos, 0, DamageKind.MISSING_SEGMENT, text))


async def _is_empty(disk: Disk, files: FilePool, config: LogConfig, start_pos: int) -> bool:
    """Whether a file was only prepared: zeros, and no index unit that proves an entry."""
    if (await load_units(disk, files, start_pos, None, None)).proven:
        return False
    async with InUse(files, log_path(start_pos)) as file:
        return await written_end(file, start_pos, start_pos, config.piece_bytes) == start_pos


async def _verify_from(files: FilePool, disk: Disk, config: LogConfig, contents: list[int]) -> int:
    """From which position on entries are checked byte by byte."""
    if config.verify_bytes is None or not contents:
        return 0
    units = await load_units(disk, files, contents[-1], None, None)
    end = contents[-1]
    if units.sound:
        last = units.units[units.sound - 1]
        end = int(last["pos"]) + int(last["size"])
    return max(0, end - config.verify_bytes)


async def _remove_empty_end(disk: Disk, files: FilePool, empty: list[int], segments: list[Segment], position: Position) -> None:
    """Remove prepared files, and a last segment of which nothing is left: the log then ends in the one before."""
    for start_pos in reversed(empty):
        await remove_segment(disk, files, start_pos)
    while len(segments) > 1 and segments[-1].first_index == position.index:
        await remove_segment(disk, files, segments.pop().start_pos)
        before = segments[-1].start_pos
        async with InUse(files, log_path(before)) as file:
            await file.truncate(position.pos - before)
            await file.fdatasync()


async def discard_from(disk: Disk, files: FilePool, segment: Segment, place: EntryPlace, piece_bytes: int) -> None:
    """Discard the entry at ``place``, which lies in ``segment``, and everything after it: the next start finds the log's end there.

    What is cut is kept in ``quarantine``.  Running it again after a crash in the middle of it ends the same way.
    """
    starts, _ = await list_starts(disk, LOG_FOLDER)
    for start_pos in reversed(starts):
        if start_pos > segment.start_pos:
            await remove_segment(disk, files, start_pos, keep=True)
    if await disk.exists(units_path(segment.start_pos)):
        await void_units(files, segment, place.index)
        return
    # An empty file of units would say that no entry of the segment was ever synced, so damage before this entry would be cut as well.
    async with InUse(files, log_path(segment.start_pos)) as file:
        end = await written_end(file, segment.start_pos, place.pos, piece_bytes)
        await quarantine.keep_range(disk, files, file, segment.start_pos, place.pos, end, piece_bytes)
        await file.truncate(place.pos - segment.start_pos)
        await file.fdatasync()


async def void_units(files: FilePool, segment: Segment, from_index: int) -> None:
    """Make the units of ``from_index`` and all after it void, durably: they prove nothing any more."""
    at = max(0, from_index - segment.first_index) * INDEX_UNIT_SIZE
    async with InUse(files, units_path(segment.start_pos)) as file:
        size = await file.size()
        if at < size:
            await file.pwrite(at, [bytes(size - at)], sync=True)


async def remove_segment(disk: Disk, files: FilePool, start_pos: int, *, keep: bool = False) -> None:
    """Remove a segment's two files, or with ``keep`` move the log's to ``quarantine``.

    The units are made void durably, then go first: units without a log file would look like a lost log file.
    """
    if await disk.exists(units_path(start_pos)):
        async with InUse(files, units_path(start_pos)) as file:
            await file.truncate(0)
            await file.fdatasync()
    if keep:
        await quarantine.keep_segment(disk, files, start_pos)
    for path in (log_path(start_pos), units_path(start_pos)):
        # Dropped once no caller can open it any more: a reader between the two would leave a handle that the next segment of that name is
        # written through, into a file that no restart finds.
        if await disk.exists(path):
            await disk.remove(path)
        await files.drop(path)
