"""Topic epochs: a topic that is deleted and created again gets a new epoch in each replica group, and its offsets start
at 0.

Owns the text ``group:epoch,group:epoch`` that streaming checkpoints store, and its comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger_wire.errors import OffsetOutOfRangeError


def joined(by_group: Mapping[str, str]) -> str:
    return ",".join(f"{group}:{made}" for group, made in sorted(by_group.items()))


def by_group(text: str) -> dict[str, str]:
    return {group: made for group, _, made in (part.rpartition(":") for part in text.split(",") if part)}


def groups_of(topic_epochs: Mapping[str, str]) -> dict[str, set[str]]:
    """The replica groups of each topic."""
    return {topic: set(by_group(text)) for topic, text in topic_epochs.items()}


def merged(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Both maps combined; ``now`` wins.  Groups that did not answer and topics that no longer exist keep their entry."""
    return {
        topic: now.get(topic, "")
        if before.get(topic, "") in ("", now.get(topic))
        else joined(by_group(before[topic]) | by_group(now.get(topic, "")))
        for topic in sorted({*before, *now})
    }


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> set[tuple[str, str]]:
    """(topic, replica group) of what was recreated between the two, so that offsets from ``before`` do not apply ``now``."""
    found = set()
    for topic, text in before.items():
        if text == now.get(topic):
            continue
        made = by_group(now.get(topic, ""))
        found |= {(topic, group) for group, was in by_group(text).items() if made.get(group, was) != was}
    return found


def check_same(before: Mapping[str, str], now: Mapping[str, str], asks_for: Callable[[str], bool] = lambda _topic: True) -> None:
    """Raise OffsetOutOfRangeError if a topic was deleted or recreated, or if the query no longer ``asks_for`` it."""
    remade = {topic for topic, _ in recreated(before, now)}
    for topic in before:
        if topic not in now and not asks_for(topic):
            raise OffsetOutOfRangeError(
                f"topic {topic} is in the checkpoint, but no longer among the topics of the query; name it, use another checkpoint, "
                "or set failOnDataLoss to false to continue without it"
            )
        if topic not in now:
            raise OffsetOutOfRangeError(f"topic {topic} no longer exists; set failOnDataLoss to false to continue without it")
        # A replica group that was added is no data loss.
        if topic in remade:
            raise OffsetOutOfRangeError(
                f"topic {topic} was deleted and recreated since the checkpoint; set failOnDataLoss to false to read the new topic"
            )
