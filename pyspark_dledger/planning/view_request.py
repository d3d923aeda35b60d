"""What a view of the cluster is needed for: which topics and queues, at which times, and what may be missing."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from pyspark_dledger.options.model import STAGING_TOPIC, ReadOptions
from pyspark_dledger.planning.queue_offsets import QueueId


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
