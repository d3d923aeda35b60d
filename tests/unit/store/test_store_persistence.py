"""What is on disk besides the log: when queue files are written, the checkpoint, and the file that tells a crash."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from dledger.log.verify import verify_log
from dledger_wire.errors import DataDirectoryError
from store.durability.checkpoint import CHECKPOINT_PATH
from store.durability.persistence import ABORT_PATH
from store.offline.verify import verify_store
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import LOG, TINY, StepClock, StoreRig, batch_of, run

LARGE_FILES = replace(TINY, mappedFileSizeConsumeQueue=1000 * 20)


def test_queues_with_less_than_the_least_pages_wait_for_the_thorough_flush() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, LARGE_FILES)
        await rig.topic("t", 2)
        least = rig.store.settings.min_flush_units
        assert least == 2 * 4096 // 20
        for _ in range(-(-least // 30)):
            await rig.send(batch_of("t", 0, [b""] * 30))
        await rig.send(batch_of("t", 1, [b""] * 30))
        await rig.store.queues.flush(sync=False, min_flush_units=least)
        written = {path: len(content.current) for path, content in disk.files.items() if path.startswith("consumequeue/")}
        assert list(written) == ["consumequeue/t/0/00000000000000000000"]
        assert rig.store.queues.unwritten == 30
        await rig.store.queues.flush(sync=False)
        content = disk.files["consumequeue/t/1/00000000000000000000"].current
        assert len(content) == LARGE_FILES.mappedFileSizeConsumeQueue
        assert all(content[at + 11] for at in range(0, 600, 20))
        assert not any(content[600:])
        assert rig.store.queues.unwritten == 0
        await rig.close()

    run(scenario)


def test_the_checkpoint_has_the_three_times_and_both_positions() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock()
        rig = await StoreRig.open(disk, clock=clock)
        await rig.topic("t", 1)
        await rig.send(batch_of("t", 0, [b"one"]))
        await rig.send(batch_of("t", 0, [b"two"]))
        assert await rig.save_index()
        assert await rig.save()
        frame = (await rig.read_all(("t", 0)))[-1]
        end_pos = rig.log.end_pos
        data = bytes(disk.files[CHECKPOINT_PATH].current)
        assert data == struct.pack(">5q", *(frame.store_timestamp,) * 3, end_pos, end_pos) + bytes(4096 - 40)
        await rig.close()

    run(scenario)


def test_a_torn_or_missing_checkpoint_harms_nothing() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic("t", 1)
        await rig.send(batch_of("t", 0, [b"one"]))
        await rig.close()
        contents = {path: bytes(content.current) for path, content in disk.files.items()}
        for spoilt in (b"", contents[CHECKPOINT_PATH][:17], b"\xff" * 4096):
            again = await StoreRig.open(CrashDisk(contents | {CHECKPOINT_PATH: spoilt}))
            assert [frame.body for frame in await again.read_all(("t", 0))] == [b"one"]
            assert again.store.recovery.clean
            await again.close()

    run(scenario)


def test_the_abort_file_stands_while_the_store_runs() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        assert ABORT_PATH in disk.files
        killed = disk.after_kill()
        await rig.close()
        assert ABORT_PATH not in disk.files
        again = await StoreRig.open(disk.after_kill())
        assert again.store.recovery.clean
        await again.close()
        crashed = await StoreRig.open(killed)
        assert not crashed.store.recovery.clean
        assert "after a crash" in str(crashed.store.recovery)
        await crashed.close()
        assert ABORT_PATH not in killed.files

    run(scenario)


def test_newest_queue_files_that_end_with_their_units_are_opened_and_get_their_full_size() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, LARGE_FILES)
        await rig.topic("t", 1)
        await rig.send(batch_of("t", 0, [b"before"] * 30))
        await rig.save()
        await rig.close()
        path = "consumequeue/t/0/00000000000000000000"
        full = bytes(disk.files[path].current)
        disk.files.update(CrashDisk({path: full[:600]}).files)
        assert [finding async for finding in verify_store(disk)] == []
        rig = await StoreRig.open(disk, LARGE_FILES)
        assert rig.store.recovery.rebuilt_files == []
        assert bytes(disk.files[path].current) == full
        await rig.send(batch_of("t", 0, [b"behind"] * 5))
        assert [frame.body for frame in await rig.read_all(("t", 0))] == [b"before"] * 30 + [b"behind"] * 5
        await rig.close()

    run(scenario)


def test_queue_files_of_another_size_are_refused_by_name_and_left_alone() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic("t", 1)
        for _ in range(4):
            await rig.send(batch_of("t", 0, [b"x"] * 6))
        await rig.close()
        before = {path: bytes(content.current) for path, content in disk.files.items() if path.startswith("consumequeue/")}
        with pytest.raises(DataDirectoryError) as caught:
            await StoreRig.open(disk, replace(TINY, mappedFileSizeConsumeQueue=20 * 20))
        assert caught.value.message == "/crash/consumequeue has files of 140 bytes, mappedFileSizeConsumeQueue is 400: set it to 140"
        assert before == {path: bytes(content.current) for path, content in disk.files.items() if path.startswith("consumequeue/")}
        again = await StoreRig.open(disk)
        assert len(await again.read_all(("t", 0))) == 24
        await again.close()

    run(scenario)


@pytest.mark.parametrize("segment_bytes", [2048, 16384])
def test_another_size_of_log_files_counts_from_the_next_file_on(segment_bytes: int) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic("t", 1)
        for number in range(60):
            await rig.send(batch_of("t", 0, [b"%d" % number] * 3))
        await rig.close()
        for log in (replace(LOG, segment_bytes=segment_bytes), LOG):
            rig = await StoreRig.open(disk, log=log)
            for number in range(60):
                await rig.send(batch_of("t", 0, [b"%d" % number] * 3))
            await rig.close()
        rig = await StoreRig.open(disk)
        assert [frame.body for frame in await rig.read_all(("t", 0))] == [b"%d" % (number // 3) for number in range(180)] * 3
        await rig.close()
        assert [finding async for finding in verify_log(disk, on_progress=lambda _bytes: None)] == []

    run(scenario)
