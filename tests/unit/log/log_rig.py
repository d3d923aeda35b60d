"""What the tests of the log share: tiny sizes, entries with recognisable bodies, opening and reading whole."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

from dledger.core.types import EntryKind, NodeId
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.log.report import Finding, RecoveryReport
from dledger.log.verify import verify_log
from dledger.runtime.env import Buffer, Disk

IDLE_S = 600.0  # the longest that a disk thread of a starved machine may take for one call
TINY = LogConfig(segment_bytes=1024, cache_bytes=400, verify_bytes=None, fill_window_bytes=0, units_sync_delay_ms=0, piece_bytes=256)


def config(**changes: Any) -> LogConfig:
    values = {name: getattr(TINY, name) for name in LogConfig.__slots__}
    return LogConfig(**(values | changes))


class _BoundedSelector(selectors.DefaultSelector):
    """Bounds a scenario by what happens in it, not by how long a busy machine takes for that."""

    left = 5_000_000

    def select(self, timeout: float | None = None) -> list[Any]:
        self.left -= 1
        assert self.left, "the scenario does not end"
        ready = super().select(IDLE_S if timeout is None else timeout)
        assert ready or timeout is not None, "nothing is left to happen, but the scenario waits"
        return ready


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_BoundedSelector())) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def body_of(index: int, term: int) -> bytes:
    """A body of 1 to some 150 bytes that tells what it belongs to."""
    return f"{index}/{term}:".encode() + bytes([65 + index % 26]) * (index * 37 % 140)


def add(log: Log, count: int, term: int = 1) -> list[RawEntry]:
    """Append entries, their bodies in one to three buffers."""
    entries = []
    for _ in range(count):
        body = body_of(log.last.index + 1, term)
        third = len(body) // 3
        pieces: list[Buffer] = [body] if third % 2 else [body[:third], bytearray(body[third : 2 * third]), memoryview(body)[2 * third :]]
        entry = log.encode(term, EntryKind.NORMAL, pieces)
        log.append(entry)
        entries.append(entry)
    return entries


def promise(log: Log, term: int, vote: str | None = "n0") -> None:
    log.save_hard_state(term, NodeId(vote) if vote is not None else None)


async def everything(log: Log, max_bytes: int = 600) -> list[RawEntry]:
    """All entries of the log, read in pieces."""
    entries: list[RawEntry] = []
    index = log.first_index
    while index <= log.last.index:
        piece = await log.read(index, max_bytes, log.last.index)
        assert piece, f"nothing at {index} of {log.first_index}..{log.last.index}"
        entries += piece
        index = piece[-1].index + 1
    assert [entry.index for entry in entries] == list(range(log.first_index, log.last.index + 1))
    return entries


def bodies(entries: list[RawEntry]) -> list[tuple[int, int, bytes]]:
    return [(entry.index, entry.term, entry.body_bytes()) for entry in entries]


async def reopened(log: Log, disk: Disk, settings: LogConfig = TINY) -> tuple[Log, RecoveryReport]:
    await log.close()
    return await Log.open(disk, settings)


async def findings(disk: Disk) -> list[Finding]:
    return [finding async for finding in verify_log(disk, piece_bytes=256)]
