"""How fast consumer groups read, from their positions at one look after the other: what a page of the console reads is not in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger_client.admin.consumer_groups import ConsumerGroupDescription
from dledger_client.admin.group_answers import QueueId
from dledger_console.history.series import GAP_MS

RATE_MS = 10_000  # rates are over at least so long: a list that jumps cannot be read

Positions = Mapping[QueueId, int]


class GroupRates:
    """Messages a second that each consumer group passes, over the last ten seconds or more."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, dict[str, Positions]]] = []

    def take(self, at_ms: int, groups: Iterable[ConsumerGroupDescription]) -> None:
        """A look at the groups.  After a time without looks rates begin again."""
        if self._looks and at_ms - self._looks[-1][0] > GAP_MS:
            self._looks.clear()
        self._looks.append(
            (at_ms, {group.name: {queue.key: queue.offset for queue in group.queues if queue.offset is not None} for group in groups})
        )
        while len(self._looks) > 2 and at_ms - self._looks[1][0] >= RATE_MS:
            del self._looks[0]

    def rate(self, name: str) -> float | None:
        """Messages a second, of the queues that were seen both times; None while it is not known.  A reset back counts as nothing."""
        if len(self._looks) < 2:
            return None
        (then_ms, before), (now_ms, after) = self._looks[0], self._looks[-1]
        if name not in before or name not in after or now_ms <= then_ms:
            return None
        both = before[name].keys() & after[name].keys()
        if not both and after[name]:
            return None
        passed = sum(max(0, after[name][queue] - before[name][queue]) for queue in both)
        return passed * 1000 / (now_ms - then_ms)


def lag_by_topic(group: ConsumerGroupDescription) -> dict[str, int]:
    """Lag by topic, for a curve of each."""
    found: dict[str, int] = {}
    for queue in group.queues:
        found[queue.topic] = found.get(queue.topic, 0) + queue.lag
    return found
