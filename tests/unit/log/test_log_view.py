"""The log as its callers see it: places, reading, cutting, terms, trimming; on real files and in memory."""

from __future__ import annotations

import asyncio

import pytest

from dledger.core.types import EntryId, EntryKind, HardState, NodeId
from dledger.log.entry import encode_entry, parse_entries
from dledger.log.log import Log
from dledger.runtime.env import Disk
from dledger_wire.check import InvariantBrokenError
from dledger_wire.errors import CorruptEntryError, MessageTooLargeError
from dledger_wire.layout import ENTRY_HEADER_SIZE
from tests.unit.log.log_rig import TINY, add, bodies, config, everything, findings, promise, reopened, run


def test_a_fresh_log_is_empty(disk: Disk) -> None:
    async def scenario() -> None:
        log, report = await Log.open(disk, TINY)
        assert report.is_clean
        assert (log.first_index, log.last, log.durable, log.first_pos, log.end_pos) == (1, EntryId(0, 0), EntryId(0, 0), 0, 0)
        assert (log.saved, log.terms(), log.before) == (HardState(), [], EntryId(0, 0))
        assert await log.read(1, 100, 1) == []
        assert (await log.flush()).last == EntryId(0, 0)
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert log.last == EntryId(0, 0)
        await log.close()

    run(scenario)


def test_what_was_flushed_is_there_after_a_restart(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 3)
        written = add(log, 20, 1) + add(log, 1, 2) + add(log, 20, 3)
        assert log.durable == EntryId(0, 0)
        assert (await log.flush()).last == EntryId(41, 3)
        assert log.durable == log.last == EntryId(41, 3)
        assert len(log.segments) > 3
        wanted, terms, chain_crc, end_pos = bodies(written), log.terms(), log.chain_crc, log.end_pos
        assert terms == [(1, 1), (2, 21), (3, 22)]
        assert bodies(await everything(log)) == wanted
        for verify_bytes in (None, 0, 1500):
            log, report = await reopened(log, disk, config(verify_bytes=verify_bytes))
            assert report.is_clean
            assert (log.terms(), log.chain_crc, log.end_pos, log.last) == (terms, chain_crc, end_pos, EntryId(41, 3))
            assert (log.durable, log.saved) == (EntryId(41, 3), HardState(3, NodeId("n0")))
            assert bodies(await everything(log)) == wanted
            assert report.units_rewritten == 0
        assert await findings(disk) == []
        await log.close()

    run(scenario)


def test_a_bounded_check_trusts_the_units_of_what_is_older(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 1)
        add(log, 60)
        await log.flush()
        log, report = await reopened(log, disk, config(verify_bytes=300))
        assert 0 < report.entries_checked < 10
        assert len(await everything(log)) == 60
        add(log, 3)
        await log.flush()
        log, report = await reopened(log, disk, config(verify_bytes=0))
        assert report.entries_checked <= 1
        assert log.last == EntryId(63, 1)
        await log.close()

    run(scenario)


def test_unflushed_entries_are_read_and_not_durable(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 1)
        entries = add(log, 30)
        assert bodies(await everything(log)) == bodies(entries)
        place = log.locate(7)
        assert place is not None
        assert await log.read_bytes(place.pos + ENTRY_HEADER_SIZE, 3) == entries[6].body_bytes()[:3]
        log, _ = await reopened(log, disk)
        assert log.last == EntryId(0, 0)
        await log.close()

    run(scenario)


def test_bytes_are_read_across_entries_from_memory_disk_and_both(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, config(segment_bytes=8192, cache_bytes=500))
        promise(log, 1)
        entries = add(log, 20)
        await log.flush()
        entries += add(log, 5)
        whole = b"".join(bytes(buffer) for entry in entries for buffer in entry.buffers)
        assert log.end_pos == len(whole)
        for start in range(0, len(whole), 97):
            for size in (0, 1, 50, 333, 1500):
                end = min(start + size, len(whole))
                assert await log.read_bytes(start, end - start) == whole[start:end]
        with pytest.raises(InvariantBrokenError):
            await log.read_bytes(len(whole) - 1, 2)
        await log.close()

    run(scenario)


def test_no_entry_spans_two_files_and_the_rest_is_filler(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 1)
        entries = add(log, 40)
        await log.flush()
        for entry in entries:
            segment_start = entry.pos // TINY.segment_bytes * TINY.segment_bytes
            assert entry.end_pos + 8 <= segment_start + TINY.segment_bytes
        for segment in log.segments[:-1]:
            file = await disk.open(f"commitlog/{segment.start_pos:020d}")
            data = await file.pread(0, 5000)
            await file.close()
            assert len(data) == TINY.segment_bytes
            last = max((entry for entry in entries if entry.pos < segment.start_pos + 1024), key=lambda entry: entry.pos)
            at = last.end_pos - segment.start_pos
            assert data[at : at + 8] == b"\xff\xff\xff\xff" + (1024 - at).to_bytes(4, "big")
            assert not any(data[at + 8 :])
        await log.close()

    run(scenario)


def test_an_entry_that_fits_exactly_and_one_that_does_not(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 1)
        largest = TINY.segment_bytes - 8
        assert log.place(largest) == 0
        with pytest.raises(MessageTooLargeError):
            log.place(largest + 1)
        log.append(log.encode(1, EntryKind.NORMAL, [bytes(largest - ENTRY_HEADER_SIZE)]))
        assert log.place(48) == 1024
        log.append(log.encode(1, EntryKind.NORMAL, [bytes(largest - ENTRY_HEADER_SIZE)]))
        assert log.place(48) == 2048
        log.append(log.encode(1, EntryKind.NO_OP, []))
        await log.flush()
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert log.last == EntryId(3, 1)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("follower_segment", [512, 1024, 4096])
def test_a_followers_files_are_the_leaders_bytes_whatever_its_segment_size(disk: Disk, follower_segment: int) -> None:
    async def scenario() -> None:
        from tests.unit.log.crash_disk import CrashDisk

        leader_disk = CrashDisk()
        leader, _ = await Log.open(leader_disk, TINY)
        follower, _ = await Log.open(disk, config(segment_bytes=follower_segment))
        promise(leader, 2)
        promise(follower, 2)
        for size in (7, 1, 12, 30):
            add(leader, size, 2)
            wire = b"".join(bytes(buffer) for entry in await everything(leader) for buffer in entry.buffers)
            for entry in parse_entries(wire)[follower.last.index :]:
                follower.append(entry)
            await follower.flush()
            await leader.flush()
        assert follower.chain_crc == leader.chain_crc
        assert [segment.start_pos for segment in follower.segments] == [segment.start_pos for segment in leader.segments]
        for segment in leader.segments:
            path = f"commitlog/{segment.start_pos:020d}"
            file = await disk.open(path)
            size = min(await file.size(), len(leader_disk.files[path].current))
            assert await file.pread(0, size) == bytes(leader_disk.files[path].current[:size])
            await file.close()
        await follower.close()
        follower, report = await Log.open(disk, config(segment_bytes=follower_segment))
        assert report.is_clean
        assert follower.last == leader.last
        await follower.close()

    run(scenario)


def test_cutting_takes_the_view_and_the_files_back(disk: Disk) -> None:
    async def scenario() -> None:
        for from_index in (1, 2, 9, 20, 39, 40):
            for flushed_before in (True, False):
                log, _ = await Log.open(disk, TINY)
                promise(log, 9)
                start = add(log, 25, 7)
                if flushed_before:
                    await log.flush()
                start += add(log, 15, 8)
                if flushed_before:
                    await log.flush()
                log.cut(from_index)
                assert log.last.index == from_index - 1
                kept = start[: from_index - 1]
                assert log.end_pos == (kept[-1].end_pos if kept else 0)
                assert bodies(await everything(log)) == bodies(kept)
                new = add(log, 12, 9)
                await log.flush()
                assert log.durable == EntryId(from_index + 11, 9)
                log, report = await reopened(log, disk)
                assert report.is_clean
                assert bodies(await everything(log)) == bodies(kept + new)
                assert await findings(disk) == []
                log.cut(1)
                await log.flush()
                log, report = await reopened(log, disk)
                assert report.is_clean
                assert log.last == EntryId(0, 0)
                await log.close()

    run(scenario)


def test_several_cuts_and_appends_queue_in_order(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 5)
        base = add(log, 20, 1)
        await log.flush()
        add(log, 10, 2)
        log.cut(15)
        add(log, 10, 3)
        log.cut(18)
        middle = log.last.index
        tail = add(log, 4, 4)
        log.cut(21)
        assert log.last == EntryId(20, 4)
        assert log.term_at(17) == 3
        wanted = [(index, 1) for index in range(1, 15)] + [(15, 3), (16, 3), (17, 3)] + [(entry.index, 4) for entry in tail[:3]]
        assert middle == 17
        await log.flush()
        assert [(entry.index, entry.term) for entry in await everything(log)] == wanted
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert [(entry.index, entry.term) for entry in await everything(log)] == wanted
        assert bodies(await everything(log))[:14] == bodies(base[:14])
        await log.close()

    run(scenario)


def test_entries_that_do_not_follow_are_refused(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 5)
        last = add(log, 3, 5)[-1]
        gap = encode_entry(4, 5, EntryKind.NORMAL, last.end_pos + 3, last.chain_crc, [b"x"])
        before = encode_entry(4, 5, EntryKind.NORMAL, last.end_pos - 50, last.chain_crc, [b"x"])
        chain = encode_entry(4, 5, EntryKind.NORMAL, last.end_pos, last.chain_crc ^ 1, [b"x"])
        for entry in (gap, before, chain):
            with pytest.raises(CorruptEntryError):
                log.append(entry)
        for index, term in ((5, 5), (3, 5), (4, 4)):
            with pytest.raises(InvariantBrokenError):
                log.append(encode_entry(index, term, EntryKind.NORMAL, last.end_pos, last.chain_crc, [b"x"]))
        assert log.last == EntryId(3, 5)
        await log.flush()
        await log.close()

    run(scenario)


def test_the_head_is_trimmed_by_whole_segments(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, TINY)
        promise(log, 3)
        add(log, 30, 1)
        wanted = bodies(add(log, 30, 3))
        assert await log.trim(60) == 1, "nothing is durable yet"
        await log.flush()
        assert await log.trim(1) == 1
        first = await log.trim(40)
        assert 31 < first <= 40
        assert log.before == EntryId(first - 1, 3)
        assert (log.first_index, log.terms(), log.term_at(first - 1), log.term_at(first - 2)) == (first, [(3, first)], 3, None)
        assert log.first_pos == log.segments[0].start_pos
        assert await log.read(first - 1, 100, 60) == []
        assert log.locate(first - 1) is None
        assert len(await disk.list("commitlog")) == len(log.segments) == len(await disk.list("index-units"))
        chain_crc = log.chain_crc
        for verify_bytes in (None, 100):
            log, report = await reopened(log, disk, config(verify_bytes=verify_bytes))
            assert report.is_clean
            assert (log.first_index, log.before, log.chain_crc) == (first, EntryId(first - 1, 3), chain_crc)
            assert bodies(await everything(log)) == wanted[first - 31 :]
        assert await log.trim(10_000) == log.segments[0].first_index > first
        log.cut(log.first_index)
        assert log.last == log.before
        add(log, 2, 3)
        await log.flush()
        last = log.last
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert log.last == last
        assert await findings(disk) == []
        await log.close()

    run(scenario)


def test_places_older_than_memory_come_from_the_units(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, config(places_limit=8, cache_bytes=100))
        promise(log, 1)
        entries = add(log, 50)
        await log.flush()
        assert log.locate(2) is None
        assert log.locate(50) is not None
        for entry in entries:
            place = await log.find(entry.index)
            assert (place.pos, place.size, place.term, place.kind) == (entry.pos, entry.size_bytes, 1, EntryKind.NORMAL)
            assert await log.read_bytes(entry.pos, entry.size_bytes) == b"".join(bytes(buffer) for buffer in entry.buffers)
        for max_bytes in (0, 1, 200, 10_000):
            assert bodies(await everything(log, max_bytes)) == bodies(entries)
        log, _ = await reopened(log, disk, config(places_limit=8, verify_bytes=0))
        assert bodies(await everything(log)) == bodies(entries)
        await log.close()

    run(scenario)


def test_reads_stay_within_the_asked_bytes_and_index(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, config(segment_bytes=1 << 16, cache_bytes=1000))
        promise(log, 1)
        entries = add(log, 60)
        await log.flush()
        for first in (1, 5, 40, 55, 60):
            for max_bytes in (0, 300, 2000):
                for upto in (first, first + 3, 60):
                    piece = await log.read(first, max_bytes, upto)
                    assert piece[0].index == first
                    assert piece[-1].index <= min(upto, 60)
                    assert len(piece) == 1 or sum(entry.size_bytes for entry in piece) <= max_bytes
                    assert bodies(piece) == bodies(entries[first - 1 : first - 1 + len(piece)])
        assert await log.read(61, 100, 70) == []
        assert await log.read(0, 100, 70) == []
        await log.close()

    run(scenario)


def test_files_are_prepared_ahead_in_the_background(disk: Disk) -> None:
    async def scenario() -> None:
        settings = config(fill_window_bytes=2000, fill_step_bytes=300)
        log, _ = await Log.open(disk, settings)
        promise(log, 1)
        add(log, 2)
        await log.flush()
        for _ in range(500):
            await asyncio.sleep(0.001)
            if len(await disk.list("commitlog")) == 2:
                break
        assert await disk.list("commitlog") == ["00000000000000000000", "00000000000000001024"]
        entries = await everything(log)
        for _ in range(10):
            entries += add(log, 5)
            await log.flush()
        log, report = await reopened(log, disk, settings)
        assert report.is_clean
        assert bodies(await everything(log)) == bodies(entries)
        assert await findings(disk) == []
        await log.close()

    run(scenario)
