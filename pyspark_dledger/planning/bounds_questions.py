"""What a view of the cluster is needed for, and the questions to a replica group for the bounds of its queues.

Owns what is asked how, in requests that brokers take: a topic at a time, whose queues are answered packed; single queues where a time is
to be found.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dledger_wire._pb import broker_pb2
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from pyspark_dledger.options.model import STAGING_TOPIC, ReadOptions
from pyspark_dledger.planning.queue_offsets import Array, PartBounds, QueueId, TopicPart, no_offsets


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """What a view is needed for.

    ``may_lack``: topics that need not exist.  ``start_times``: resolve the timestamps of the start as well.  ``whole``:
    for a batch or the start of a stream, which must see every matching topic and every queue, so no group may be
    unreachable (with failOnDataLoss=false and named topics, one may).  ``from_leaders``: what followers have committed
    does not do, and leaders make sure that they lead.  ``groups``: the only replica groups to ask, None for all that may have the topics.
    """

    options: ReadOptions
    may_lack: Collection[str] = ()
    start_times: bool = True
    whole: bool = True
    from_leaders: bool = False
    groups: Collection[str] | None = None

    @property
    def has_times(self) -> bool:
        """Whether any queue has a timestamp to resolve."""
        options, filters = self.options, self.options.filters
        return options.end.has_times or (self.start_times and (options.start.has_times or {filters.since_ms, filters.until_ms} != {None}))

    def timestamps(self, queue: QueueId) -> list[int]:
        """The timestamps to resolve in a queue."""
        options = self.options
        asked = [options.end.time_of(*queue)]
        if self.start_times:
            asked += [options.start.time_of(*queue), options.filters.since_ms, options.filters.until_ms]
        return list(dict.fromkeys(moment for moment in asked if moment is not None))

    def asks_for(self, topic: str) -> bool:
        """Whether the options name the topic, or their pattern matches it."""
        return topic in self.options.topics if self.options.topics else self.matches(topic)

    def matches(self, name: str) -> bool:
        """Whether the topic pattern matches ``name``; system topics never match."""
        own = is_system_topic(name) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or name == STAGING_TOPIC
        return not own and re.fullmatch(self.options.topic_pattern, name) is not None


NAMES_A_REQUEST, SEARCHES_A_REQUEST = 5_000, 1_000  # brokers take 10 000 of each
QUEUES_A_REQUEST = 100_000  # of topics; brokers take twice as many, in case some were added since they were counted

Ask = Callable[[broker_pb2.OffsetsRequest], Awaitable[broker_pb2.OffsetsResponse]]


class BoundsQuestions:
    """Questions of one look at a replica group."""

    def __init__(self, group: str, wanted: ViewRequest, ask: Ask) -> None:
        self._group, self._wanted, self._ask = group, wanted, ask

    async def bounds(self, counts: Mapping[TopicPart, int]) -> dict[TopicPart, PartBounds]:
        """The bounds of the selected queues; ``counts``: how many queues each part has.  Parts without any are left out."""
        wanted, filters = self._wanted, self._wanted.options.filters
        if not wanted.has_times and filters.every_queue:
            return await self._of_topics(counts)
        chosen = {part: [number for number in range(count) if filters.has_queue(*part, number)] for part, count in counts.items()}
        searches: list[tuple[QueueId, int]] = []
        whole: dict[TopicPart, int] = {}
        for part, numbers in chosen.items():
            moments = {number: wanted.timestamps(QueueId(*part, number)) for number in numbers} if wanted.has_times else {}
            searches += [(QueueId(*part, number), moment) for number, some in moments.items() for moment in some]
            if sum(map(bool, moments.values())) < len(numbers):
                whole[part] = counts[part]
        found = await self._of_topics(whole)
        await self._of_queues(searches, found)
        return {part: held if filters.every_queue else _only(held, chosen[part]) for part, held in found.items()}

    async def _of_topics(self, counts: Mapping[TopicPart, int]) -> dict[TopicPart, PartBounds]:
        found: dict[TopicPart, PartBounds] = {}
        for page in _pages(counts):
            answer = await self._ask(broker_pb2.OffsetsRequest(topics=[part.topic for part in page]))
            for entry in answer.topics:
                found[TopicPart(entry.topic, self._group)] = PartBounds(_unpacked(entry.min_offsets), _unpacked(entry.max_offsets))
        return found

    async def _of_queues(self, asked: Sequence[tuple[QueueId, int]], found: dict[TopicPart, PartBounds]) -> None:
        """Add to ``found`` the bounds of single queues, and their offsets at the times given with them."""
        counts: dict[TopicPart, int] = {}
        for queue, _ in asked:
            counts[queue.part] = max(counts.get(queue.part, 0), queue.queue_id + 1)
        for first in range(0, len(asked), SEARCHES_A_REQUEST):
            page = asked[first : first + SEARCHES_A_REQUEST]
            refs = [broker_pb2.QueueRef(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=moment) for queue, moment in page]
            answer = await self._ask(broker_pb2.OffsetsRequest(queues=refs))
            for (queue, moment), entry in zip(page, answer.queues, strict=True):
                held = found.setdefault(queue.part, PartBounds(no_offsets(counts[queue.part]), no_offsets(counts[queue.part])))
                held.min_offsets[queue.queue_id], held.max_offsets[queue.queue_id] = entry.min_offset, entry.max_offset
                held.by_time.setdefault(moment, no_offsets(len(held.max_offsets)))[queue.queue_id] = entry.offset_for_time


def _pages(counts: Mapping[TopicPart, int]) -> list[list[TopicPart]]:
    pages: list[list[TopicPart]] = []
    queues = 0
    for part, count in counts.items():
        if not pages or queues + count > QUEUES_A_REQUEST or len(pages[-1]) >= NAMES_A_REQUEST:
            pages.append([])
            queues = 0
        pages[-1].append(part)
        queues += count
    return pages


def _unpacked(offsets: bytes) -> Array:
    return np.frombuffer(offsets, dtype=">u8").astype(np.int64)


def _only(held: PartBounds, numbers: Sequence[int]) -> PartBounds:
    """The bounds of some of the queues."""
    count = len(held.max_offsets)
    some = [number for number in numbers if number < count]
    found = PartBounds(no_offsets(count), no_offsets(count), held.by_time)
    found.min_offsets[some], found.max_offsets[some] = held.min_offsets[some], held.max_offsets[some]
    return found
