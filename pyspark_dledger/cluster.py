"""What a query must know of the cluster before it plans: queue bounds, topic incarnations, who holds what.

Owns the one look at the cluster; it runs on the driver.  Bounds are the leaders' word, so a plan never misses what was committed before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_client import PullConsumer
from pyspark_dledger.options import ReadOptions
from pyspark_dledger.plan import QueueBounds, QueueId

LOOK_TIMEOUT_MS = 15_000


@dataclass(slots=True)
class View:
    """``incarnations`` by topic (of all its groups, joined); ``replicas`` by replica group, the leader first."""

    bounds: dict[QueueId, QueueBounds] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, list[str]] = field(default_factory=dict)


def describe(options: ReadOptions) -> View:
    """Ask the cluster.  UnreachableError, TopicNotFoundError, TopicPermissionError."""
    view = View()
    with PullConsumer(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.read_timeout_ms)) as consumer:
        for topic in options.topics:
            groups = consumer.topic(topic)
            view.incarnations[topic] = ",".join(f"{queues.group}:{queues.incarnation}" for queues in groups)
            held = consumer.offsets(topic, options.start.timestamp_ms)
            ends = consumer.offsets(topic, options.end.timestamp_ms) if options.end.timestamp_ms is not None else {}
            for (group, queue_id), offsets in held.items():
                view.bounds[QueueId(topic, group, queue_id)] = QueueBounds(
                    offsets.min_offset,
                    offsets.max_offset,
                    offsets.at_time if options.start.timestamp_ms is not None else None,
                    ends[group, queue_id].at_time if (group, queue_id) in ends else None,
                )
        view.replicas = consumer.replicas()
    return view
