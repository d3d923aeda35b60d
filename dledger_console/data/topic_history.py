"""Topics as a page watches them: all names, what each holds, and how fast it grows since the last look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dledger_client.admin.calls import Listed
from dledger_client.admin.diagnostics import NodeTraffic
from dledger_client.admin.topics import ChangedTopic, joined
from dledger_client.aio import Admin, DledgerError, QueueRange
from dledger_console.data.topics import list_topics, ranges
from dledger_console.history.series import GAP_MS

RATE_MS = 10_000  # rates are over at least so long: a list that jumps cannot be read


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """All topics at one time, what each holds, and what each node has given to readers since its start."""

    topics: Listed[ChangedTopic]
    ranges: Mapping[str, Listed[QueueRange]] = field(default_factory=dict)
    traffic: Sequence[NodeTraffic] = ()


async def look_at_topics(admin: Admin) -> TopicsSeen:
    """Two or three calls to each replica group, however many topics there are."""
    found = await list_topics(admin)
    held = await ranges(admin, [row.topic for row in found])
    return TopicsSeen(found, held, await _traffic(admin))


async def look_at_topic(admin: Admin, name: str) -> TopicsSeen:
    """One topic alone.  TopicNotFoundError when there is none."""
    parts = await admin.describe_topic(name)
    held = await ranges(admin, [name])
    return TopicsSeen(Listed([joined(parts, created=False)], held[name].unanswered), held, await _traffic(admin))


async def _traffic(admin: Admin) -> Sequence[NodeTraffic]:
    try:
        return await admin.topic_traffic()
    except DledgerError:  # a user that may see topics need not be allowed to ask nodes; rates of reading are not known then
        return ()


class TopicRates:
    """Messages a second into each topic, over the last ten seconds or more."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, dict[str, int], dict[tuple[str, int], NodeTraffic]]] = []

    def take(self, at_ms: int, seen: TopicsSeen) -> None:
        """A look at the topics.  One that missed a replica group does not count: its totals would seem to fall.  After a time without looks
        rates start again."""
        if self._looks and at_ms - self._looks[-1][0] > GAP_MS:
            self._looks.clear()
        written = {name: sum(queue.max_offset for queue in each) for name, each in seen.ranges.items() if not each.unanswered}
        self._looks.append((at_ms, written, {(node.node, node.started_at_ms): node for node in seen.traffic}))
        while len(self._looks) > 2 and at_ms - self._looks[1][0] >= RATE_MS:
            del self._looks[0]

    def rate(self, topic: str) -> float | None:
        """Messages a second; None while it is not known."""
        if len(self._looks) < 2:
            return None
        (then_ms, before, _), (now_ms, after, _) = self._looks[0], self._looks[-1]
        if topic not in before or topic not in after or after[topic] < before[topic] or now_ms <= then_ms:
            return None
        return (after[topic] - before[topic]) * 1000 / (now_ms - then_ms)

    def rate_out(self, topic: str) -> float | None:
        """Messages a second to readers, of the nodes that answered both times and were not restarted; None when there are none."""
        if len(self._looks) < 2:
            return None
        (then_ms, _, before), (now_ms, _, after) = self._looks[0], self._looks[-1]
        nodes = before.keys() & after.keys()
        if not nodes or now_ms <= then_ms:
            return None
        return sum(_out(after[node], topic) - _out(before[node], topic) for node in nodes) * 1000 / (now_ms - then_ms)


def _out(node: NodeTraffic, topic: str) -> int:
    counted = node.topics.get(topic)
    return 0 if counted is None else counted.messages_out
