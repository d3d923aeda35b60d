"""Routes as they travel, with their versions.

Owns the versions: a hash of what a route says, so that every name server that knows the same gives the same one.  Figures and the version
of a table of topics are no part of it: they change no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from broker.routes.group_table import GroupRow, NodeRow, TopicRow
from broker.support.messages import message_of
from dledger_wire._pb import routes_pb2
from dledger_wire.status import DRAINING, REMOVED, Perm


@dataclass(frozen=True, slots=True)
class Route:
    """``version`` of the content, never 0, and ``data``: the field of a RoutesReply, with its tag."""

    version: int
    data: bytes


def version_of(content: object) -> int:
    """Of nested tuples of text and numbers.  0 is kept for "not known"."""
    return int.from_bytes(blake2b(repr(content).encode(), digest_size=8).digest(), "big") or 1


def absent_topic(name: str) -> Route:
    return _topic_field(routes_pb2.TopicRoute(name=name, version=version_of(("no topic", name))))


def unseen_topic(name: str, caller: str) -> Route:
    """Of a topic that the caller may not know of, whether it exists or not."""
    return _topic_field(routes_pb2.TopicRoute(name=name, version=version_of(("unseen topic", name)), unseen_by=caller))


def topic_route(name: str, queues: Sequence[tuple[GroupRow, TopicRow]]) -> Route:
    """Of a topic that is in those groups, sorted by name."""
    route = routes_pb2.TopicRoute(name=name, found=True)
    content = []
    for group, row in queues:
        perm = row.perm & ~int(Perm.WRITE) if group.state == DRAINING else row.perm
        where = {"group": group.name, "topics_version": group.topics_version}
        route.queues.append(message_of(routes_pb2.GroupQueues, row, perm=perm, topic_epoch=row.epoch, **where))
        content.append((group.name, row.read_queues, row.write_queues, perm, row.epoch, row.groups))
    route.version = version_of(("topic", name, tuple(content)))
    return _topic_field(route)


def absent_group(name: str) -> Route:
    return _group_field(routes_pb2.GroupRoute(name=name, version=version_of(("no group", name))))


def removed_group(name: str) -> Route:
    """Clients look for queues in a group that is merely not known."""
    return _group_field(routes_pb2.GroupRoute(name=name, version=version_of(("removed group", name)), state=REMOVED))


def group_route(group: GroupRow) -> Route:
    route = routes_pb2.GroupRoute(name=group.name, found=True, state=group.state)
    nodes = nodes_of(group)
    route.term, route.leader_id = leader_of(group)
    for node in nodes:
        route.nodes.append(node)
        if node.id == route.leader_id:
            route.leader_address = node.address
    row = group.rows.get(route.leader_id)
    if row is not None:
        route.leader_address = row.address
    place = route.term, route.leader_id, route.leader_address, route.state
    route.version = version_of(("group", group.name, place, [(n.id, n.address, n.voter, n.host, n.rack) for n in nodes]))
    return _group_field(route)


def leader_of(group: GroupRow) -> tuple[int, str]:
    """Term and id of the leader; an empty id when none is known."""
    leader, (hint_term, hint) = group.leader, group.hint
    if hint and hint_term >= group.fence and leader is None and not _gave_up(group.rows.get(hint), hint_term):
        return hint_term, hint
    if hint_term > group.fence:  # the registered leader is of a term that is over
        return (hint_term, hint) if hint else (group.fence, "")
    return group.fence, leader.id if leader is not None else ""


def _gave_up(row: NodeRow | None, term: int) -> bool:
    """Whether that node itself says that it is not the master of ``term`` (any more)."""
    return row is not None and not row.expired and not row.master and row.order.term >= term


def nodes_of(group: GroupRow) -> list[routes_pb2.Member]:
    """The members as they are reached; without a known configuration all that registered."""
    found = []
    for member in group.members:
        row = group.rows.get(member.id)
        address, host, rack = member.address, member.host, member.rack
        if row is not None:
            address, host, rack = row.address or address, row.host or host, row.rack or rack
        found.append(routes_pb2.Member(id=member.id, address=address, voter=member.voter, host=host, rack=rack))
    if group.members:
        return found
    rows = sorted(group.rows.values(), key=lambda row: row.id)
    return [routes_pb2.Member(id=row.id, address=row.address, voter=True, host=row.host, rack=row.rack) for row in rows]


def directory_mark(group: GroupRow) -> int:
    """Of one group with its members, hosts and state, as they count for the directory's version."""
    members = [] if group.removed else [(n.id, n.address, n.voter, n.host, n.rack) for n in nodes_of(group)]
    return version_of((group.name, group.epoch, group.state, group.wanted, members))


def directory_version(marks: Mapping[str, int], spares: Iterable[NodeRow]) -> int:
    """Of all groups, by their marks, and of the spare nodes; 0 while nothing is known."""
    others = sorted((row.id, row.address, row.host, row.rack) for row in spares)
    return version_of((sorted(marks.items()), others)) if marks or others else 0


def _topic_field(route: routes_pb2.TopicRoute) -> Route:
    return Route(route.version, routes_pb2.RoutesReply(topics=[route]).SerializeToString())


def _group_field(route: routes_pb2.GroupRoute) -> Route:
    return Route(route.version, routes_pb2.RoutesReply(groups=[route]).SerializeToString())
