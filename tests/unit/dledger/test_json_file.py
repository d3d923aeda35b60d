"""Small JSON files of a data folder: written whole, and damage is reported with the file, the reason and the advice of its owner."""

from __future__ import annotations

import asyncio
import re

import pytest

from dledger.runtime.json_file import JsonFile
from dledger_wire.errors import DataDirectoryError
from tests.unit.dledger.raft_rig import MemoryDisk

COUNT = JsonFile[int]("count.json", lambda data: int(data["count"]), lambda count: {"count": count})
ADVISED = JsonFile[int]("count.json", COUNT.decode, COUNT.encode, advice="count again", indent=1)


def test_what_is_written_is_read() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        assert await COUNT.read(disk) is None
        await ADVISED.write(disk, 7)
        assert (await COUNT.read(disk), bytes(disk.files["count.json"])) == (7, b'{\n "count": 7\n}\n')

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "Expecting value"), (b"{}", "no count in it"), (b'{"count": "x"}', "invalid literal"), (b"[]", "list indices")],
)
def test_damage_is_reported_with_the_advice_of_the_owner(content: bytes, reason: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.write_atomic("count.json", content)
        with pytest.raises(DataDirectoryError, match=rf"count\.json is damaged: {re.escape(reason)}"):
            await COUNT.read(disk)
        with pytest.raises(DataDirectoryError, match=rf"count\.json is damaged \({re.escape(reason)}.*\): count again$"):
            await ADVISED.read(disk)

    asyncio.run(scenario())
