"""Small rules of the log that a whole life seldom shows."""

from __future__ import annotations

import pytest

from dledger.core.types import EntryId
from dledger.log.log import Log
from dledger.log.queue import Cut, WriteQueue
from dledger.log.segment import InUse, log_path, units_path
from dledger.runtime.env import Disk
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import TINY, add, bodies, everything, promise, reopened, run


def test_a_full_disk_gives_back_nothing_that_was_cut_meanwhile() -> None:
    async def scenario() -> None:
        log, _ = await Log.open(CrashDisk(), TINY)
        promise(log, 2)
        old = add(log, 5, 1)
        queue = WriteQueue()
        for entry in old:
            queue.add(entry)
        in_flight = queue.take()
        log.cut(3)
        (new,) = add(log, 1, 2)
        cut = Cut(3, old[1].end_pos)
        queue.cut(cut, reached_index=5)
        queue.add(new)
        queue.give_back(in_flight)
        batch = queue.take()
        assert [entry.id for entry in batch.entries] == [EntryId(1, 1), EntryId(2, 1), EntryId(3, 2)]
        assert batch.cut == cut
        await log.close()

    run(scenario)


def test_a_trimmed_log_knows_the_term_of_the_entry_before_its_first() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, TINY)
        promise(log, 100)
        for term in range(1, 61):
            add(log, 1, term)  # every entry of a term of its own
        await log.flush()
        for segment in log.segments[1:]:
            first = await log.trim(segment.first_index)
            assert first == segment.first_index
            assert log.before == EntryId(first - 1, first - 1)
            assert log.term_at(first - 1) == first - 1
        before = log.before
        await log.close()
        log, report = await Log.open(disk, TINY)
        assert report.is_clean
        assert log.before == before
        assert log.terms()[0] == (before.term + 1, before.index + 1)
        await log.close()

    run(scenario)


def test_a_reader_amid_the_removal_of_a_segment_leaves_no_handle_to_its_successor(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 2)
        kept = add(log, 40, 1)
        await log.flush()
        second, remove = log.segments[1], disk.remove
        paths = {log_path(second.start_pos), units_path(second.start_pos)}
        read = []

        async def read_and_remove(path: str) -> None:
            if path in paths:
                async with InUse(log._files, path) as file:
                    await file.pread(0, 1)
                read.append(path)
            await remove(path)

        monkeypatch.setattr(disk, "remove", read_and_remove)
        log.cut(second.first_index)
        await log.flush()
        monkeypatch.undo()
        assert set(read) == paths
        new = add(log, 40, 2)
        await log.flush()
        opened, report = await reopened(log, disk)
        assert report.is_clean
        assert bodies(await everything(opened)) == bodies([*kept[: second.first_index - 1], *new])
        await opened.close()

    run(scenario)
