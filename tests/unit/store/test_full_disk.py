"""A disk without any room left is cleaned all the same, and what a failed snapshot leaves behind spoils none that is whole."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.log.config import LogConfig
from dledger.runtime.real_disk import RealDisk
from dledger_wire.errors import StorageFullError
from store.commands.topics import CreateTopic
from store.durability.disk_reserve import PATH as RESERVE
from store.offline.verify import verify_store
from tests import needs
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import LOG, TINY, StepClock, StoreRig, batch_of, run

KEEPS_ROOM = replace(TINY, reserve_bytes=8192)
NO_RESERVE = replace(TINY, reserve_bytes=0)
PREPARES = replace(LOG, fill_window_bytes=8192, fill_step_bytes=1024)


async def filled(disk: CrashDisk, rig: StoreRig, count: int = 200) -> None:
    await rig.topic()
    for number in range(0, count, 4):
        await rig.send(batch_of("t", 0, [b"%d " % n + b"x" * 60 for n in range(number, number + 4)]))
    await rig.save()
    await rig.save_index()


async def deletes_on_a_full_disk(disk: CrashDisk, rig: StoreRig) -> None:
    await rig.send(batch_of("t", 0, [b"newer than the snapshot"]))
    segments = len(rig.log.segments)
    disk.room_bytes = disk.used_bytes()
    done = await rig.store.expiry.expire(0)
    assert done.segments == segments - len(rig.log.segments) > 3
    disk.room_bytes = None
    await rig.close()
    again = await StoreRig.open(disk.after_kill(), NO_RESERVE, clock=StepClock())
    low, high = again.store.reader.bounds("t", 0)
    assert low > 0
    assert [int(frame.body.split()[0]) for frame in (await again.read_all(("t", 0)))[:-1]] == list(range(low, high - 1))
    await again.close()


def test_the_reserve_gives_a_deletion_its_room_and_is_made_again() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, KEEPS_ROOM, clock=StepClock())
        await filled(disk, rig)
        await rig.store.expiry._round()
        assert len(disk.files[RESERVE].current) == 8192
        await deletes_on_a_full_disk(disk, rig)
        assert RESERVE not in disk.files
        rig = await StoreRig.open(disk, KEEPS_ROOM, clock=StepClock())
        await rig.store.expiry._round()
        assert RESERVE in disk.files
        await rig.close()

    run(scenario)


def test_without_a_reserve_the_segment_prepared_ahead_is_given_back() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, NO_RESERVE, log=PREPARES, clock=StepClock())
        await filled(disk, rig)
        while rig.log._writer.preparer.next is None:  # noqa: ASYNC110 - prepared in the background, which tells nobody
            await asyncio.sleep(0.001)
        await deletes_on_a_full_disk(disk, rig)

    run(scenario)


def test_without_any_room_the_error_says_what_it_was_and_nothing_changes() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, NO_RESERVE, clock=StepClock())
        await filled(disk, rig)
        await rig.send(batch_of("t", 0, [b"newer than the snapshot"]))
        disk.room_bytes = disk.used_bytes()
        with pytest.raises(StorageFullError, match=r"the disk is full .*a deletion itself needs some room"):
            await rig.store.expiry.expire(0)
        assert rig.log.first_index == 1
        disk.room_bytes = None
        assert (await rig.store.expiry.expire(0)).segments > 3
        await rig.close()

    run(scenario)


def test_only_what_a_snapshot_on_the_disk_reaches_goes() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, NO_RESERVE, clock=StepClock())
        await rig.topic()
        await rig.save()
        saved = rig.saved_index
        for number in range(50):
            await rig.send(batch_of("t", 0, [b"%d" % number + b"x" * 600]))
        disk.room_bytes = disk.used_bytes()
        with pytest.raises(StorageFullError, match=f"the newest snapshot on it reaches entry {saved}"):
            await rig.store.expiry.expire(0)
        assert rig.log.first_index == 1
        disk.room_bytes = None
        await rig.close()

    run(scenario)


def test_the_reserve_pays_for_the_first_snapshot_that_lets_a_segment_go() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, replace(TINY, reserve_bytes=1 << 16), clock=StepClock())
        look = asyncio.create_task(rig.store.expiry.run())
        while RESERVE not in disk.files:  # noqa: ASYNC110 - made at the start, not at the first round
            await asyncio.sleep(0)
        look.cancel()
        await rig.topic()
        for number in range(50):
            await rig.send(batch_of("t", 0, [b"%d" % number + b"x" * 600]))
        disk.room_bytes = disk.used_bytes()
        assert (await rig.store.expiry.expire(0)).segments > 3
        disk.room_bytes = None
        await rig.close()

    run(scenario)


def test_snapshots_that_fail_half_way_never_spoil_the_last_whole_one() -> None:
    """Twice without room for applied.json, which comes last: the section files were written by then, each time others."""

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk, TINY, clock=StepClock())
        await rig.topic("first")
        await rig.save()
        state = rig.state()
        disk.full_paths = ("config/applied.json",)
        for name in ("second", "third"):
            await rig.command(CreateTopic(name=name, write_queues=1))
            with pytest.raises(OSError, match="no space left"):
                await rig.save()
            contents = {path: bytes(file.current) for path, file in disk.files.items()}
            again = await StoreRig.open(CrashDisk(contents), TINY, clock=StepClock())
            assert again.store.recovery.index == state["index"]
            assert {topic.name for topic in again.store.topics} >= {"first", name}
            await again.close()
        disk.full_paths = ()
        await rig.save()
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []

    run(scenario)


def test_the_key_index_tells_once_that_the_disk_is_full(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock()
        rig = await StoreRig.open(disk, replace(TINY, flushIntervalConsumeQueue=1), clock=clock)
        await rig.topic("a")
        await rig.send(batch_of("a", 0, [b"0"], keys=["x"]))
        assert rig.store.index is not None
        assert await rig.store.index.caught_up(rig.store.applied_index, 10)
        disk.full_paths = ("index/",)
        rounds = len(disk.log)
        for number in range(20):
            await rig.send(batch_of("a", 0, [b"%d" % number], keys=["x"]))
            clock.now_ms += 100
            assert await rig.store.index.caught_up(rig.store.applied_index, 10)
        assert len([None for what, path in disk.log[rounds:] if what == "pwrite" and path.startswith("index/")]) > 2
        disk.full_paths = ()
        await rig.close()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert len([record for record in caplog.records if "the key index pauses" in record.getMessage()]) == 1


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A folder on an ext4 of 24 MiB of its own."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(24 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            needs.lacking(f"cannot make a small disk here: no {command[0]}")
        if done.returncode != 0:
            needs.lacking(f"cannot make a small disk here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> None:
    """Take every block there is."""
    for size in (64 << 10, 512):
        with open(folder / f"ballast-{size}", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(size))


def test_an_ext4_that_somebody_else_filled_is_cleaned(small_ext4: Path) -> None:
    async def scenario() -> None:
        disk = RealDisk(str(small_ext4 / "n0"))
        log = LogConfig(segment_bytes=256 << 10, fill_window_bytes=128 << 10, fill_step_bytes=64 << 10)
        settings = replace(TINY, mappedFileSizeConsumeQueue=6000, reserve_bytes=1 << 20, diskSpaceEnoughFree=1 << 20)
        rig = await StoreRig.open(disk, settings, log=log, clock=StepClock())
        await rig.topic()
        for number in range(200):
            await rig.send(batch_of("t", 0, [b"%d " % number + b"x" * 10_000]))
        await rig.save()
        await rig.store.expiry._round()
        fill(small_ext4)
        facts = os.statvfs(small_ext4)
        assert facts.f_bavail * facts.f_frsize < 64 << 10
        await rig.store.expiry.room.look()
        assert rig.store.is_low_on_space
        done = await rig.store.expiry.expire(0)
        assert done.segments >= 6
        await rig.send(batch_of("t", 0, [b"200"]))
        low, high = rig.store.reader.bounds("t", 0)
        assert (low > 100, high) == (True, 201)
        assert [int(frame.body.split()[0]) for frame in await rig.read_all(("t", 0), max_bytes=1 << 20)] == list(range(low, high))
        await rig.close()
        disk.close()

    run(scenario)
