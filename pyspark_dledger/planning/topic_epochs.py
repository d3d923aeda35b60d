"""Lives of a topic: one that was deleted and made again has another incarnation in each replica group, and its offsets begin anew.

Owns the text ``group:incarnation,group:incarnation`` that stands in checkpoints, and the comparing of such texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger.planning.partitions import QueueId


def joined(by_group: Mapping[str, str]) -> str:
    return ",".join(f"{group}:{made}" for group, made in sorted(by_group.items()))


def by_group(text: str) -> dict[str, str]:
    return {group: made for group, _, made in (part.rpartition(":") for part in text.split(",") if part)}


def groups_of(incarnations: Mapping[str, str]) -> dict[str, set[str]]:
    """The replica groups of each topic."""
    return {topic: set(by_group(text)) for topic, text in incarnations.items()}


def merged(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What is known of all topics: a group that is silent, or a topic that is gone, stays what it was."""
    return {topic: joined(by_group(before.get(topic, "")) | by_group(now.get(topic, ""))) for topic in sorted({*before, *now})}


def is_remade(queue: QueueId, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether offsets of the queue from ``before`` say nothing about the queue there is ``now``."""
    was, made = (by_group(each.get(queue.topic, "")).get(queue.group) for each in (before, now))
    return was is not None and made is not None and was != made


def check_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """OffsetOutOfRangeError when a topic is gone, or another one than before."""
    for topic, incarnation in before.items():
        if topic not in now:
            raise OffsetOutOfRangeError(f"topic {topic} is gone; set failOnDataLoss to false to go on without it")
        # A group that joined is no loss.
        if any(is_remade(QueueId(topic, group, 0), before, now) for group in by_group(incarnation)):
            raise OffsetOutOfRangeError(
                f"topic {topic} was deleted and made again since the checkpoint; set failOnDataLoss to false to read the new one"
            )
