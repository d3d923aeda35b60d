"""Ranges of the log as they lie in its files: only what is there and nowhere else, kept open while it is sent, read when it cannot be."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from dledger.log.log import Log
from dledger.log.segment import log_path
from dledger.runtime.env import Disk
from dledger.runtime.real_disk import RealDisk
from dledger_wire.errors import OffsetOutOfRangeError, StorageDamagedError
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import add, config, promise, run


async def filled(disk: Disk, count: int = 60) -> tuple[Log, list[tuple[int, int]], bytes]:
    """A log of several files, its entries' places but for those in memory, and their bytes."""
    log, _ = await Log.open(disk, config(cache_bytes=0))
    promise(log, 1)
    entries = add(log, count)
    await log.flush()
    entries = entries[:-1]
    assert len(log.segments) > 3
    return log, [(entry.pos, entry.size_bytes) for entry in entries], b"".join(bytes(b) for e in entries for b in e.buffers)


def test_what_memory_has_is_not_taken_from_the_files(disk: Disk) -> None:
    async def scenario() -> None:
        log, _ = await Log.open(disk, config(cache_bytes=1 << 20))
        promise(log, 1)
        places = [(entry.pos, entry.size_bytes) for entry in add(log, 10)]
        assert log.stored(places[:1]) is None, "not written yet"
        await log.flush()
        assert log.stored(places[:1]) is None, "memory is faster"
        await log.close()
        log, _ = await Log.open(disk, config(cache_bytes=1 << 20))
        promise(log, 2)
        stored = log.stored(places)
        assert stored is not None
        assert stored.size == sum(size for _, size in places)
        await log.close()

    run(scenario)


def test_ranges_of_several_files_are_read_from_anywhere(disk: Disk) -> None:
    async def scenario() -> None:
        log, places, whole = await filled(disk)
        stored = log.stored(places)
        assert stored is not None
        async with stored.opened() as opened:
            for done in (0, 1, len(whole) // 2, len(whole) - 1):
                assert await opened.read(done) == whole[done:]
        assert await log.read_each([(pos, 5) for pos, _ in places]) == [await log.read_bytes(pos, 5) for pos, _ in places]
        await log.close()

    run(scenario)


def test_what_is_being_sent_outlives_its_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        log, places, whole = await filled(disk)
        stored, late = log.stored(places), log.stored(places)
        assert stored is not None
        assert late is not None
        source, target = socket.socketpair()
        with source, target:
            source.setblocking(False)
            target.setblocking(False)
            async with stored.opened() as opened:
                await log.trim(log.last.index)
                assert log.first_pos > places[0][0]
                done, received = 0, b""
                while done < len(whole):
                    done += await opened.send(source, done)
                    received += target.recv(1 << 20)
            assert received == whole
        with pytest.raises(OffsetOutOfRangeError):
            async with late.opened():
                pass
        with pytest.raises(OffsetOutOfRangeError):
            await log.read_each(places)
        await log.close()
        disk.close()

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_is_not_sent_from_again() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, places, whole = await filled(disk)
        stored = log.stored(places)
        assert stored is not None
        async with stored.opened() as opened:
            with pytest.raises(OSError, match="no sockets") as refused:
                await opened.send(socket.socket(), 0)
            assert refused.value.errno == errno.EOPNOTSUPP
            assert await opened.read(0) == whole, "what cannot be sent is read"
            assert log.stored(places) is not None
            disk.fail_read_of = log_path(log.segments[1].start_pos)
            with pytest.raises(StorageDamagedError) as damage:
                await opened.read(0)
            assert damage.value.details["file"].endswith(disk.fail_read_of)
        assert log.stored(places) is None
        assert log.stored(places[:2]) is not None, "another file"
        disk.fail_read_of = None
        await log.close()

    run(scenario)


def test_small_reads_say_what_is_damaged() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, places, _ = await filled(disk)
        disk.fail_read_of = log_path(log.segments[1].start_pos)
        with pytest.raises(StorageDamagedError):
            await log.read_each([(pos, 3) for pos, _ in places])
        disk.fail_read_of = None
        await log.close()

    run(scenario)
