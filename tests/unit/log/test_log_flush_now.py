"""Flushing within the call: when it is done, what it leaves to ``flush``, a full disk, a failed sync."""

from __future__ import annotations

import asyncio

import pytest

from dledger.core.types import EntryId
from dledger.log.log import Log
from dledger.runtime.env import WRITE_NOW_BYTES
from dledger_wire.errors import StorageFailedError, StorageFullError
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import add, config, everything, promise, reopened, run

LAZY = config(segment_bytes=1 << 20, cache_bytes=1 << 20, units_sync_delay_ms=100_000)


async def opened(disk: CrashDisk) -> Log:
    """A log with a first entry, written by ``flush``."""
    log, _ = await Log.open(disk, LAZY)
    promise(log, 1)
    add(log, 1)
    await log.flush()
    return log


def test_a_few_entries_are_durable_when_it_returns_with_one_write_one_sync_and_their_units() -> None:
    async def scenario() -> None:
        disk = CrashDisk(writes_now=True)
        log = await opened(disk)
        disk.log.clear()
        add(log, 3)
        done = log.flush_now()
        assert done is not None
        assert done.complete
        assert done.last == log.durable == log.last == EntryId(4, 1)
        assert [what for what, _path in disk.log] == ["write_now", "sync", "write_now"]
        killed, report = await Log.open(disk.after_kill(), LAZY)
        assert report.units_rewritten == 0
        assert killed.last == EntryId(4, 1)
        await log.close()

    run(scenario)


@pytest.mark.parametrize("what", ["nothing", "promise", "cut", "much", "another segment", "slow disk", "unsynced", "more units"])
def test_what_takes_more_than_that_is_left_to_flush(what: str) -> None:
    async def scenario() -> None:
        disk = CrashDisk(writes_now=True)
        log = await opened(disk)
        if what == "nothing":
            assert log.flush_now() is None
            return
        add(log, 4)
        match what:
            case "promise":
                promise(log, 2)
            case "cut":
                await log.flush()
                log.cut(4)
                add(log, 1)
            case "much":
                while log.unwritten_bytes <= WRITE_NOW_BYTES:
                    add(log, 1)
            case "another segment":
                while log.segments[-1].first_index == 1:
                    await log.flush()
                    add(log, 40)
            case "slow disk":
                disk.writes_now = False
            case "unsynced":
                await log.flush(sync=False)
                add(log, 1)
            case _:
                add(log, 600)
                await log.flush(max_bytes=log.unwritten_bytes - 10_000)
                log._writer._units_size = 0
        before = list(disk.log)
        assert log.flush_now() is None
        assert disk.log == before
        done = await log.flush()
        assert done.last == log.last == log.durable
        again, report = await reopened(log, disk, LAZY)
        assert report.is_clean
        assert len(await everything(again)) == log.last.index
        await again.close()

    run(scenario)


def test_it_waits_for_no_flush_that_is_under_way() -> None:
    async def scenario() -> None:
        disk = CrashDisk(writes_now=True)
        log = await opened(disk)
        add(log, 1)
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        add(log, 1)
        assert log.flush_now() is None
        assert (await flushing).last.index == 2
        done = log.flush_now()
        assert done is not None
        assert done.last.index == 3
        await log.close()

    run(scenario)


@pytest.mark.parametrize("room", [0, 30])
def test_on_a_full_disk_everything_stays_queued(room: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk(writes_now=True)
        log = await opened(disk)
        disk.room_bytes = disk.used_bytes() + room
        add(log, 3)
        with pytest.raises(StorageFullError):
            log.flush_now()
        assert log.durable.index == 1
        assert log.flush_now() is None  # part of it may be there: the tail has to be cut first
        with pytest.raises(StorageFullError):
            await log.flush()
        disk.room_bytes = None
        await log.flush()
        assert log.durable == log.last
        again, report = await reopened(log, disk, LAZY)
        assert report.is_clean
        assert again.last == log.last
        await again.close()

    run(scenario)


@pytest.mark.parametrize("step", ["commitlog", "index-units"])
def test_a_failed_write_or_sync_ends_the_log(step: str) -> None:
    async def scenario() -> None:
        disk = CrashDisk(writes_now=True)
        log = await opened(disk)
        add(log, 1)
        if step == "commitlog":
            disk.fail_sync_of = step
        else:
            disk.fail_write_of = step
        with pytest.raises(StorageFailedError):
            log.flush_now()
        assert log.failure is not None
        with pytest.raises(StorageFailedError):
            log.flush_now()
        assert log.durable.index == 1

    run(scenario)
