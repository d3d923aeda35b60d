"""The table of routes as operators and nodes see it: all groups with all their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.config.cluster_file import GroupConfig
from broker.routes.encoding import leader_of, nodes_of
from broker.routes.group_table import GroupRow, NodeRow
from broker.routes.route_table import RouteTable
from broker.support.messages import message_of
from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.names import is_system_topic
from dledger_wire.status import ACTIVE, REMOVED


def directory_reply(table: RouteTable, now_ms: int, known_version: int) -> routes_pb2.DirectoryReply:
    """Groups and spare nodes, sorted by name; without them when ``known_version`` is the current one."""
    version = table.directory_version
    reply = routes_pb2.DirectoryReply(version=version, unchanged=bool(version) and version == known_version)
    if not reply.unchanged:
        groups = sorted(table.groups, key=lambda group: group.name)
        reply.groups.extend(_group(group, now_ms, now_ms - table.expire_after_ms) for group in groups)
        reply.spares.extend(_registered(row, now_ms) for row in sorted(table.spares, key=lambda row: row.id))
    return reply


def _group(group: GroupRow, now_ms: int, oldest_ms: int) -> routes_pb2.RegisteredGroup:
    if group.removed:
        return routes_pb2.RegisteredGroup(name=group.name, state=REMOVED)
    term, leader = leader_of(group)
    found = routes_pb2.RegisteredGroup(
        name=group.name,
        term=term,
        leader_id=leader,
        state=group.state or ACTIVE,
        wanted_voters=group.wanted[0],
        wanted_learners=group.wanted[1],
        topics=len(group.topics),
        topics_version=group.topics_version,
    )
    master = group.leader
    if master is not None:
        found.messages_in_per_s, found.bytes_in_per_s = master.messages_in_per_s, master.bytes_in_per_s
    found.replacing, found.spare, found.absent = group.turn(oldest_ms)
    in_sync = set() if master is None else set(master.in_sync)
    members = nodes_of(group)
    for member in members:
        row = group.rows.get(member.id)
        node = routes_pb2.RegisteredNode(expired=True) if row is None else _registered(row, now_ms)
        node.id, node.address, node.host, node.rack = member.id, member.address, member.host, member.rack
        node.member, node.voter, node.in_sync = True, member.voter, member.id in in_sync
        found.nodes.append(node)
        if member.id == leader:
            found.leader_address = member.address
    known = {member.id for member in members}
    found.nodes.extend(_registered(row, now_ms) for row in sorted(group.rows.values(), key=lambda row: row.id) if row.id not in known)
    return found


def _registered(row: NodeRow, now_ms: int) -> routes_pb2.RegisteredNode:
    age_ms = max(0, now_ms - row.seen_ms)
    return message_of(routes_pb2.RegisteredNode, row, term=row.order.term, state=row.node_state, age_ms=age_ms, in_sync=False)


def metadata_reply(
    table: RouteTable,
    request: broker_pb2.MetadataRequest,
    sees: Callable[[str], bool] = lambda _topic: True,
    configured: Sequence[GroupConfig] = (),
) -> broker_pb2.MetadataResponse:
    """The answer to clients that ask this address as they ask nodes: all groups, and topics with their queues in each group.

    A topic that the caller does not see is one that does not exist.  Of the ``configured`` groups those that have not registered yet are
    named, too: the caller takes the answer for all of the cluster.
    """
    reply = broker_pb2.MetadataResponse()
    for group in sorted(table.groups, key=lambda group: group.name):
        if not group.removed:
            reply.groups.append(_group_info(group))
    registered = {group.name for group in table.groups}
    for expected in configured:
        if expected.name not in registered:
            info = reply.groups.add(name=expected.name)
            for node in expected.nodes:
                info.nodes.add(id=node.id, address=node.address, voter=True)
    everyone = [name for name in sorted(table.topics) if not is_system_topic(name)] if request.all_topics else []
    names = dict.fromkeys([*request.topics, *(name for name in everyone if sees(name))])
    for name in names:
        if not sees(name):
            reply.topics.add(name=name)
            continue
        route = routes_pb2.RoutesReply.FromString(table.topic_route(name).data).topics[0]
        if not route.found:
            reply.topics.add(name=name)
        for queues in route.queues:
            reply.topics.append(message_of(broker_pb2.TopicInfo, queues, name=name, found=True, incarnation=queues.topic_epoch))
    return reply


def _group_info(group: GroupRow) -> broker_pb2.GroupInfo:
    term, leader = leader_of(group)
    info = broker_pb2.GroupInfo(name=group.name, term=term, leader_id=leader)
    for node in nodes_of(group):
        role = "leader" if node.id == leader else "follower" if node.voter else "learner"
        row = group.rows.get(node.id)
        info.nodes.add(id=node.id, address=node.address, role=role, reachable=row is not None and not row.expired, voter=node.voter)
        if node.id == leader:
            info.leader_address = node.address
    return info
