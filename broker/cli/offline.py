"""The files of one stopped node, checked: log, index units, hard state, and what the store derived from them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from dledger.log.report import Finding
from dledger.log.verify import verify_log
from dledger.real_disk import RealDisk
from store.verify import verify_store


async def check_node(folder: str, on_progress: Callable[[int], None]) -> AsyncIterator[Finding]:
    """Everything that is not as it should be."""
    disk = RealDisk(folder)
    async for finding in verify_log(disk, on_progress=on_progress):
        yield finding
    async for finding in verify_store(disk):
        yield finding
