"""The route table as registrations: a name server sends them to another that was away, or that some nodes cannot reach."""

from __future__ import annotations

from collections.abc import Iterator

from broker.routes.group_table import GroupRow, NodeRow
from broker.routes.route_table import RouteTable
from broker.support.messages import message_of
from dledger_wire._pb import routes_pb2
from dledger_wire.status import REMOVED


def registrations_of(table: RouteTable, cluster: str) -> Iterator[tuple[int, routes_pb2.Registration]]:
    """(time of the last registration, registration) of each live node; one of each group has what the nodes of the group agree on.

    Nodes of a removed group register no more: one registration says that it was removed.
    """
    for group in table.groups:
        if group.removed:
            yield 0, tombstone(group, cluster)
            continue
        rows = [row for row in group.rows.values() if not row.expired]
        speaker = group.leader or (rows[0] if rows else None)
        for row in rows:
            yield row.seen_ms, _registration(row, cluster, group, whole=row is speaker)
    for row in table.spares:
        yield row.seen_ms, _registration(row, cluster, GroupRow(""), whole=False)


def tombstone(group: GroupRow, cluster: str) -> routes_pb2.Registration:
    """As the node reported last that the group was removed."""
    version, order, node_id = group.state_rank
    return routes_pb2.Registration(
        cluster=cluster,
        group=group.name,
        node_id=node_id,
        term=max(order.term, group.fence),
        state=REMOVED,
        state_version=max(0, version),
        wanted_voters=group.wanted[0],
        wanted_learners=group.wanted[1],
        group_epoch=group.epoch,
    )


def _registration(row: NodeRow, cluster: str, group: GroupRow, *, whole: bool) -> routes_pb2.Registration:
    registration = message_of(
        routes_pb2.Registration,
        row,
        cluster=cluster,
        group=group.name,
        node_id=row.id,
        started_at_ms=row.order.started_at_ms,
        sequence=row.order.sequence,
        term=row.order.term,
        topics_version=group.topics_version,
        state=group.state,
        state_version=max(0, group.state_rank[0]),
        wanted_voters=group.wanted[0],
        wanted_learners=group.wanted[1],
        group_epoch=group.epoch,
        replacing=row.replacing[0],
        spare=row.replacing[1],
        absent=row.replacing[2],
    )
    if whole:
        registration.configuration_index = max(0, group.members_rank[0])
        for member in group.members:
            registration.members.append(message_of(routes_pb2.Member, member))
        registration.has_topics = group.topics_known
        for name, topic in group.topics.items():
            registration.topics.append(message_of(routes_pb2.RouteQueues, topic, topic=name, topic_epoch=topic.epoch))
    return registration
