"""How much traffic there was at this node in the last minute, hour and day: of topics, of groups in a topic, and in all.

Owns snapshots of the counters of ``store/traffic.py`` and ``broker/support/measures.py``, two for each window: the work does not depend on
how many messages there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.node import BrokerNode
from broker.support.limits import in_slices

LOOK_S = 10.0
Counted = tuple[int, int, int, int]  # messages in, bytes in, messages out, bytes out
NOTHING: Counted = (0, 0, 0, 0)
ALL = ""  # in place of a topic
IN = "@"  # between a topic and a group, as tools name what the group got of the topic; no name has it


@dataclass(slots=True)
class _Snapshot:
    at_ms: int
    counts: Mapping[str, Counted]


@dataclass(slots=True)
class _Window:
    """The traffic since ``older``, which is between one and two times the window ago."""

    length_ms: int
    older: _Snapshot
    newer: _Snapshot


@dataclass(frozen=True, slots=True)
class Rate:
    """Traffic of a time."""

    counts: Counted = field(default=NOTHING)
    time_ms: int = 1

    def per_s(self, number: int) -> float:
        return self.counts[number] * 1000 / self.time_ms


class TrafficWindows:
    """Of one node; ``run`` it until it is cancelled."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        start = _Snapshot(node.store.time.now_ms(), {})
        self._windows = {name: _Window(seconds * 1000, start, start) for name, seconds in (("Minute", 60), ("Hour", 3600), ("Day", 86_400))}
        self._ten_s = _Window(int(LOOK_S * 1000), start, start)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take a snapshot for the windows that are over."""
        now_ms = self._node.store.time.now_ms()
        due = [window for window in (self._ten_s, *self._windows.values()) if now_ms - window.newer.at_ms >= window.length_ms]
        if not due:
            return
        counts = {ALL: self.total}
        if due != [self._ten_s]:
            async for topic, counted in in_slices(list(self._node.store.traffic.topics.items())):
                counts[topic] = counted.values
            async for (topic, group), got in in_slices(list(self._node.measures.given.counts.items())):
                counts[f"{topic}{IN}{group}"] = (0, 0, *got)
        for window in due:
            window.older, window.newer = window.newer, _Snapshot(now_ms, counts)

    @property
    def total(self) -> Counted:
        """Since the node's start."""
        return self._node.store.traffic.total.values

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._windows)

    def lately(self) -> Rate:
        """All traffic of the last ten to twenty seconds."""
        return self._since(self._ten_s, ALL, self.total)

    def of(self, window: str, name: str = ALL) -> Rate | None:
        """Of all, of a topic, or of what a group got of a topic.  None for what had no traffic since the node's start."""
        counts = self._now(name)
        return self._since(self._windows[window], name, counts) if counts is not None else None

    def _now(self, name: str) -> Counted | None:
        if not name:
            return self.total
        topic, in_topic, group = name.partition(IN)
        if in_topic:
            got = self._node.measures.given.counts.get((topic, group))
            return None if got is None else (0, 0, *got)
        known = self._node.store.traffic.topics.get(topic)
        return None if known is None else known.values

    def _since(self, window: _Window, name: str, counts: Counted) -> Rate:
        before = window.older.counts.get(name, NOTHING)
        (a, b, c, d), (e, f, g, h) = counts, before
        passed_ms = max(1, self._node.store.time.now_ms() - window.older.at_ms)
        return Rate((max(0, a - e), max(0, b - f), max(0, c - g), max(0, d - h)), passed_ms)
