"""Frames that are sent out of the log's files: the same as those that are read, and checked like them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dledger.runtime.real_disk import RealDisk
from dledger_wire.errors import OffsetOutOfRangeError
from store.queues.fetch_filter import FetchFilter
from store.queues.read import Chunk, Given
from tests.unit.store.store_rig import LOG, TINY, StoreRig, batch_of, run

KEY = ("t", 1)
BODIES = [b"%04d" % number + b"x" * (number % 90) for number in range(300)]


async def filled(disk: RealDisk, stored_bytes: int = 1) -> StoreRig:
    """A store whose log has little in memory, after a start: batches of ten messages each."""
    settings = dataclasses.replace(TINY, chunk_bytes=1000, stored_bytes=stored_bytes, stored_run_bytes=200)
    rig = await StoreRig.open(disk, settings)
    await rig.topic("t")
    for first in range(0, len(BODIES), 10):
        await rig.send(batch_of(*KEY, BODIES[first : first + 10]))
        await rig.send(batch_of("t", 0, [b"another queue"]))
    await rig.close()
    return await StoreRig.open(disk, settings, log=dataclasses.replace(LOG, cache_bytes=0))


async def frames_of(chunk: Chunk) -> bytes:
    if chunk.stored is None:
        return b"".join(chunk.frames)
    assert not chunk.frames
    async with chunk.stored.opened() as opened:
        return await opened.read(0)


@pytest.mark.parametrize("max_bytes", [1, 700, 5000, 1 << 20])
def test_the_same_messages_as_read(tmp_path: Path, max_bytes: int) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        rig = await filled(disk)
        offset = count = sent = 0
        whole = b""
        while offset < len(BODIES):
            chunk = await rig.store.read(*KEY, offset, max_bytes=max_bytes, given=Given.STORED)
            frames = await frames_of(chunk)
            assert len(frames) == chunk.frames_bytes
            whole, count, sent = whole + frames, count + chunk.count, sent + (chunk.stored is not None)
            assert chunk.first_offset == offset
            offset = chunk.next_offset
        assert count == len(BODIES)
        assert whole == await read_frames(rig, 0, len(BODIES))
        assert (sent > 0) == (max_bytes > 200)
        await rig.close()
        disk.close()

    run(scenario)


async def read_frames(rig: StoreRig, offset: int, count: int) -> bytes:
    frames, end = b"", offset + count
    while offset < end:
        chunk = await rig.store.read(*KEY, offset, max_messages=end - offset, max_bytes=1 << 20)
        frames, offset = frames + b"".join(chunk.frames), chunk.next_offset
    return frames


def test_a_damaged_queue_file_is_found_and_rebuilt(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        rig = await filled(disk)
        queue = rig.store.queues.get(KEY)
        assert queue is not None
        first = (await queue.read(0, 1))[0]
        file = await disk.open(queue.files.path(0))
        await file.pwrite(0, [(int(first["pos"]) + 1).to_bytes(8, "big")], sync=True)
        await file.close()
        chunk = await rig.store.read(*KEY, 0, max_bytes=5000, given=Given.STORED)
        assert chunk.first_pos == int(first["pos"])
        assert await frames_of(chunk) == await read_frames(rig, 0, chunk.count)
        await rig.close()
        disk.close()

    run(scenario)


def test_scattered_messages_are_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        rig = await filled(disk)
        assert (await rig.store.read("t", 0, 0, max_bytes=5000, given=Given.STORED)).stored is None, "one message each"
        assert (await rig.store.read(*KEY, 0, max_bytes=5000, given=Given.BYTES)).stored is None
        wanted = FetchFilter(None, None)
        assert (await rig.store.read(*KEY, 0, max_bytes=5000, fetch_filter=wanted, given=Given.STORED)).stored is not None
        await rig.close()
        disk.close()

    run(scenario)


def test_few_messages_are_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        rig = await filled(disk, stored_bytes=5001)
        few = await rig.store.read(*KEY, 0, max_bytes=5000, given=Given.STORED)
        assert few.stored is None
        assert await frames_of(few) == await read_frames(rig, 0, few.count)
        await rig.close()
        disk.close()

    run(scenario)


def test_a_deleted_head_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("commitlog",))
        rig = await filled(disk)
        chunk = await rig.store.read(*KEY, 0, max_bytes=5000, given=Given.STORED)
        assert chunk.stored is not None
        await rig.log.trim(rig.log.last.index)
        with pytest.raises(OffsetOutOfRangeError):
            await frames_of(chunk)
        await rig.close()
        disk.close()

    run(scenario)
