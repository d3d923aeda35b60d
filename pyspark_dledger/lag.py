"""Lag of streaming queries, computed from their progress reports (the Python data source API has no custom metrics).

spark.streams.addListener(LagListener(lambda lag: print(lag.query, lag.messages, lag.by_topic)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from dledger_wire import strict_json
from pyspark_dledger.planning.checkpoint import from_json
from pyspark_dledger.planning.queue_offsets import QueueId, by_queue

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


@dataclass(frozen=True, slots=True)
class Lag:
    """Committed messages that a query has not read yet.  ``most``: lag of its slowest queue.  ``by_queue``: by (topic,
    "group:queue").
    """

    query: str
    batch_id: int
    messages: int
    most: int
    by_topic: Mapping[str, int]
    by_queue: Mapping[tuple[str, str], int]


def lag_of(progress: StreamingQueryProgress) -> Lag | None:
    """The lag in one progress report; None if it has no dledger source or no latest offset (PySpark 4.1)."""
    lags: dict[tuple[str, str], int] = {}
    found = False
    for source in progress.sources:
        latest, end = _offsets(source.latestOffset), _offsets(source.endOffset)
        if latest is None or end is None:
            continue
        found = True
        for queue, offset in latest.items():
            place = (queue.topic, f"{queue.group}:{queue.queue_id}")
            lags[place] = lags.get(place, 0) + max(0, offset - end.get(queue, 0))
    if not found:
        return None
    by_topic: dict[str, int] = {}
    for (topic, _), messages in lags.items():
        by_topic[topic] = by_topic.get(topic, 0) + messages
    name = progress.name or str(progress.id)
    return Lag(name, progress.batchId, sum(lags.values()), max(lags.values(), default=0), by_topic, lags)


def _offsets(text: str | None) -> Mapping[QueueId, int] | None:
    """The offsets in a progress report; None if they are of another source."""
    try:
        loaded = strict_json.parse(text or "null")
    except ValueError:
        return None
    if not isinstance(loaded, dict) or "topics" not in loaded:
        return None
    return by_queue(from_json(loaded).offsets)


class LagListener(StreamingQueryListener):
    """Calls ``on_lag`` with the lag of every dledger query after each micro-batch; ``last`` holds the latest by query."""

    def __init__(self, on_lag: Callable[[Lag], object] | None = None) -> None:
        super().__init__()
        self.last: dict[str, Lag] = {}
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        lag = lag_of(event.progress)
        if lag is not None:
            self.last[lag.query] = lag
            if self._on_lag is not None:
                self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
