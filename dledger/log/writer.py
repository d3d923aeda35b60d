"""The one write stream of a log: cuts, entries, index units, in this order and synced as recovery needs it.

Owns what is on disk: the segments there, how far the last one is written and synced.  The rules recovery rests on:
* the hard state of an entry's term is durable before the entry is written (``Log.flush`` sees to that);
* before a new segment gets a byte, the one before it is sealed: filler written, exact size, synced, its units written and synced;
* units are written after the sync of their entries and before it is reported, so that after a killed process each entry that was
  ever reported durable has one (what the power takes is what was written within ``units_sync_delay_ms``);
* before entries are cut, their units are made void and that is synced;
* segments are cut last first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dledger.log.ahead import Filled, Preparer, create_segment
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.hard_state import HardStateFile
from dledger.log.index_units import EntryPlace, encode_units
from dledger.log.queue import Batch, Cut
from dledger.log.recovery import remove_segment, void_units
from dledger.log.segment import FilePool, InUse, Segment, SegmentMap, log_path, units_path
from dledger.measures import LogMeasures
from dledger.runtime.env import After, Buffer, Disk, File
from dledger_wire.check import require
from dledger_wire.layout import FILLER, FILLER_SIZE, INDEX_UNIT_SIZE, MAGIC_FILLER

MAX_WRITE_BUFFERS = 1 << 16


class Writer:
    """Writes batches.  One call at a time; an error leaves in the batch what was not done."""

    def __init__(
        self,
        disk: Disk,
        files: FilePool,
        config: LogConfig,
        hard_state: HardStateFile,
        segments: list[Segment],
        measures: LogMeasures,
    ) -> None:
        self._disk = disk
        self._measures = measures
        self._files = files
        self._config = config
        self.hard_state = hard_state
        self.segments = SegmentMap([Segment(segment.start_pos, segment.first_index) for segment in segments])
        self.written_index = 0
        self.synced_index = 0
        self.end_pos = 0
        self._units_size = 0
        self._units_writes = 0
        self._units_writes_synced = 0
        self._places: list[EntryPlace] = []  # written to the active segment, without a unit yet
        self._units_lock = asyncio.Lock()
        self._tail_dirty = False
        self.preparer: Preparer

    @property
    def has_unsynced_units(self) -> bool:
        return bool(self._places) or self._units_writes_synced < self._units_writes

    @property
    def indexed_index(self) -> int:
        """The last entry whose index unit is written."""
        return self._places[0].index - 1 if self._places else self.written_index

    async def open(self, last_index: int, end_pos: int) -> None:
        """Take over the log as recovered; make the first segment of a new one."""
        self.written_index = self.synced_index = last_index
        self.end_pos = end_pos
        active = self.segments.last
        if not (await self._disk.exists(log_path(active.start_pos)) and await self._disk.exists(units_path(active.start_pos))):
            await create_segment(self._files, self._config, active.start_pos)
        await self._measure(active)

    async def _measure(self, active: Segment) -> None:
        async with InUse(self._files, log_path(active.start_pos)) as file:
            size = await file.size()
        async with InUse(self._files, units_path(active.start_pos)) as file:
            self._units_size = await file.size()
        filled = Filled(active.start_pos, active.start_pos + size, active.start_pos + self._config.segment_bytes)
        self.preparer = Preparer(self._disk, self._files, self._config, filled, self.end_pos)

    async def close(self) -> None:
        await self.sync_units()
        await self.hard_state.close()

    async def write(self, batch: Batch, *, sync: bool) -> None:
        """Write everything in ``batch`` and, when asked, make it and all before it durable."""
        if batch.cut is not None:
            await self._cut(batch.cut)
            batch.cut = None
        elif self._tail_dirty:
            await self._truncate(self.end_pos)
        await self._write_entries(batch, sync)
        if sync:
            await self._sync()

    def write_now(self, entries: list[RawEntry]) -> bool:
        """Write entries and make them durable before this returns; False, with nothing done, when that takes more than one write to
        blocks that are there, or the disk is not one for it."""
        active, ready_pos, end = self.segments.last, self.preparer.active.ready_pos, entries[-1].end_pos
        start, units_end = active.start_pos, (entries[-1].index - active.first_index + 1) * INDEX_UNIT_SIZE
        is_one_run = entries[0].pos == self.end_pos and all(a.end_pos == b.pos for a, b in pairwise(entries))
        has_blocks = (end <= ready_pos or not self._config.fill_window_bytes) and units_end <= self._units_size
        file, units = self._files.opened(log_path(start)), self._files.opened(units_path(start))
        if not is_one_run or not has_blocks or file is None or units is None:
            return False
        if self._tail_dirty or self._places or not self._config.units_sync_delay_ms:
            return False
        places, buffers = _places_of(entries), [buffer for entry in entries for buffer in entry.buffers]
        after = After(units, (entries[0].index - active.first_index) * INDEX_UNIT_SIZE, encode_units(places))
        began_s = self._measures.stopwatch()
        self._tail_dirty = True  # stays when this raises
        written = file.write_now(self.end_pos - start, buffers, after)
        self._tail_dirty = False
        if written:
            self._measures.fsync_s.observe(self._measures.stopwatch() - began_s)
            self.preparer.active.ready_pos = max(ready_pos, end)
            self._run_written(entries[-1].index, end, synced=True)
            self._units_writes += 1
        return written

    # -- entries

    async def _write_entries(self, batch: Batch, sync: bool) -> None:
        """Write run after run: as many entries as follow each other within one segment."""
        while batch.entries:
            entries = batch.entries
            end = self.end_pos
            count = 0
            buffers: list[Buffer] = []
            while count < len(entries) and entries[count].pos == end and len(buffers) < MAX_WRITE_BUFFERS:
                buffers += entries[count].buffers
                end = entries[count].end_pos
                count += 1
            if count:
                await self._write_run(entries[:count], buffers, end, sync=sync and count == len(entries))
                del entries[:count]
            else:
                await self._roll(entries[0])

    async def _write_run(self, run: list[RawEntry], buffers: list[Buffer], end: int, *, sync: bool) -> None:
        require(run[0].index == self.written_index + 1, "entry %d written after %d", run[0].index, self.written_index)
        active = self.segments.last
        start = active.start_pos
        places = _places_of(run)
        if sync:
            # No entry is reported durable without its unit, so a disk that has no room for units takes no entries.
            await self._reserve_units(run[-1].index)
        self._tail_dirty = True  # until the write came back whole
        async with InUse(self._files, log_path(start)) as file, InUse(self._files, units_path(start)) as units:
            after = None
            if sync and not self._places and self._config.units_sync_delay_ms:
                after = After(units, (run[0].index - active.first_index) * INDEX_UNIT_SIZE, encode_units(places))
            began_s = self._measures.stopwatch()
            if end <= self.preparer.active.ready_pos:
                await file.pwrite(self.end_pos - start, buffers, sync=sync, after=after)
            else:
                async with self.preparer.extending:
                    await self.preparer.reserve(file, end)
                    await file.pwrite(self.end_pos - start, buffers, sync=sync, after=after)
                    self.preparer.active.ready_pos = max(self.preparer.active.ready_pos, end)
            took = self._measures.fsync_s if sync else self._measures.write_s
            took.observe(self._measures.stopwatch() - began_s)
        self._tail_dirty = False
        if after is None:
            self._places += places
        else:
            self._units_writes += 1
        self._run_written(run[-1].index, end, synced=sync)

    def _run_written(self, last_index: int, end: int, *, synced: bool) -> None:
        self.end_pos = end
        self.written_index = last_index
        if synced:
            self.synced_index = last_index
        self.preparer.wrote(end)

    async def _roll(self, entry: RawEntry) -> None:
        """Seal the active segment and continue in the one that starts with ``entry``."""
        active = self.segments.last
        filler_size = entry.pos - self.end_pos
        require(filler_size >= FILLER_SIZE, "entry %d at %d leaves %d bytes after %d", entry.index, entry.pos, filler_size, self.end_pos)
        async with self.preparer.extending:
            self._tail_dirty = True
            async with InUse(self._files, log_path(active.start_pos)) as file:
                await file.pwrite(self.end_pos - active.start_pos, [FILLER.pack(MAGIC_FILLER, filler_size)])
                if await file.size() != entry.pos - active.start_pos:
                    await file.truncate(entry.pos - active.start_pos)
                self.preparer.active.ready_pos = entry.pos
                await file.fdatasync()
            self.synced_index = self.written_index
            await self.sync_units()
            await self.preparer.roll(entry.pos)
            self._tail_dirty = False
            self.segments.add(Segment(entry.pos, entry.index))
            self.end_pos = entry.pos
            async with InUse(self._files, units_path(entry.pos)) as file:
                self._units_size = await file.size()

    # -- durability

    async def _sync(self) -> None:
        if self.synced_index < self.written_index:
            async with InUse(self._files, log_path(self.segments.last.start_pos)) as file:
                began_s = self._measures.stopwatch()
                await file.fdatasync()
                self._measures.fsync_s.observe(self._measures.stopwatch() - began_s)
            self.synced_index = self.written_index
        if self._places:
            async with self._units_lock:
                await self._write_units(strict=self._config.units_sync_delay_ms == 0)

    async def _write_units(self, *, strict: bool) -> None:
        """Write the units of what is synced.  The caller holds ``_units_lock``; entries may be added meanwhile."""
        count = bisect_right(self._places, self.synced_index, key=lambda place: place.index)
        if not count:
            return
        active = self.segments.last
        at = (self._places[0].index - active.first_index) * INDEX_UNIT_SIZE
        data = encode_units(self._places[:count])
        async with InUse(self._files, units_path(active.start_pos)) as file:
            await self._grow_units(file, at + len(data))
            await file.pwrite(at, [data], sync=strict)
        del self._places[:count]
        self._units_writes += 1
        if strict:
            self._units_writes_synced = self._units_writes

    async def _reserve_units(self, last_index: int) -> None:
        """Room for the units up to that of ``last_index``."""
        active = self.segments.last
        size = (last_index - active.first_index + 1) * INDEX_UNIT_SIZE
        if size > self._units_size:
            async with self._units_lock, InUse(self._files, units_path(active.start_pos)) as file:
                await self._grow_units(file, size)

    async def _grow_units(self, file: File, size: int) -> None:
        """The caller holds ``_units_lock``."""
        if size > self._units_size:
            step = self._config.units_step_bytes
            size = -(-size // step) * step
            await file.allocate(size, fill=True)
            self._units_size = size

    async def sync_units(self) -> None:
        """Write the units of everything synced so far and make them durable.  May run beside a flush."""
        async with self._units_lock:
            await self._write_units(strict=False)
            writes = self._units_writes
            if self._units_writes_synced == writes:
                return
            path = units_path(self.segments.last.start_pos)
            async with InUse(self._files, path) as file:
                await file.fdatasync()
            self._units_writes_synced = max(self._units_writes_synced, writes)

    # -- cutting

    async def _cut(self, cut: Cut) -> None:
        """Remove entries from the disk, last first; each step leaves a log that recovery reads as a shorter or the same one."""
        if cut.from_index > self.written_index:
            await self._truncate_dirty()
            return
        async with self.preparer.extending, self._units_lock:
            dropped = self.segments.cut(cut.from_index)
            for segment in dropped:
                await remove_segment(self._disk, self._files, segment.start_pos)
            self._places = [place for place in self._places if place.index < cut.from_index and not dropped]
            await void_units(self._files, self.segments.last, cut.from_index)
            self.written_index = cut.from_index - 1
            self.synced_index = min(self.synced_index, self.written_index)
            self.end_pos = cut.end_pos
            if dropped:
                await self._reopen_active()
        await self._truncate(cut.end_pos)

    async def _reopen_active(self) -> None:
        """The segment before the dropped ones is the active one again."""
        active = self.segments.last
        async with InUse(self._files, log_path(active.start_pos)) as file:
            ready_pos = active.start_pos + await file.size()
        async with InUse(self._files, units_path(active.start_pos)) as file:
            self._units_size = await file.size()
        self.preparer.active = Filled(active.start_pos, ready_pos, active.start_pos + self._config.segment_bytes)

    async def _truncate_dirty(self) -> None:
        if self._tail_dirty:
            await self._truncate(self.end_pos)

    async def _truncate(self, end_pos: int) -> None:
        """Cut the active file at ``end_pos`` and make that durable before anything is written there again."""
        start = self.segments.last.start_pos
        async with self.preparer.extending, InUse(self._files, log_path(start)) as file:
            self._tail_dirty = True
            await file.truncate(end_pos - start)
            await file.fdatasync()
            self.preparer.active.ready_pos = end_pos
            self._tail_dirty = False
        self.preparer.wrote(end_pos)


def _places_of(entries: Sequence[RawEntry]) -> list[EntryPlace]:
    return [EntryPlace(entry.index, entry.term, entry.pos, entry.size_bytes, entry.kind) for entry in entries]
