"""When consumer groups passed which offsets, as replicated state: a message trace reads it.

Owns config/commitTimes.json.  Of each group and queue some commits are kept, (offset, time): the newest ones all, of older ones fewer and
fewer.  So the time at which a message was passed is known as a span between two commits, narrow for recent messages, wide for old ones.
"""

from __future__ import annotations

from bisect import bisect_right

from store.commands.command import JsonObject
from store.state.json_pieces import encode
from store.state.row_table import RowTable
from store.state.state_machine import CommandHandlers

MAX_POINTS = 16  # of a group in a queue

GroupTopic = tuple[str, str]
Points = list[list[int]]  # [offset, time], both rising
Span = tuple[int, int]  # after, and not after; ms since 1970, 0: not known


class OffsetHistory:
    """Implements ``StateMachineSection``; ``ConsumerOffsets`` reports every commit."""

    file_name = "commitTimes.json"

    def __init__(self) -> None:
        self._points: RowTable[GroupTopic, dict[int, Points]] = RowTable(dict, _encoded)  # by queue

    def committed(self, group: str, topic: str, queue_id: int, offset: int, at_ms: int) -> None:
        """The group's position became ``offset``."""
        points = self._of(group, topic, queue_id)
        if points and offset <= points[-1][0]:
            return
        points = [*points, [offset, at_ms]]
        if len(points) > MAX_POINTS:
            # Every second one of the older half goes; the first stays, so that something is known of everything since.
            half = MAX_POINTS // 2
            points = points[:half:2] + points[half:]
        self._points.change((group, topic), dict)[queue_id] = points

    def went_to(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group's position was reset: what lies behind it is to be consumed again."""
        points = self._of(group, topic, queue_id)
        if not points:
            return
        queues = self._points.change((group, topic), dict)
        queues[queue_id] = points[: bisect_right(points, offset, key=lambda point: point[0])]
        if not queues[queue_id]:
            del queues[queue_id]
        if not queues:
            self._points.pop((group, topic))

    def passed(self, group: str, topic: str, queue_id: int, offset: int) -> Span:
        """When the group came past a message that it has passed: after the first time, by the second; 0 where that is not known."""
        points = self._of(group, topic, queue_id)
        at = bisect_right(points, offset, key=lambda point: point[0])
        if at == len(points):
            return 0, 0
        return (points[at - 1][1] if at else 0), points[at][1]

    def moved_at_ms(self, group: str, topic: str, queue_id: int) -> int:
        """When the group's position changed last; 0 when that is not known."""
        points = self._of(group, topic, queue_id)
        return points[-1][1] if points else 0

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._points if key[1] == topic]:
            self._points.pop(key)

    def _of(self, group: str, topic: str, queue_id: int) -> Points:
        """The lists are replaced, never changed: snapshots share them."""
        queues = self._points.get((group, topic))
        return [] if queues is None else queues.get(queue_id, [])

    # Section

    def register(self, handlers: CommandHandlers) -> None:
        """No command changes it: ``ConsumerOffsets`` does."""

    def dump(self) -> JsonObject:
        table: JsonObject = {}
        for key, queues in self._points.items():
            table |= _named(key, queues)
        return {"commitTable": table}

    def capture(self) -> JsonObject:
        return {"commitTable": self._points.capture()}

    def load(self, data: JsonObject) -> None:
        found: dict[GroupTopic, dict[int, Points]] = {}
        for name, points in data["commitTable"].items():
            topic, group, queue_id = name.split("@")
            found.setdefault((group, topic), {})[int(queue_id)] = [[offset, at_ms] for offset, at_ms in points]
        self._points.load(found.items())


def _named(key: GroupTopic, queues: dict[int, Points]) -> JsonObject:
    group, topic = key
    return {f"{topic}@{group}@{queue_id}": points for queue_id, points in queues.items()}


def _encoded(key: GroupTopic, queues: dict[int, Points]) -> bytes:
    return encode(_named(key, queues))[1:-1]
