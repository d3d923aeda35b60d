"""The files of one queue under readers that come and go side by side."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from dledger.log.segment import FilePool
from dledger_wire.store_layout import QUEUE_UNIT_DTYPE
from store.queues.queue_files import QueueFiles, Units, queue_folder
from tests.unit.log.crash_disk import CrashDisk

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
