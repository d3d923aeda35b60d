"""Verified reads: messages that will be stored again are read with every body checked, since a copy would hide damage.

Owns the repair on the way: damage found on this disk is repaired with the bytes of a peer, then the read is repeated.  An error about
damage that no peer can repair now names topic, queue and offset (``unreadable_offset``), so the caller can continue before or after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from broker.context import ServiceContext
from dledger.node import RaftNode
from dledger_wire.errors import CorruptFrameError, DledgerError, StorageDamagedError
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.frames.frames import frame_positions
from dledger_wire.rpc.stored import OpenBytes, StoredBytes
from store import log_view
from store.log_view import MAX_REPAIRS
from store.queues.queue_files import Units
from store.state.offset_runs import runs_of

T = TypeVar("T")
E = TypeVar("E", StorageDamagedError, CorruptFrameError)


async def read_with_repair(raft: RaftNode, read: Callable[[], Awaitable[T]]) -> T:
    """The result of ``read``, after repairing the damaged entries it meets.  StorageDamagedError when one cannot be repaired."""
    return await log_view.read_with_repair(raft.repair_damage, read)


class RepairedBytes:
    """Implements ``StoredBytes``: what cannot be sent as it lies there is repaired before it is read."""

    def __init__(self, raft: RaftNode, stored: StoredBytes) -> None:
        self._raft = raft
        self._stored = stored
        self.size = stored.size

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[OpenBytes]:
        async with self._stored.opened() as opened:
            yield _RepairedOpen(self._raft, opened)


class _RepairedOpen:
    def __init__(self, raft: RaftNode, opened: OpenBytes) -> None:
        self._raft = raft
        self._opened = opened
        self.send = opened.send

    async def read(self, done: int) -> bytes:
        return await read_with_repair(self._raft, lambda: self._opened.read(done))


def unreadable_offset(error: DledgerError) -> int:
    """The offset of the message that could not be read; -1 when the error does not say."""
    return error.detail_int("queue_offset")


class StoredMessages:
    """The messages of one queue."""

    def __init__(self, context: ServiceContext, topic: str, queue_id: int, *, for_service: bool = False) -> None:
        self._context = context
        self._topic = topic
        self._queue_id = queue_id
        self._for_service = for_service

    async def run(self, offset: int, *, max_messages: int, max_bytes: int) -> list[Frame]:
        """The messages from ``offset`` on that fit the limits, up to the first one that cannot be read now.

        StorageDamagedError or CorruptFrameError when the first one cannot be read; no messages at the end of the queue.
        """

        async def read() -> list[Frame]:
            chunk = await self._context.store.read(
                self._topic, self._queue_id, offset, max_messages=max_messages, max_bytes=max_bytes, for_service=self._for_service
            )
            sizes = np.frombuffer(chunk.sizes, ">u4")
            return self._decoded(chunk.frames, sizes, range(offset, offset + chunk.count))

        try:
            return await self._checked(read, lambda: [(offset, offset + max_messages)])
        except (StorageDamagedError, CorruptFrameError) as error:
            bad = unreadable_offset(error)
            if bad <= offset:
                raise
            max_messages = min(max_messages, bad - offset)
            return await read()

    async def at(self, units: Units, offsets: npt.NDArray[np.int64]) -> list[Frame]:
        """The messages of all these units; ``offsets`` are in rising order."""

        async def read() -> list[Frame]:
            frames = await self._context.store.reader.frames_of(self._topic, self._queue_id, units, offsets)
            return self._decoded(frames, units["size"], offsets.tolist())

        return await self._checked(read, lambda: runs_of(offsets.tolist()))

    async def verify(self, offsets: Sequence[int]) -> bool:
        """Check the log entries that hold the messages at these rising offsets.  True when all are intact, False when one was repaired."""
        return not await self._repair(runs_of(offsets))

    async def _checked(self, read: Callable[[], Awaitable[list[Frame]]], runs: Callable[[], Sequence[tuple[int, int]]]) -> list[Frame]:
        for _ in range(MAX_REPAIRS):
            try:
                return await read()
            except StorageDamagedError as damage:
                if not await self._repair(runs()) and not await self._context.raft.repair_damage(damage):
                    raise
            except CorruptFrameError:
                await self._repair(runs())
        return await read()

    async def _repair(self, runs: Sequence[tuple[int, int]]) -> bool:
        """Repair the first damaged entry of those that hold these messages; whether there was one."""
        for first, end in runs:
            try:
                await self._context.store.reader.verify(self._topic, self._queue_id, first, end)
            except StorageDamagedError as damage:
                if await self._context.raft.repair_damage(damage):
                    return True
                raise self._located(damage, unreadable_offset(damage)) from None
        return False

    def _decoded(self, frames: Sequence[bytes | memoryview], sizes: npt.NDArray[np.generic], offsets: Sequence[int]) -> list[Frame]:
        data = b"".join(frames)
        found: list[Frame] = []
        for offset, position in zip(offsets, frame_positions(sizes).tolist(), strict=True):
            try:
                found.append(decode_frame(data, position))
            except CorruptFrameError as damage:
                raise self._located(damage, offset) from None
        return found

    def _located(self, damage: E, offset: int) -> E:
        """The same error with the place of the message."""
        text = f"{self._topic}/{self._queue_id} offset {offset}: {damage.message}"
        return type(damage)(text, **{**damage.details, "queue_offset": str(offset)})
