"""Reading messages that are to be stored again: every body is checked, since a copy would hide damage under a fresh checksum.

Owns the way from damage found on this disk to the bytes of a peer, and back to reading.  What nobody can mend now is told with its topic,
queue and offset (``unreadable_offset``), so that the caller can go on in front of it or behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from broker.context import ServiceContext
from dledger.node import RaftNode
from dledger_wire.errors import CorruptFrameError, DledgerError, StorageDamagedError
from dledger_wire.frames.frame import Frame, decode_frame, frame_positions
from store.queues.queue_files import Units
from store.state.offset_runs import runs_of

MAX_MENDED = 8  # damaged entries put right for one read

T = TypeVar("T")
E = TypeVar("E", StorageDamagedError, CorruptFrameError)


async def mended(raft: RaftNode, read: Callable[[], Awaitable[T]]) -> T:
    """What ``read`` gives, once the damaged entries in its way are put right; StorageDamagedError when one of them cannot be."""
    for _ in range(MAX_MENDED):
        try:
            return await read()
        except StorageDamagedError as damage:
            if not await raft.repair_damage(damage):
                raise
    return await read()


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
        """The messages from ``offset`` on, as many as fit the limits and lie in front of any that cannot be read now.

        StorageDamagedError or CorruptFrameError when the very first one cannot be; none at the end of the queue.
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
        """The messages of some units, all of them; ``offsets`` rise."""

        async def read() -> list[Frame]:
            frames = await self._context.store.reader.frames_of(self._topic, self._queue_id, units, offsets)
            return self._decoded(frames, units["size"], offsets.tolist())

        return await self._checked(read, lambda: runs_of(offsets.tolist()))

    async def put_right(self, offsets: Sequence[int]) -> bool:
        """Check the log's entries that hold the messages at these rising offsets; True when all are whole, False when one was mended."""
        return not await self._mend(runs_of(offsets))

    async def _checked(self, read: Callable[[], Awaitable[list[Frame]]], runs: Callable[[], Sequence[tuple[int, int]]]) -> list[Frame]:
        for _ in range(MAX_MENDED):
            try:
                return await read()
            except StorageDamagedError as damage:
                if not await self._mend(runs()) and not await self._context.raft.repair_damage(damage):
                    raise
            except CorruptFrameError:
                await self._mend(runs())
        return await read()

    async def _mend(self, runs: Sequence[tuple[int, int]]) -> bool:
        """Mend the first damaged entry of those that hold these messages; whether there was one."""
        for first, upto in runs:
            try:
                await self._context.store.reader.verify(self._topic, self._queue_id, first, upto)
            except StorageDamagedError as damage:
                if await self._context.raft.repair_damage(damage):
                    return True
                raise self._told(damage, unreadable_offset(damage)) from None
        return False

    def _decoded(self, frames: Sequence[bytes | memoryview], sizes: npt.NDArray[np.generic], offsets: Sequence[int]) -> list[Frame]:
        data = b"".join(frames)
        found: list[Frame] = []
        for offset, position in zip(offsets, frame_positions(sizes).tolist(), strict=True):
            try:
                found.append(decode_frame(data, position))
            except CorruptFrameError as damage:
                raise self._told(damage, offset) from None
        return found

    def _told(self, damage: E, offset: int) -> E:
        text = f"{self._topic}/{self._queue_id} offset {offset}: {damage.message}"
        return type(damage)(text, **{**damage.details, "queue_offset": str(offset)})
