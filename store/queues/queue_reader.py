"""Reading from queues: a range of offsets, or the first message of a time, on any replica.

Owns the checks of a read (topic, permission, range), the way from units to a chunk of what is wanted, and the repair of queue files that
turn out damaged: the file is rebuilt from the log and the read goes on.  Only what is applied, hence committed, is ever read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dledger.log.bulk_turns import TakeTurn, at_once
from dledger_wire.errors import OffsetOutOfRangeError, StorageDamagedError
from dledger_wire.store_layout import QUEUE_UNIT_SIZE
from store.log_view import ReadableLog, Repair, read_with_repair, scan_end, scan_start
from store.queues.consume_queue import ConsumeQueue, DamagedQueueFileError
from store.queues.fetch_filter import COST_BYTES, EVERYTHING, FetchFilter, choose, max_filtered_messages
from store.queues.queue_files import Units
from store.queues.queue_table import QueueTable
from store.queues.read import Chunk, FrameMismatchError, Given, fit, frames_in_place, read_frames, store_time
from store.queues.rebuild import FileUse, fillers, rebuild_files
from store.queues.sql_filter import SqlFilter
from store.queues.stored_frames import stored_frames
from store.settings import StoreSettings
from store.state.sequences import QueueKey
from store.state.topics import Topics

_logger = logging.getLogger(__name__)

Offsets = npt.NDArray[np.int64]
READ_UNITS = 65_536  # at most, at a time
REPAIRS_PER_READ = 2
VERIFY_BYTES = 4 << 20


class QueueReader:
    """Reads the queues of a ``QueueTable`` out of a log; ``applied_index`` bounds what a repair reads, which does so when it is its
    turn."""

    def __init__(
        self,
        settings: StoreSettings,
        log: ReadableLog,
        topics: Topics,
        queues: QueueTable,
        applied_index: Callable[[], int],
        repair_entry: Repair,
        take_turn: TakeTurn = at_once,
    ) -> None:
        self._settings = settings
        self._log = log
        self._topics = topics
        self._queues = queues
        self._applied_index = applied_index
        self._repair_entry, self._take_turn = repair_entry, take_turn
        self._damaged_index = 0  # of the log's entry that the last rebuilding met
        self._rebuilding = asyncio.Lock()  # one pass over the log at a time
        self._passes = 0  # over the log that have ended
        self._rebuilt_in: dict[tuple[QueueKey, int], int] = {}  # the pass in which a file was last rebuilt

    def bounds(self, topic: str, queue_id: int, *, for_service: bool = False) -> tuple[int, int]:
        """(first offset, one past the newest) of a queue of a topic that may be read; (0, 0) while nothing was stored in it.

        Also of a queue that is only written to: what is in it has to show somewhere.
        """
        if not for_service:
            self._topics.known(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def bounds_of_topic(self, topic: str) -> tuple[list[int], list[int]]:
        """The same of every readable queue of a topic, by its number: the first offsets, and those one past the newest."""
        queues = [self._queues.get((topic, number)) for number in range(self._topics.readable(topic, 0).read_queues)]
        lows = [queue.min_offset if queue is not None else 0 for queue in queues]
        return lows, [queue.max_offset if queue is not None else 0 for queue in queues]

    async def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        fetch_filter: FetchFilter = EVERYTHING,
        for_service: bool = False,
        given: Given = Given.BYTES,
    ) -> Chunk:
        """The next messages from ``offset``, at least one if there is any, within both limits.

        A chunk without messages has either reached the queue's end, or read over messages that the filter left out.  Permissions are for
        users, not ``for_service``.  Raises OffsetOutOfRangeError, and StorageDamagedError when log and queue do not fit together even
        after a repair.
        """
        if not for_service:
            self._topics.readable(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        _check_range((topic, queue_id), queue, offset)
        if queue is None or offset == queue.max_offset:
            return Chunk(offset, offset, 0, b"")
        damaged: FrameMismatchError | DamagedQueueFileError | OffsetOutOfRangeError | None = None
        for _ in range(REPAIRS_PER_READ + 1):
            try:
                return await self._read(queue, offset, max_messages, max_bytes, fetch_filter, given)
            except (FrameMismatchError, DamagedQueueFileError, OffsetOutOfRangeError) as found:
                _check_range(queue.key, queue, offset)  # deleted from the log's head meanwhile
                damaged = found
                if not isinstance(found, OffsetOutOfRangeError):
                    await self._repair(queue, found)
        raise StorageDamagedError(f"{topic}/{queue_id}: {damaged}, also after it was rebuilt from the log", file=queue.files.local_path(0))

    async def _read(
        self, queue: ConsumeQueue, offset: int, max_messages: int, max_bytes: int, fetch_filter: FetchFilter, given: Given
    ) -> Chunk:
        # Frames are rarely below 128 bytes: no need to look at more units than could fit.
        max_units = min(max_messages or READ_UNITS, READ_UNITS, max(16, max_bytes >> 7)) if fetch_filter.everything else READ_UNITS
        units = await queue.read(offset, max_units)
        seen = len(units)
        next_offset, looked_at, first_pos = offset + seen, 0, int(units["pos"][0]) if seen else 0
        offsets = np.arange(offset, next_offset, dtype=np.int64)
        if fetch_filter.tag_hashes is not None:
            chosen = fetch_filter.by_tag(units)
            units, offsets, looked_at = units[chosen], offsets[chosen], seen * QUEUE_UNIT_SIZE
        if not len(units):
            return Chunk(offset, next_offset, 0, b"", looked_at=looked_at, first_pos=first_pos)
        if fetch_filter.sql is not None:
            return await self._matching(fetch_filter, fetch_filter.sql, (units, offsets, next_offset), max_messages, max_bytes)
        taken = min(fit(units["size"], max_bytes), max_messages or len(units))
        chunk = await self._taken(*_first(taken, units, offsets, next_offset), given, contiguous=fetch_filter.everything)
        chunk.looked_at = looked_at
        return chunk

    async def _taken(self, units: Units, offsets: Offsets, next_offset: int, given: Given, *, contiguous: bool) -> Chunk:
        """The chunk of the first of ``units``, as many as are given at a time."""
        gap_bytes = self._settings.span_gap_bytes
        if given is Given.PLACES:
            pieces, placed = frames_in_place(self._log, units, offsets, gap_bytes)
            if pieces:
                units, offsets, next_offset = _first(placed, units, offsets, next_offset)
                chunk = _chunk(units, offsets, next_offset, [], contiguous=contiguous)
                chunk.pieces, chunk.places = pieces, units["pos"].astype(">u8").tobytes()
                return chunk
        elif given is Given.STORED:
            settings = self._settings
            stored = await stored_frames(self._log, units, offsets, settings.stored_bytes, settings.stored_run_bytes)
            if stored is not None:
                chunk = _chunk(units, offsets, next_offset, [], contiguous=contiguous)
                chunk.stored = stored
                return chunk
        frames = await read_frames(self._log, units, offsets, gap_bytes)
        return _chunk(units, offsets, next_offset, frames, contiguous=contiguous)

    async def _matching(
        self, fetch_filter: FetchFilter, sql: SqlFilter, among: tuple[Units, Offsets, int], max_messages: int, max_bytes: int
    ) -> Chunk:
        """Read the first units of ``among`` (with their offsets and the one behind), and make a chunk of those that the expression lets
        pass."""
        units, offsets, next_offset = among
        budget = self._settings.chunk_bytes
        taken = min(fit(units["size"], budget), max_filtered_messages(sql, budget))
        if taken < len(units):
            units, offsets = units[:taken], offsets[:taken]
            next_offset = int(offsets[-1]) + 1
        buffers = await read_frames(self._log, units, offsets, self._settings.span_gap_bytes)
        frames = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        looked_at = max(len(frames), len(units) * sql.cost * COST_BYTES)
        chosen = await choose(fetch_filter, sql, frames, units, offsets)
        if not len(chosen):
            return Chunk(int(offsets[0]), next_offset, 0, b"", looked_at=looked_at, first_pos=int(units["pos"][0]))
        wanted = min(fit(units["size"][chosen], max_bytes), max_messages or len(chosen))
        if wanted < len(chosen):
            chosen = chosen[:wanted]
            next_offset = int(offsets[chosen[-1]]) + 1
        ends = np.cumsum(units["size"], dtype=np.int64)
        pieces = _runs(frames, ends - units["size"], ends, chosen)
        chunk = _chunk(units[chosen], offsets[chosen], next_offset, pieces, contiguous=False)
        chunk.looked_at = looked_at
        return chunk

    async def units(self, topic: str, queue_id: int, offset: int, max_units: int) -> Units:
        """Up to ``max_units`` units from ``offset``, fewer at a file's end, none at the queue's."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return fillers(0)
        try:
            return await queue.read(offset, max_units)
        except DamagedQueueFileError as found:
            await self._repair(queue, found)
            return await queue.read(offset, max_units)

    async def verify(self, topic: str, queue_id: int, offset: int, end: int) -> None:
        """Read the log's entries that hold these messages, whole.

        StorageDamagedError names the first entry that is damaged, and as ``queue_offset`` the first message that it has of these.
        """
        whole_end = 0
        while offset < end:
            units = await self.units(topic, queue_id, offset, min(READ_UNITS, end - offset))
            if not len(units):
                return
            for number, pos in enumerate(units["pos"].tolist()):
                if pos >= whole_end:
                    try:
                        whole_end = await self._verify_at(pos)
                    except StorageDamagedError as damage:
                        damage.details["queue_offset"] = str(offset + number)
                        raise
            offset += len(units)

    async def _verify_at(self, pos: int) -> int:
        """Check the entry that holds a log position; where it ends, or one of those behind it that were read with it."""
        index = await self._index_at(pos)
        while True:
            entries = await self._log.read(index, VERIFY_BYTES, self._log.last.index)
            if not entries or entries[-1].end_pos > pos:
                return entries[-1].end_pos if entries else pos + 1
            index = entries[-1].index + 1

    async def _index_at(self, pos: int) -> int:
        """The index of the entry that holds a log position, or of one before it when that cannot be found out."""
        low, high = scan_start(self._log, pos), scan_end(self._log, pos)
        try:
            while high - low > 1 and low >= self._log.first_index:
                middle = (low + high) // 2
                if (await self._log.find(middle)).pos <= pos:
                    low = middle
                else:
                    high = middle
        except (FileNotFoundError, StorageDamagedError):  # deleted from the log's head meanwhile, or a damaged index unit
            return scan_start(self._log, pos)
        return low

    async def frames_of(self, topic: str, queue_id: int, units: Units, offsets: npt.NDArray[np.int64]) -> list[bytes | memoryview]:
        """The frames of some messages, given as ascending units of the queue.  StorageDamagedError names the first that is none."""
        queue = self._queues.get((topic, queue_id))
        try:
            return await read_frames(self._log, units, offsets, self._settings.span_gap_bytes)
        except FrameMismatchError as found:
            if queue is not None:
                await self._repair(queue, found)
            raise StorageDamagedError(f"{topic}/{queue_id}: {found}; its queue file is rebuilt from the log") from None

    async def repair(self, damages: Sequence[DamagedQueueFileError]) -> None:
        """Rebuild damaged files in one pass over the log, whose damaged entries are repaired as well.  StorageDamagedError names one that
        cannot be repaired now; the files are as they were then."""
        wrong = [(damage.queue, damage.file_number, damage) for damage in damages]
        await read_with_repair(self._repair_entry, lambda: self._rebuild(wrong))

    async def _repair(self, queue: ConsumeQueue, found: FrameMismatchError | DamagedQueueFileError) -> None:
        """Rebuild the file that is wrong from the log."""
        number = found.file_number if isinstance(found, DamagedQueueFileError) else found.offset // queue.files.file_units
        await self._rebuild([(queue, number, found)])

    async def _rebuild(self, wrong: Sequence[tuple[ConsumeQueue, int, Exception]]) -> None:
        try:
            await self._rebuild_now(wrong, self._passes)
        except StorageDamagedError as damage:
            self._damaged_index = max(0, damage.detail_int("index"))
            raise

    async def _rebuild_now(self, wrong: Sequence[tuple[ConsumeQueue, int, Exception]], passes: int) -> None:
        """``passes``: how many had ended when the files were found wrong.  One that ended since was asked for by other readers."""
        async with self._rebuilding:
            # A topic may have been deleted meanwhile, or the file with the log's head.
            left = [each for each in wrong if self._has_file(each[0], each[1])]
            left = [each for each in left if self._rebuilt_in.get((each[0].key, each[1]), 0) <= passes]
            wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]] = {}
            for queue, number, _ in left:
                wanted.setdefault(queue.key, (queue, []))[1].append(number)
            if wanted:
                if self._damaged_index:  # callers try again and again: not with a pass over the log up to the same entry
                    await self._log.read(self._damaged_index, 0, self._damaged_index)
                    self._damaged_index = 0
                created = {topic.name: topic.created_pos for topic in self._topics}
                use = FileUse(self._applied_index, self._queues.files_lock, self._has_file, self._take_turn)
                await rebuild_files(self._log, wanted, created, use)
                self._passes += 1
                for queue, number, _ in left:
                    self._rebuilt_in[queue.key, number] = self._passes
                    self._queues.mark_changed(queue)
        for _, _, found in left:
            _logger.warning("%s: its queue file was rebuilt from the log", found, extra={"event": "queue_file_rebuilt"})

    async def settle(self) -> None:
        """Wait for the end of a pass over the log that is under way."""
        async with self._rebuilding:
            pass

    def _has_file(self, queue: ConsumeQueue, number: int) -> bool:
        return queue is self._queues.get(queue.key) and number in queue.file_numbers()

    async def offset_for_position(self, topic: str, queue_id: int, pos: int) -> int:
        """The first offset whose message lies at or behind a position of the log; the queue's maximum when there is none."""
        low, high = self.bounds(topic, queue_id, for_service=True)
        while low < high:
            middle = (low + high) // 2
            units = await self.units(topic, queue_id, middle, 1)
            if len(units) and int(units["pos"][0]) < pos:
                low = middle + 1
            else:
                high = middle
        return low

    async def offset_for_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset whose message was stored at or after ``timestamp_ms``; the queue's maximum when there is none."""
        low, high = self.bounds(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        while low < high:
            middle = (low + high) // 2
            if middle < queue.min_offset or await self._store_time(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def time_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at ``offset`` was stored, milliseconds since 1970; None when there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        return await self._store_time(queue, offset)

    async def _store_time(self, queue: ConsumeQueue, offset: int) -> int:
        for _ in range(REPAIRS_PER_READ):
            try:
                return await self._time_in(queue, offset)
            except (FrameMismatchError, DamagedQueueFileError, OffsetOutOfRangeError) as found:
                if offset < queue.min_offset:
                    return 0  # deleted meanwhile
                if not isinstance(found, OffsetOutOfRangeError):
                    await self._repair(queue, found)
        return await self._time_in(queue, offset)

    async def _time_in(self, queue: ConsumeQueue, offset: int) -> int:
        units = await queue.read(offset, 1)
        if not len(units):  # the topic was deleted meanwhile
            raise outside(queue.key, offset, queue.min_offset, queue.max_offset)
        return await store_time(self._log, units[0], offset)


def _first(count: int, units: Units, offsets: Offsets, next_offset: int) -> tuple[Units, Offsets, int]:
    """The first of some messages, and where reading goes on behind them."""
    if count >= len(units):
        return units, offsets, next_offset
    return units[:count], offsets[:count], int(offsets[count - 1]) + 1


def _chunk(units: Units, offsets: Offsets, next_offset: int, frames: list[bytes | memoryview], *, contiguous: bool) -> Chunk:
    return Chunk(
        int(offsets[0]),
        next_offset,
        len(units),
        units["size"].astype(">u4").tobytes(),
        frames,
        int(units["size"].sum(dtype=np.int64)),
        b"" if contiguous else offsets.astype(">u8").tobytes(),
        first_pos=int(units["pos"][0]),
    )


def _runs(frames: bytes | memoryview, starts: Offsets, ends: Offsets, chosen: Offsets) -> list[bytes | memoryview]:
    """The chosen frames as views, neighbours in one."""
    breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
    firsts = starts[chosen[np.concatenate(([0], breaks))]]
    lasts = ends[chosen[np.concatenate((breaks - 1, [len(chosen) - 1]))]]
    view = memoryview(frames)
    return [view[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def _check_range(key: QueueKey, queue: ConsumeQueue | None, offset: int) -> None:
    low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
    if not low <= offset <= high:
        raise outside(key, offset, low, high)


def outside(key: QueueKey, offset: int, low: int, high: int) -> OffsetOutOfRangeError:
    """The error about an offset that a queue does not have."""
    text = f"{key[0]}/{key[1]}: offset {offset} is outside {low} to {high}"
    return OffsetOutOfRangeError(text, topic=key[0], queue_id=key[1], min_offset=low, max_offset=high)
