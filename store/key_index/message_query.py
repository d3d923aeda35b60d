"""Finding single messages on any replica: by key, by unique id, by their place in the log.

Owns the proof that what is found is what was asked for.  The index or the caller only proposes positions: a message is one when the
frame there is whole, says this position itself, and the unit of the queue and offset it names leads back to it.  So hash collisions, what
belonged to a deleted topic, and positions inside a message body never come out, and only what is applied, hence committed, does.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger_wire.errors import CorruptFrameError, InvalidArgumentError, NotReadyError
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.frames.frame_layout import MIN_FRAME_SIZE
from dledger_wire.java_hash import key_hash, key_words
from store.append.dispatcher import Applied
from store.key_index.index_file import Window
from store.key_index.indexer import KeyIndex
from store.log_view import ReadableLog
from store.queues.queue_reader import QueueReader
from store.queues.queue_table import QueueTable
from store.settings import StoreSettings

CATCH_UP_S = 1.0
MAX_RESULTS = 1024
MAX_LOOKED_AT = 4096  # messages read for one answer, wanted or not
READ_IN_ONE_TURN = 64  # messages; other work of the event loop runs in between
DEFAULT_BYTES = 4 << 20
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message and its frame's bytes."""

    pos: int
    frame: Frame
    data: bytes


@dataclass(slots=True)
class Answer:
    """Messages, newest first.  ``complete`` False: there may be more that the index does not cover yet, or that there was no room for.
    ``before_pos``: with what to ask for those behind, 0 when there are none."""

    messages: list[FoundMessage] = field(default_factory=list)
    complete: bool = True
    before_pos: int = 0


class MessageQuery:
    """Answers out of a replica's log, queues and index."""

    def __init__(
        self,
        settings: StoreSettings,
        log: ReadableLog,
        queues: QueueTable,
        reader: QueueReader,
        index: KeyIndex | None,
        applied: Callable[[], Applied],
    ) -> None:
        self._settings = settings
        self._log = log
        self._queues = queues
        self._reader = reader
        self._index = index
        self._applied = applied

    async def by_key(self, topic: str, key: str, window: Window, *, max_results: int = 0, max_bytes: int = 0) -> Answer:
        """Messages of a topic that have ``key`` among the words of KEYS; 0 for the defaults."""
        return await self._find(
            [topic], key, window, max_results, max_bytes, lambda frame: key in key_words(frame.properties.get("KEYS", ""))
        )

    async def by_unique_id(
        self, topics: Sequence[str], unique_id: str, window: Window, *, max_results: int = 0, max_bytes: int = 0
    ) -> Answer:
        """Messages of these topics that their producer gave this id: more than one where it sent again, or where a copy was stored."""
        return await self._find(
            topics, unique_id, window, max_results, max_bytes, lambda frame: frame.properties.get("UNIQ_KEY") == unique_id
        )

    async def _find(
        self, topics: Sequence[str], key: str, window: Window, max_results: int, max_bytes: int, is_wanted: Callable[[Frame], bool]
    ) -> Answer:
        if self._index is None:
            raise NotReadyError("this node has no key index (messageIndexEnable is off)")
        if not key or max_results < 0 or max_results > MAX_RESULTS:
            raise InvalidArgumentError(f"key {key!r}, at most {max_results} results; expected a key, and 1 to {MAX_RESULTS} results")
        max_results, left_bytes = max_results or self._settings.defaultQueryMaxNum, min(max_bytes or DEFAULT_BYTES, MAX_BYTES)
        end = self._applied().index
        await self._index.caught_up(end, CATCH_UP_S)
        answer, looked_at = Answer(), 0
        for topic in topics:
            last_pos = -1
            async for pos in self._index.find(key_hash(topic, key), window):
                if pos == last_pos:
                    continue  # the same word twice in a message
                if looked_at >= MAX_LOOKED_AT:  # others of the same hash, of which there may be many
                    answer.complete &= len(topics) == 1
                    answer.before_pos = last_pos if len(topics) == 1 else 0
                    break
                last_pos, looked_at = pos, looked_at + 1
                if looked_at % READ_IN_ONE_TURN == 0:
                    await asyncio.sleep(0)
                found = await self.at(pos)
                if found is None or found.frame.topic != topic or not is_wanted(found.frame):
                    continue
                if not window.begin_ms <= found.frame.store_timestamp <= window.end_ms:
                    continue
                if answer.messages and (len(answer.messages) >= max_results or len(found.data) > left_bytes):
                    answer.complete &= len(topics) == 1
                    answer.before_pos = answer.messages[-1].pos if len(topics) == 1 else 0
                    break
                answer.messages.append(found)
                left_bytes -= len(found.data)
        answer.messages.sort(key=lambda found: -found.pos)
        answer.complete &= self._index.files.is_whole(end)
        return answer

    async def at(self, pos: int) -> FoundMessage | None:
        """The message whose frame begins at a position of the log; None when there is none, not yet, or not any more."""
        limit = self._limit(pos)
        if pos < self._log.first_pos or pos + MIN_FRAME_SIZE > limit:
            return None
        try:
            head = await self._log.read_bytes(pos, 4)
            size = int.from_bytes(head, "big")
            if not MIN_FRAME_SIZE <= size <= limit - pos or pos < self._log.first_pos:
                return None
            data = await self._log.read_bytes(pos, size)
            frame = decode_frame(data)
        except (CorruptFrameError, FileNotFoundError):
            return None
        if frame.physical_offset != pos or not await self._leads_back(frame, pos, size):
            return None
        return FoundMessage(pos, frame, data)

    def _limit(self, pos: int) -> int:
        """Where what may be read behind ``pos`` ends: at the end of its file, or of what is applied."""
        starts = [segment.start_pos for segment in self._log.segments]
        following = bisect_right(starts, pos)
        end = self._applied().end_pos
        return min(starts[following], end) if following < len(starts) else end

    async def _leads_back(self, frame: Frame, pos: int, size: int) -> bool:
        queue = self._queues.get((frame.topic, frame.queue_id))
        if queue is None or not queue.min_offset <= frame.queue_offset < queue.max_offset:
            return False
        units = await self._reader.units(frame.topic, frame.queue_id, frame.queue_offset, 1)
        return bool(len(units)) and int(units[0]["pos"]) == pos and int(units[0]["size"]) == size
