"""Repairs of a log in use: only what can be read again counts as repaired."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dledger.core.types import EntryId
from dledger.repair import LogRepairer, PeerRepair
from dledger_wire.errors import StorageDamagedError
from dledger_wire.tasks import BackgroundTasks

if TYPE_CHECKING:
    from dledger.log.log import Log

DAMAGE = StorageDamagedError("entry 7 cannot be read", index=7)


def test_a_sector_that_takes_what_is_written_and_still_cannot_be_read_is_not_repaired() -> None:
    written: list[int] = []

    async def read(_first: int, _max_bytes: int, _last: int) -> Any:
        raise DAMAGE

    async def write(_log: object, index: int) -> bool:
        written.append(index)
        return True

    async def scenario() -> None:
        log: Any = SimpleNamespace(
            read=read, entry_id=lambda index: EntryId(index, 1), first_index=1, measures=SimpleNamespace(corruptions=0)
        )
        repair: Any = SimpleNamespace(repair_entry=write)
        repairer = LogRepairer(lambda: cast(PeerRepair, repair), lambda: cast("Log", log), BackgroundTasks("test"))
        assert not await repairer.repair(DAMAGE)
        assert written == [7]
        assert repairer.unrepaired == ["entry 7 cannot be read"]

    asyncio.run(scenario())
