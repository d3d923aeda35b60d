"""Messages for leases: read from a queue by offset, filtered, and with what cannot be read named instead of raised.

Owns the reading.  New messages come in chunks, as for a fetch; earlier ones lie scattered, and the entries of those that were delivered
before are checked whole, so that damage which a consumer met is repaired before the message comes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

import numpy as np
import numpy.typing as npt

from broker.context import ServiceContext
from broker.delivery.verified_reads import read_with_repair, unreadable_offset
from dledger_wire.errors import CorruptFrameError, StorageDamagedError
from dledger_wire.frames.frames import cut_bytes, frame_columns, frame_positions
from store.queues.fetch_filter import FetchFilter, choose
from store.queues.queue_files import Units
from store.queues.read import Chunk, FrameMismatchError
from store.state.offset_runs import runs_of

SHARDING_KEY = "__SHARDINGKEY"  # the property that names the message group
MESSAGE_GROUP = b"\x02%s\x01" % SHARDING_KEY.encode()  # behind the end of the one before
MAX_SCAN_MS = 200  # how long one turn at a queue may look for messages that pass a filter
WINDOW = 1024  # scattered messages are read with those between them at most this far apart

Offsets = npt.NDArray[np.int64]
Message = tuple[int, bytes | memoryview]  # offset, frame


@dataclass(slots=True)
class Read:
    """What came of reading: messages that pass the filter, and offsets of those that do not, and of those that cannot be read now."""

    messages: list[Message] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(len(frame) for _, frame in self.messages)


class LeaseReader:
    """Of one queue."""

    def __init__(self, context: ServiceContext, topic: str, queue_id: int, wanted: FetchFilter) -> None:
        self._context, self._topic, self._queue_id, self._wanted = context, topic, queue_id, wanted

    async def new(self, begin: int, found: Read, *, most: int, max_bytes: int) -> int:
        """Add the next messages from ``begin`` on to ``found`` until it has ``most`` or the bytes; where reading goes on.

        Those in between that ``found`` does not have do not pass the filter."""
        store, clock = self._context.store, self._context.env.clock
        until_ms = clock.monotonic_ms() + MAX_SCAN_MS
        _, high = store.reader.bounds(self._topic, self._queue_id)
        size = found.size_bytes
        limit = min(store.settings.chunk_messages, most)
        while begin < high and len(found.messages) < most and (size < max_bytes or not found.messages):
            count = min(limit, most - len(found.messages))
            try:
                chunk = await read_with_repair(self._context.raft, partial(self._chunk, begin, count, max(max_bytes - size, 1)))
                if self._wanted.sql is not None:
                    await self._wanted.turn()  # the filter's last slice was one
                messages = list(_cut(chunk))
            except (StorageDamagedError, CorruptFrameError):
                if count > 1:
                    limit = count // 2
                    continue
                found.damaged.append(begin)
                begin += 1
                continue
            if found.messages and size + chunk.frames_bytes > max_bytes:
                messages = messages[: _fitting(messages, max_bytes - size)]
                if len(messages) < chunk.count:
                    found.messages += messages
                    return messages[-1][0] + 1 if messages else begin
            found.messages += messages
            size += chunk.frames_bytes
            begin = chunk.next_offset
            if clock.monotonic_ms() >= until_ms:
                break
        return begin

    async def _chunk(self, begin: int, count: int, max_bytes: int) -> Chunk:
        store, raft = self._context.store, self._context.raft
        chunk = await store.read(
            self._topic,
            self._queue_id,
            begin,
            max_messages=count,
            max_bytes=min(max_bytes, store.settings.chunk_bytes),
            fetch_filter=self._wanted,
        )
        if 0 < chunk.first_pos < raft.log.cached_pos:
            await raft.bulk.take(max(chunk.frames_bytes, chunk.looked_at))
        return chunk

    async def earlier(self, offsets: Offsets, attempts: npt.NDArray[np.uint16], found: Read, max_bytes: int) -> None:
        """Add these messages, rising, up to the bytes; at least one."""
        offsets = await self._intact(offsets, attempts, found)
        while len(offsets) and (not found.messages or found.size_bytes < max_bytes):
            window = offsets[: int(np.searchsorted(offsets, offsets[0] + WINDOW))]
            await self._wanted.turn()
            taken = await self._window(window, found, max_bytes - found.size_bytes)
            offsets = offsets[max(taken, 1) :]

    async def _intact(self, offsets: Offsets, attempts: npt.NDArray[np.uint16], found: Read) -> Offsets:
        """Those whose log entries are whole, as far as they were delivered before."""
        reader = self._context.store.reader
        for first, end in runs_of(offsets[attempts > 0].tolist()):
            while first < end:
                try:
                    await read_with_repair(
                        self._context.raft,
                        partial(reader.verify, self._topic, self._queue_id, first, end),
                    )
                    break
                except StorageDamagedError as damage:
                    bad = max(first, unreadable_offset(damage))
                    found.damaged.append(bad)
                    offsets = offsets[offsets != bad]
                    first = bad + 1
        return offsets

    async def _window(self, offsets: Offsets, found: Read, max_bytes: int) -> int:
        """Read messages near each other; of how many something was decided."""
        first = int(offsets[0])
        try:
            units = await self._context.store.reader.units(self._topic, self._queue_id, first, int(offsets[-1]) - first + 1)
            offsets = offsets[offsets < first + len(units)]
            units = units[offsets - first]
            fits = max(1, int(np.searchsorted(np.cumsum(units["size"], dtype=np.int64), max_bytes, side="right")))
            offsets, units = offsets[:fits], units[:fits]
            passing = self._wanted.by_tag(units)
            messages = await read_with_repair(self._context.raft, lambda: self._frames(units[passing], offsets[passing]))
        except (StorageDamagedError, CorruptFrameError):
            if len(offsets) > 1:
                return await self._window(offsets[: len(offsets) // 2], found, max_bytes)
            found.damaged.append(first)
            return 1
        found.messages += messages
        passed = {offset for offset, _ in messages}
        found.skipped += [offset for offset in offsets.tolist() if offset not in passed]
        return len(offsets)

    async def _frames(self, units: Units, offsets: Offsets) -> list[Message]:
        if not len(units):
            return []
        data = b"".join(await self._context.store.reader.frames_of(self._topic, self._queue_id, units, offsets))
        chosen = np.arange(len(units))
        if self._wanted.sql is not None:
            try:
                chosen = await choose(self._wanted, self._wanted.sql, data, units, offsets)
            except FrameMismatchError as bad:
                raise StorageDamagedError(f"{self._topic}/{self._queue_id}: {bad}") from None
        view, starts = memoryview(data), frame_positions(units["size"])
        spans = zip(offsets[chosen].tolist(), starts[chosen].tolist(), units["size"][chosen].tolist(), strict=True)
        return [(offset, view[start : start + size]) for offset, start, size in spans]


def message_groups(found: Read) -> list[int]:
    """A number for the message group of each message; those without one are a group of their own."""
    while found.messages:
        data = b"".join(frame for _, frame in found.messages)
        positions = frame_positions(np.array([len(frame) for _, frame in found.messages]))
        try:
            columns = frame_columns(np.frombuffer(data, np.uint8), positions)
        except CorruptFrameError as error:
            found.damaged.append(found.messages.pop(max(error.detail_int("first_bad"), 0))[0])
            continue
        return [_group_in(b"\x02" + packed) for packed in cut_bytes(data, columns.properties_at, columns.properties_length)]
    return []


def _group_in(properties: bytes) -> int:
    at = properties.find(MESSAGE_GROUP)
    return crc32(properties[at + len(MESSAGE_GROUP) :].partition(b"\x02")[0]) if at >= 0 else 0


def _cut(chunk: Chunk) -> Iterator[Message]:
    """The messages of a chunk."""
    if not chunk.count:
        return
    view = memoryview(b"".join(chunk.frames) if len(chunk.frames) != 1 else chunk.frames[0])
    sizes = np.frombuffer(chunk.sizes, ">u4").astype(np.int64)
    ends = np.cumsum(sizes).tolist()
    offsets = np.frombuffer(chunk.offsets, ">u8").tolist() if chunk.offsets else range(chunk.first_offset, chunk.first_offset + chunk.count)
    for offset, start, end in zip(offsets, [0, *ends], ends, strict=False):
        yield offset, view[start:end]


def _fitting(messages: Sequence[Message], max_bytes: int) -> int:
    return int(np.searchsorted(np.cumsum([len(frame) for _, frame in messages]), max_bytes, side="right"))
