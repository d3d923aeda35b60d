"""What is on disk besides the log: when queue files are written, the checkpoint, and the file that tells a crash."""

from __future__ import annotations

import struct
from dataclasses import replace

from store.checkpoint import CHECKPOINT_PATH, Checkpoint, read_checkpoint
from store.persistence import ABORT_PATH
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import TINY, StepClock, StoreRig, batch_of, run

LARGE_FILES = replace(TINY, mappedFileSizeConsumeQueue=1000 * 20)


def test_queues_with_less_than_the_least_pages_wait_for_the_thorough_flush() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, LARGE_FILES)
        await rig.topic("t", 2)
        least = rig.store.settings.least_units
        assert least == 2 * 4096 // 20
        for _ in range(-(-least // 30)):
            await rig.send(batch_of("t", 0, [b""] * 30))
        await rig.send(batch_of("t", 1, [b""] * 30))
        await rig.store.queues.flush(sync=False, least_units=least)
        written = {path: len(content.current) for path, content in disk.files.items() if path.startswith("consumequeue/")}
        assert list(written) == ["consumequeue/t/0/00000000000000000000"]
        assert rig.store.queues.unwritten == 30
        await rig.store.queues.flush(sync=False)
        assert len(disk.files["consumequeue/t/1/00000000000000000000"].current) == 600
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
        assert await rig.save()
        frame = (await rig.read_all(("t", 0)))[-1]
        found = await read_checkpoint(disk)
        end_pos = rig.log.end_pos
        assert found == Checkpoint(frame.store_timestamp, frame.store_timestamp, frame.store_timestamp, end_pos, end_pos)
        assert found.recovery_ms == frame.store_timestamp - 3000
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
