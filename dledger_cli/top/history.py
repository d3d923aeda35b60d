"""Rates and changes of leader from what nodes report at one look after the other.

Owns what is remembered between looks.  Time is given with each look, so nothing here waits or asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dledger_cli.top.model import ConsumerRow, GroupRow, LeaderChange, NodeRow, Rates, View
from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_groups import ConsumerGroupDescription
from dledger_client.admin.status_text import node_note, sentence

KEPT_CHANGES = 100
Queue = tuple[str, str, int]  # topic, replica group, number
NO_RATES = Rates()
TOTALS = ("messages_in_total", "bytes_in_total", "messages_out_total", "bytes_out_total")


@dataclass(frozen=True, slots=True)
class _Counted:
    """Totals of one process (``started_at_ms``) at one moment."""

    at_s: float
    started_at_ms: int
    totals: tuple[int, ...]


@dataclass(slots=True)
class _Leader:
    """The newest leader of a replica group that was seen, and since when there is none."""

    id: str
    term: int
    lost_at_s: float | None = None


class History:
    """Of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._nodes: dict[tuple[str, str], _Counted] = {}
        self._leaders: dict[str, _Leader] = {}
        self._positions: dict[str, tuple[float, dict[Queue, tuple[int, int]]]] = {}  # of consumer groups: when, offset and lag
        self._consumers: tuple[ConsumerRow, ...] = ()
        self._changes: deque[LeaderChange] = deque(maxlen=KEPT_CHANGES)
        self.consumers_trouble = ""

    def look(self, groups: Sequence[ReplicaGroupStatus], at_s: float, at_ms: int) -> View:
        """The view of ``groups`` as they were ``at_s`` (monotonic) and ``at_ms`` (since 1970)."""
        several = len(groups) > 1
        rows = tuple(self._group(group, at_s, several_groups=several) for group in groups)
        for group in groups:
            self._see_leader(group, at_s, at_ms)
        changes = tuple(reversed(self._changes))
        return View(at_ms, self._cluster, sentence(groups), rows, self._consumers, self.consumers_trouble, changes)

    def see_consumers(self, described: Iterable[ConsumerGroupDescription], at_s: float) -> None:
        """The consumer groups as they were ``at_s``."""
        self._consumers = tuple(self._consumer(each, at_s) for each in described)
        names = {row.name for row in self._consumers}
        self._positions = {name: position for name, position in self._positions.items() if name in names}

    def remember(self, changes: Iterable[LeaderChange]) -> None:
        """Changes of leader that the nodes report, oldest first; of the same term a look's own one counts no more."""
        reported = {(change.replica_group, change.term): change for change in changes}
        seen = {(change.replica_group, change.term): change for change in self._changes}
        ordered = sorted((seen | reported).values(), key=lambda change: (change.at_ms, change.term))
        self._changes = deque(ordered, maxlen=KEPT_CHANGES)

    def _group(self, group: ReplicaGroupStatus, at_s: float, *, several_groups: bool) -> GroupRow:
        nodes = tuple(self._node(group, node, at_s, several_groups=several_groups) for node in group.nodes)
        return GroupRow(
            name=group.name,
            leader=group.leader_id,
            term=group.term,
            voters=len(group.voters),
            acknowledging=len(group.acknowledging),
            spare=group.spare,
            healthy=group.healthy,
            takes_messages=group.takes_messages,
            rates=_sum(node.rates for node in nodes),
            nodes=nodes,
        )

    def _node(self, group: ReplicaGroupStatus, node: NodeStatus, at_s: float, *, several_groups: bool) -> NodeRow:
        return NodeRow(
            replica_group=group.name,
            id=node.id,
            reachable=node.reachable,
            role=node.role,
            term=node.term,
            lag=group.lag(node),
            disk_used_percent=node.disk_used_percent,
            loop_lag_ms=node.loop_lag_ms,
            rss_bytes=node.rss_bytes,
            rates=self._rates(group.name, node, at_s) if node.reachable else NO_RATES,
            note=node_note(group, node, several_groups=several_groups),
            connection_states=node.connection_states,
            bottleneck=node.bottleneck,
        )

    def _rates(self, group: str, node: NodeStatus, at_s: float) -> Rates:
        """Of the time since the look before; a process that has started since counts from zero."""
        now = _Counted(at_s, node.started_at_ms, tuple(getattr(node, name) for name in TOTALS))
        before = self._nodes.get((group, node.id))
        self._nodes[(group, node.id)] = now
        if before is None or at_s <= before.at_s:
            return NO_RATES
        zeros = (0,) * len(TOTALS)
        from_totals = before.totals if before.started_at_ms == now.started_at_ms else zeros
        took_s = at_s - before.at_s
        return Rates(*(max(0, new - old) / took_s for old, new in zip(from_totals, now.totals, strict=True)))

    def _see_leader(self, group: ReplicaGroupStatus, at_s: float, at_ms: int) -> None:
        known = self._leaders.get(group.name)
        leader = group.leader
        if leader is None:
            if known is not None and known.lost_at_s is None:
                known.lost_at_s = at_s
            return
        if known is not None and (leader.id, leader.term) != (known.id, known.term):
            without_ms = None if known.lost_at_s is None else (at_s - known.lost_at_s) * 1000
            change = LeaderChange(at_ms, group.name, known.id, leader.id, leader.term, without_ms)
            if not any((each.replica_group, each.term) == (group.name, leader.term) for each in self._changes):
                self._changes.append(change)
        self._leaders[group.name] = _Leader(leader.id, leader.term)

    def _consumer(self, described: ConsumerGroupDescription, at_s: float) -> ConsumerRow:
        positions = {
            (queue.topic, queue.replica_group, queue.queue_id): (queue.offset, queue.lag)
            for queue in described.queues
            if queue.offset is not None
        }
        before = self._positions.get(described.name)
        self._positions[described.name] = at_s, positions
        row = ConsumerRow(
            name=described.name,
            members=len(described.members),
            topics=tuple(sorted({queue.topic for queue in described.queues})),
            lag=described.lag,
            consumed=None,
            lag_change=None,
        )
        if before is None or at_s <= before[0]:
            return row
        took_s = at_s - before[0]
        # A replica group may not have answered at one of the two looks.
        both = [(positions[queue], before[1][queue]) for queue in positions.keys() & before[1].keys()]
        if not both:
            return row
        consumed = sum(max(0, now[0] - then[0]) for now, then in both)
        return replace(row, consumed=consumed / took_s, lag_change=sum(now[1] - then[1] for now, then in both) / took_s)


def _sum(each: Iterable[Rates]) -> Rates:
    """The rates of a group; None while no node has one."""
    found = list(each)

    def total(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Rates(
        total(rates.messages_in for rates in found),
        total(rates.bytes_in for rates in found),
        total(rates.messages_out for rates in found),
        total(rates.bytes_out for rates in found),
    )
