"""The files of one queue under readers that come and go side by side."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence

import numpy as np
import pytest

from dledger.log.entry import RawEntry
from dledger.log.segment import FilePool
from dledger.runtime.env import FileCut
from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from dledger_wire.errors import OffsetOutOfRangeError, TopicNotFoundError
from store.commands.topics import DeleteTopic
from store.queues.queue_files import QueueFiles, Units, queue_folder
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run

FILE_UNITS = 8


def units_of(tag: int) -> Units:
    units = np.zeros(FILE_UNITS, QUEUE_UNIT_DTYPE)
    units["pos"] = np.arange(FILE_UNITS) + tag
    return units


def test_a_reader_amid_the_removal_of_a_file_leaves_no_handle_to_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        pool, remove = FilePool(disk, 4), disk.remove
        files = QueueFiles(disk, pool, queue_folder("t", 0), FILE_UNITS)
        await files.write(0, units_of(100))
        read = []

        async def read_and_remove(path: str) -> None:
            read.append(await files.read(0, FILE_UNITS))
            await remove(path)

        monkeypatch.setattr(disk, "remove", read_and_remove)
        await files.remove(0)
        monkeypatch.undo()
        assert read[0].tobytes() == units_of(100).tobytes()
        await files.write(0, units_of(200))
        await files.sync(0)
        await pool.close()
        after = QueueFiles(disk, FilePool(disk, 4), queue_folder("t", 0), FILE_UNITS)
        assert await after.numbers() == [0]
        assert (await after.read(0, FILE_UNITS)).tobytes() == units_of(200).tobytes()

    asyncio.run(scenario())


class TornBlocks(CrashDisk):
    """Some files cannot be cut, since a block that would be kept in part cannot be read."""

    torn: frozenset[str] = frozenset()

    async def cut_files(self, cuts: Sequence[FileCut]) -> None:
        for cut in cuts:
            if cut.path in self.torn and cut.path in self.files:
                raise OSError(errno.EIO, "input/output error")
        await super().cut_files(cuts)


@pytest.mark.parametrize("torn", [1, 2])
def test_a_file_that_a_start_cannot_cut_is_made_anew(torn: int) -> None:
    async def scenario() -> None:
        disk = TornBlocks()
        rig = await StoreRig.open(disk)
        await rig.topic(queues=4)
        for number in range(10):
            for queue_id in range(4):
                await rig.send(batch_of("t", queue_id, [b"%d" % number]))
        await rig.save()
        for queue_id in range(4):  # behind the snapshot: a start cuts it off
            await rig.send(batch_of("t", queue_id, [b"10"]))
        await rig.store.queues.flush(sync=True)
        after = TornBlocks({path: bytes(file.current) for path, file in disk.files.items()})
        after.torn = frozenset(f"consumequeue/t/{queue_id}/{140:020d}" for queue_id in range(torn))
        rig = await StoreRig.open(after)
        assert len(rig.store.recovery.rebuilt_files) == torn
        for queue_id in range(4):
            assert [frame.body for frame in await rig.read_all(("t", queue_id))] == [b"%d" % number for number in range(11)]
        await rig.close()

    run(scenario)


def test_readers_who_find_one_file_damaged_at_the_same_time_share_a_pass_over_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic()
        for number in range(10):
            await rig.send(batch_of("t", 0, [b"%d" % number]))
        await rig.save()
        await rig.close()
        rig = await StoreRig.open(disk)
        for _ in range(2):  # the file is damaged anew after it was made anew
            queue = rig.store.queues.get(("t", 0))
            assert queue is not None
            disk.files[queue.files.path(0)].current[:20] = bytes(20)
            queue._checked.clear()
            chunks = await asyncio.gather(*(rig.store.read("t", 0, offset, max_bytes=1000) for offset in range(5)))
            assert [chunk.first_offset for chunk in chunks] == list(range(5))
        await rig.close()

    run(scenario)
    assert sum("its queue file was rebuilt from the log" in line for line in caplog.messages) == 2


@pytest.mark.parametrize("remade", [False, True], ids=["goes on", "is made anew"])
def test_queues_go_on_while_a_file_is_made_anew_from_the_log(remade: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic()
        for number in range(10):
            await rig.send(batch_of("t", 0, [b"%d" % number]))
        await rig.save()
        await rig.close()
        rig = await StoreRig.open(disk)
        queue = rig.store.queues.get(("t", 0))
        assert queue is not None
        disk.files[queue.files.path(0)].current[:20] = bytes(20)
        queue._checked.clear()
        begun, go_on, read = asyncio.Event(), asyncio.Event(), rig.log.read

        async def slow(*asked: int) -> list[RawEntry]:
            begun.set()
            await go_on.wait()
            return await read(*asked)

        monkeypatch.setattr(rig.log, "read", slow)
        reading = asyncio.ensure_future(rig.store.read("t", 0, 0, max_bytes=1000))
        await begun.wait()
        monkeypatch.setattr(rig.log, "read", read)
        if remade:
            await rig.command(DeleteTopic(name="t"))
            await rig.topic()
        for number in range(10, 20):
            await rig.send(batch_of("t", 0, [b"%d" % number]))
        await rig.store.queues.flush(sync=True)
        go_on.set()
        with contextlib.suppress(OffsetOutOfRangeError, TopicNotFoundError):
            assert (await reading).first_offset == 0
        await rig.save()
        found = [frame.body for frame in await rig.read_all(("t", 0))]
        assert found == [b"%d" % number for number in range(10 if remade else 0, 20)]
        await rig.close()
        rig = await StoreRig.open(disk)
        assert [frame.body for frame in await rig.read_all(("t", 0))] == found
        assert not rig.store.recovery.rebuilt_files
        await rig.close()

    run(scenario)
