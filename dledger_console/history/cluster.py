"""What the cluster did lately: rates and lags of replica groups, nodes and consumer groups, as the pages that are open saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_groups import ConsumerGroupDescription
from dledger_client.admin.group_progress import GroupProgress, GroupState
from dledger_console.history.groups import lag_by_topic
from dledger_console.history.series import Rate, Series

TREND_MS = 60_000  # a consumer group's lag is compared with that of so long ago
MAX_CONSUMER_GROUPS = 200  # whose lag is kept; the ones that are behind most


class ClusterHistory:
    """Series by name, each as long as ``Series`` keeps it."""

    def __init__(self) -> None:
        self._in: dict[str, Rate] = {}  # by "group node": a counter is a node's own
        self._out: dict[str, Rate] = {}
        self.messages_in: dict[str, Series] = {}  # messages a second by replica group
        self.messages_out: dict[str, Series] = {}
        self.entries_behind: dict[str, Series] = {}  # by node
        self.consumer_lag: dict[str, Series] = {}  # messages by consumer group

    def take_status(self, at_ms: int, groups: Sequence[ReplicaGroupStatus]) -> None:
        """Add what the nodes say now."""
        for group in groups:
            for node in group.nodes:
                self._count(at_ms, node)
                lag = group.lag(node)
                if lag is not None or node.id in self.entries_behind:
                    self.entries_behind.setdefault(node.id, Series()).add(at_ms, lag)
            self.messages_in.setdefault(group.name, Series()).add(at_ms, _sum(self._in, group))
            self.messages_out.setdefault(group.name, Series()).add(at_ms, _sum(self._out, group))
        _drop(self.messages_in, {group.name for group in groups})
        _drop(self.messages_out, {group.name for group in groups})
        nodes = {node.id for group in groups for node in group.nodes}
        _drop(self.entries_behind, nodes)
        _drop(self._in, nodes)
        _drop(self._out, nodes)

    def _count(self, at_ms: int, node: NodeStatus) -> None:
        process = f"{node.started_at_ms}"
        known = node.reachable
        self._in.setdefault(node.id, Rate()).add(at_ms, node.messages_in_total if known else None, process)
        self._out.setdefault(node.id, Rate()).add(at_ms, node.messages_out_total if known else None, process)

    def take_consumers(self, at_ms: int, groups: Sequence[ConsumerGroupDescription], *, complete: bool = True) -> None:
        """Add how far consumer groups are behind now; not ``complete``: a replica group did not say, which is a gap and not a fall."""
        kept = sorted(groups, key=lambda group: -group.lag)[:MAX_CONSUMER_GROUPS]
        for group in kept:
            self.consumer_lag.setdefault(group.name, Series()).add(at_ms, group.lag if complete else None)
        names = {group.name for group in kept}
        if complete:
            _drop(self.consumer_lag, names)
        for name in self.consumer_lag.keys() - names:
            self.consumer_lag[name].add(at_ms, None)


@dataclass(frozen=True, slots=True)
class Behind:
    """A consumer group that is behind.

    Attributes:
        name: The consumer group.
        lag: Messages it has not passed.
        topic: The topic in which it is behind most.
        state: What it does.
        growing: Whether it was less behind a minute ago, or since it is watched if that is less; None when that is not known.
    """

    name: str
    lag: int
    topic: str
    state: GroupState
    growing: bool | None


def furthest_behind(groups: Sequence[GroupProgress], history: ClusterHistory, most: int = 5) -> list[Behind]:
    """The consumer groups with the most messages before them; groups that have read everything are left out."""
    found = sorted((group for group in groups if group.lag), key=lambda group: -(group.lag or 0))[:most]
    return [_behind(group, history.consumer_lag.get(group.name)) for group in found]


def _behind(group: GroupProgress, series: Series | None) -> Behind:
    by_topic = lag_by_topic(group.group)
    topic = max(by_topic, key=lambda name: by_topic[name], default="")
    growing = _grows(series.points()) if series is not None else None
    return Behind(group.name, group.lag or 0, topic, group.state(), growing)


def _grows(points: Sequence[tuple[int, float | None]]) -> bool | None:
    lately = [value for at_ms, value in points if value is not None and at_ms >= points[-1][0] - TREND_MS]
    return lately[-1] > lately[0] if len(lately) > 1 else None


def _sum(rates: dict[str, Rate], group: ReplicaGroupStatus) -> float | None:
    known = [rates[node.id].series.last for node in group.nodes]
    found = [value for value in known if value is not None]
    return sum(found) if found else None


def _drop(series: dict[str, Series] | dict[str, Rate], kept: set[str]) -> None:
    for name in series.keys() - kept:
        del series[name]
