"""Topic epochs: a topic that is deleted and created again gets a new epoch in each replica group, and its offsets start
at 0.

Owns the text ``group:epoch,group:epoch`` that streaming checkpoints store, and its comparison.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger.planning.partitions import QueueId


def joined(by_group: Mapping[str, str]) -> str:
    return ",".join(f"{group}:{made}" for group, made in sorted(by_group.items()))


def by_group(text: str) -> dict[str, str]:
    return {group: made for group, _, made in (part.rpartition(":") for part in text.split(",") if part)}


def groups_of(topic_epochs: Mapping[str, str]) -> dict[str, set[str]]:
    """The replica groups of each topic."""
    return {topic: set(by_group(text)) for topic, text in topic_epochs.items()}


def merged(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Both maps combined; ``now`` wins.  Groups that did not answer and topics that no longer exist keep their entry."""
    return {topic: joined(by_group(before.get(topic, "")) | by_group(now.get(topic, ""))) for topic in sorted({*before, *now})}


def is_recreated(queue: QueueId, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the topic was recreated between the two, so that offsets from ``before`` do not apply ``now``."""
    was, made = (by_group(each.get(queue.topic, "")).get(queue.group) for each in (before, now))
    return was is not None and made is not None and was != made


def check_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise OffsetOutOfRangeError if a topic was deleted or recreated."""
    for topic, incarnation in before.items():
        if topic not in now:
            raise OffsetOutOfRangeError(f"topic {topic} no longer exists; set failOnDataLoss to false to continue without it")
        # A replica group that was added is no data loss.
        if any(is_recreated(QueueId(topic, group, 0), before, now) for group in by_group(incarnation)):
            raise OffsetOutOfRangeError(
                f"topic {topic} was deleted and recreated since the checkpoint; set failOnDataLoss to false to read the new topic"
            )
