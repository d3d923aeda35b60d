"""Flushing: order on disk, cuts and appends that come while a flush is in flight, a full disk, a failed sync."""

from __future__ import annotations

import asyncio

import pytest

from dledger.core.types import EntryId, HardState, NodeId
from dledger.log.cache import OVERHEAD_BYTES
from dledger.log.log import Log
from dledger.log.segment import units_path
from dledger_wire.errors import StorageFailedError, StorageFullError
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import TINY, add, bodies, config, everything, promise, reopened, run


async def opened(disk: CrashDisk) -> Log:
    log, report = await Log.open(disk, TINY)
    assert report.is_clean
    return log


def test_one_flush_is_one_write_and_one_sync_of_the_log_and_units_that_wait_for_theirs() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(segment_bytes=1 << 20, units_sync_delay_ms=1000))
        promise(log, 1)
        await log.flush()
        add(log, 100)
        disk.log.clear()
        await log.flush()
        assert [what for what, path in disk.log if path.startswith("commitlog")] == ["pwrite", "sync"]
        assert [what for what, path in disk.log if path.startswith("index-units") and what != "open"] == ["pwrite"]
        await log.close()
        assert [what for what, path in disk.log if path.startswith("index-units")].count("sync") == 1

    run(scenario)


@pytest.mark.parametrize("later", [0, 1, 40])
def test_after_a_kill_no_entry_that_was_reported_durable_is_taken_for_torn(later: int) -> None:
    """A bad sector in what was acknowledged last: the units say so at once, not when they are synced."""

    async def scenario() -> None:
        disk = CrashDisk()
        settings = config(segment_bytes=1 << 20, units_sync_delay_ms=100_000)
        log, _ = await Log.open(disk, settings)
        promise(log, 1)
        add(log, 3)
        await log.flush(sync=False)
        add(log, 2)
        done = await log.flush()
        bad = log.locate(done.last.index)
        assert bad is not None
        for _ in range(later):
            add(log, 1)
            await log.flush()
        killed = disk.after_kill()
        killed.files["commitlog/00000000000000000000"].current[bad.pos + 50] ^= 1
        _, report = await Log.open(killed, settings)
        assert report.torn is None
        assert [finding.index for finding in report.damaged] == [5]

    run(scenario)


def test_a_disk_without_room_for_units_takes_no_entries() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(segment_bytes=1 << 20, units_sync_delay_ms=5))
        promise(log, 1)
        add(log, 3)
        await log.flush()
        disk.full_paths = ("index-units",)
        add(log, 2000)
        with pytest.raises(StorageFullError):
            await log.flush()
        assert log.durable.index == 3
        disk.full_paths = ()
        assert (await log.flush()).last.index == 2003
        assert len(disk.files[units_path(0)].current) >= 2003 * 32
        await log.close()

    run(scenario)


def test_the_promise_is_durable_before_an_entry_of_its_term_is_written() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        add(log, 3, 1)
        promise(log, 1)
        disk.log.clear()
        done = await log.flush()
        assert disk.log[0] == ("pwrite", "hardstate")
        assert disk.log[1] == ("sync", "hardstate")
        assert done.last == EntryId(3, 1)
        assert log.saved == HardState(1, NodeId("n0"))
        await log.close()

    run(scenario)


def test_a_promise_is_kept_beside_a_flush_and_a_later_flush_waits_for_it() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        add(log, 3, 1)
        await log.flush()
        add(log, 3, 1)
        disk.hangs = "commitlog"
        flush = asyncio.ensure_future(log.flush())
        await disk.reached.wait()
        promise(log, 2)
        assert await log.keep_promise() == log.saved == HardState(2, NodeId("n0"))
        assert not flush.done()
        assert not log.owes_promise
        promise(log, 3)
        add(log, 1, 3)
        later = asyncio.ensure_future(log.flush())
        disk.log.clear()
        disk.released.set()
        assert ((await flush).last, (await later).last) == (EntryId(6, 1), EntryId(7, 3))
        synced = [path.partition("/")[0] for what, path in disk.log if what == "sync" and not path.startswith("index-units")]
        assert synced == ["commitlog", "hardstate", "commitlog"]
        await log.close()

    run(scenario)


def test_while_a_promise_is_owed_nothing_is_written_at_once() -> None:
    async def scenario() -> None:
        log = await opened(CrashDisk(writes_now=True))
        promise(log, 1)
        add(log, 1, 1)
        assert log.flush_now() is None
        assert (await log.flush()).last == EntryId(1, 1)
        add(log, 1, 1)
        promise(log, 2)
        assert log.flush_now() is None
        await log.close()

    run(scenario)


def test_what_comes_while_a_flush_is_in_flight_is_not_in_it() -> None:
    async def scenario() -> None:
        log = await opened(CrashDisk())
        promise(log, 1)
        await log.keep_promise()
        add(log, 3)
        flush = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        add(log, 3)
        assert (await flush).last == EntryId(3, 1)
        assert log.durable == EntryId(3, 1)
        assert (await log.flush()).last == EntryId(6, 1)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_cut_while_a_flush_is_in_flight_lowers_what_is_durable(steps: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 2)
        add(log, 4, 1)
        await log.flush()
        add(log, 16, 1)
        flush = asyncio.ensure_future(log.flush())
        for _ in range(steps):
            await asyncio.sleep(0)
        log.cut(3)
        assert log.durable.index <= 2
        new = add(log, 10, 2)
        assert (await flush).last == EntryId(2, 1), "entries 3 and later mean others now"
        assert log.durable == EntryId(2, 1)
        assert (await log.flush()).last == EntryId(12, 2)
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert bodies(await everything(log))[2:] == bodies(new)
        await log.close()

    run(scenario)


def test_without_sync_entries_are_written_but_not_durable() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        entries = add(log, 5)
        done = await log.flush(sync=False)
        assert done.last == EntryId(5, 1)
        assert log.durable == EntryId(0, 0)
        assert not any(disk.files["index-units/00000000000000000000"].current), "no unit before the sync"
        entries += add(log, 30)
        await log.flush(sync=False)
        assert log.durable.index < 35
        assert (await log.flush(sync=True)).last == log.durable == EntryId(35, 1)
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert report.units_rewritten == 0
        assert bodies(await everything(log)) == bodies(entries)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("room", range(0, 6000, 331))
def test_a_full_disk_loses_nothing_and_is_written_again(room: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        entries = add(log, 5)
        await log.flush()
        disk.room_bytes = disk.used_bytes() + room
        full = False
        for _ in range(8):
            entries += add(log, 6)
            try:
                await log.flush()
            except StorageFullError:
                full = True
                assert log.durable.index < log.last.index
                assert log.failure is None
        assert full
        assert bodies(await everything(log)) == bodies(entries)
        with pytest.raises(StorageFullError):
            await log.flush()
        # Another process would find what was durable, and a torn tail at most.
        other, report = await Log.open(disk.after_kill(), TINY)
        assert not report.damaged
        assert other.last.index >= log.durable.index
        disk.room_bytes = None
        assert (await log.flush()).last == log.last == EntryId(53, 1)
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert bodies(await everything(log)) == bodies(entries)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("from_index", [3, 5, 6, 7, 30])
@pytest.mark.parametrize("room", [0, 100, 500, 1100, 2000])
def test_a_cut_while_the_disk_is_full(from_index: int, room: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 2)
        entries = add(log, 5, 1)
        await log.flush()
        disk.room_bytes = disk.used_bytes() + room
        entries += add(log, 30, 1)
        with pytest.raises(StorageFullError):
            await log.flush()
        log.cut(from_index)
        entries = entries[: from_index - 1] + add(log, 4, 2)
        disk.room_bytes = None
        assert (await log.flush()).last == log.last
        log, report = await reopened(log, disk)
        assert report.is_clean
        assert bodies(await everything(log)) == bodies(entries)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("path", ["commitlog", "hardstate", "index-units"])
def test_a_failed_sync_ends_the_log(path: str) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        add(log, 5)
        await log.flush()
        add(log, 2)
        promise(log, 2)
        disk.fail_sync_of = path
        with pytest.raises(StorageFailedError, match="input/output error"):
            await log.flush()
        disk.fail_sync_of = None
        assert log.durable == EntryId(5, 1)
        assert log.failure is not None
        for refused in (lambda: add(log, 1), lambda: log.cut(2), lambda: promise(log, 3)):
            with pytest.raises(StorageFailedError):
                refused()
        with pytest.raises(StorageFailedError):
            await log.flush()
        assert len(await everything(log)) == 7, "reading goes on"
        await log.close()

    run(scenario)


def test_a_failed_background_sync_ends_the_log() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(units_sync_delay_ms=1))
        promise(log, 1)
        add(log, 5)
        disk.fail_sync_of = "index-units"
        await log.flush()
        for _ in range(1000):
            await asyncio.sleep(0.001)
            if log.failure is not None:
                break
        with pytest.raises(StorageFailedError):
            await log.flush()
        await log.close()

    run(scenario)


def test_a_cancelled_flush_ends_the_log_since_nobody_knows_how_far_it_came() -> None:
    async def scenario() -> None:
        log = await opened(CrashDisk())
        promise(log, 1)
        add(log, 5)
        flush = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        with pytest.raises(StorageFailedError):
            add(log, 1)
        await log.close()

    run(scenario)


def test_memory_stays_bounded_and_keeps_what_is_not_written() -> None:
    async def scenario() -> None:
        log, _ = await Log.open(CrashDisk(), config(cache_bytes=1000, places_limit=16, segment_bytes=1 << 16))
        promise(log, 1)
        for _ in range(20):
            entries = add(log, 10)
            assert sum(entry.size_bytes for entry in entries) > 1000
            assert bodies(await log.read(entries[0].index, 1 << 20, log.last.index)) == bodies(entries)
            await log.flush()
            assert log._cache.size_bytes <= 1000
            assert log._places.next_index - log._places.first_index <= 20
        await log.close()

    run(scenario)


def test_memory_stays_bounded_when_nobody_asks_for_a_sync() -> None:
    """What is not synced cannot leave the cache: a flush syncs by itself once there is much of it."""

    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(cache_bytes=1000, unsynced_bytes=5000, segment_bytes=1 << 20))
        promise(log, 1)
        await log.flush()
        largest = durable = 0
        for _ in range(200):
            entries = add(log, 10)
            done = await log.flush(sync=False)
            assert done.last.index == entries[-1].index == log.last.index
            largest = max(largest, log._cache.size_bytes)
            assert log.durable.index >= durable
            durable = log.durable.index
        size = sum(entry.size_bytes for entry in entries)
        per_entry = entries[0].size_bytes + OVERHEAD_BYTES
        assert largest <= 1000 + (5000 + 2 * size) // entries[0].size_bytes * per_entry
        assert log.last.index - durable <= (5000 + size) // entries[0].size_bytes
        syncs = sum(what == "sync" and path.startswith("commitlog") for what, path in disk.log)
        assert syncs < 200 * size // 5000 + 5, "no more than needed"
        await log.close()

    run(scenario)


def test_a_bounded_flush_writes_part_and_says_so() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(segment_bytes=1 << 20))
        promise(log, 1)
        add(log, 10)
        one = log.locate(1)
        assert one is not None
        done = await log.flush(max_bytes=3 * one.size)
        assert (done.last.index, done.complete) == (3, False)
        assert log.saved.term == 1
        assert log.unwritten_bytes == log.end_pos - log.locate(3).end_pos  # type: ignore[union-attr]
        log.cut(6)
        add(log, 1, 1)
        done = await log.flush(max_bytes=1 << 20)
        assert (done.last.index, done.complete) == (6, True)
        assert log.unwritten_bytes == 0
        await log.close()

    run(scenario)


def test_whoever_needs_the_log_durable_gets_it_so_beside_other_flushes() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        add(log, 3)
        await log.flush(sync=False)
        disk.log.clear()
        assert await log.make_durable(0)
        assert not disk.log, "nothing to do"
        assert all(await asyncio.gather(log.make_durable(2), log.make_durable(3)))
        assert [what for what, path in disk.log if path.startswith("commitlog")] == ["sync"]
        add(log, 5)
        _, done, other = await asyncio.gather(log.make_durable(6), log.flush(sync=False), log.make_durable(8))
        assert other
        assert log.durable.index == done.last.index == 8
        assert not await log.make_durable(9), "no such entry"
        await log.close()
        assert await log.make_durable(8)
        assert not await log.make_durable(9)

    run(scenario)


def test_a_full_disk_makes_nothing_durable_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        add(log, 3)
        disk.full_paths = ("commitlog",)
        assert not await log.make_durable(3)
        disk.full_paths = ()
        assert await log.make_durable(3)
        assert len(await everything(log)) == 3
        await log.close()

    run(scenario)


@pytest.mark.parametrize("steps", range(1, 6))
def test_who_asked_may_be_cancelled_and_the_log_may_close_meanwhile(steps: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        promise(log, 1)
        add(log, 3)
        asking = asyncio.ensure_future(log.make_durable(3))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        assert await log.make_durable(3)
        add(log, 3)
        asking = asyncio.ensure_future(log.make_durable(6))
        for _ in range(steps):
            await asyncio.sleep(0)
        other = asyncio.ensure_future(log.flush(sync=False)) if steps % 2 else asking
        await log.close()
        await asyncio.wait([asking, other])
        assert log.failure is None
        _, report = await Log.open(disk, TINY)
        assert report.is_clean

    run(scenario)


def test_a_sync_that_fails_on_somebodys_behalf_is_told_to_the_node() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await opened(disk)
        told: list[object] = []
        log.background_failed = told.append
        promise(log, 1)
        add(log, 3)
        disk.fail_sync_of = "commitlog"
        assert not await log.make_durable(3)
        await asyncio.sleep(0)
        assert [type(failure) for failure in told] == [StorageFailedError]
        assert not await log.make_durable(3)
        await log.close()

    run(scenario)
