"""When consumer groups passed which offsets, as replicated state: a message trace reads it.

Owns config/commitTimes.json.  Of each group and queue some commits are kept, (offset, time): the newest ones all, of older ones fewer and
fewer.  So the time at which a message was passed is known as a span between two commits, narrow for recent messages, wide for old ones.
"""

from __future__ import annotations

from bisect import bisect_right

from store.commands.command import JsonObject
from store.state.state_machine import CommandHandlers

MAX_POINTS = 16  # of a group in a queue

Place = tuple[str, str, int]  # consumer group, topic, queue
Span = tuple[int, int]  # after, and not after; ms since 1970, 0: not known


class OffsetHistory:
    """Implements ``StateMachineSection``; ``ConsumerOffsets`` reports every commit."""

    file_name = "commitTimes.json"

    def __init__(self) -> None:
        self._points: dict[Place, list[list[int]]] = {}  # [offset, time], both rising

    def committed(self, group: str, topic: str, queue_id: int, offset: int, at_ms: int) -> None:
        """The group's position became ``offset``."""
        points = self._points.setdefault((group, topic, queue_id), [])
        if points and offset <= points[-1][0]:
            return
        points.append([offset, at_ms])
        if len(points) > MAX_POINTS:
            # Every second one of the older half goes; the first stays, so that something is known of everything since.
            half = MAX_POINTS // 2
            self._points[group, topic, queue_id] = points[:half:2] + points[half:]

    def went_to(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group's position was reset: what lies behind it is to be consumed again."""
        points = self._points.get((group, topic, queue_id), [])
        del points[bisect_right(points, offset, key=lambda point: point[0]) :]
        if not points:
            self._points.pop((group, topic, queue_id), None)

    def passed(self, group: str, topic: str, queue_id: int, offset: int) -> Span:
        """When the group came past a message that it has passed: after the first time, by the second; 0 where that is not known."""
        points = self._points.get((group, topic, queue_id), [])
        at = bisect_right(points, offset, key=lambda point: point[0])
        if at == len(points):
            return 0, 0
        return (points[at - 1][1] if at else 0), points[at][1]

    def forget_topic(self, topic: str) -> None:
        for place in [place for place in self._points if place[1] == topic]:
            del self._points[place]

    # Section

    def register(self, handlers: CommandHandlers) -> None:
        """No command changes it: ``ConsumerOffsets`` does."""

    def dump(self) -> JsonObject:
        return {"commitTable": {f"{topic}@{group}@{queue_id}": list(points) for (group, topic, queue_id), points in self._points.items()}}

    def load(self, data: JsonObject) -> None:
        self._points = {}
        for name, points in data["commitTable"].items():
            topic, group, queue_id = name.split("@")
            self._points[group, topic, int(queue_id)] = [[offset, at_ms] for offset, at_ms in points]
