"""The state of a whole cluster on one screen: a row for each replica group, leaders by host, and what is not as it should be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dledger_cli.output import fields_of, json_wanted, note, print_json, print_line, print_table
from dledger_wire.addresses import host_of

if TYPE_CHECKING:
    from dledger_client.admin.directory import ClusterDirectory, RegisteredGroup, RegisteredNode

HEADER = (
    "REPLICA-GROUP",
    "STATE",
    "LEADER",
    "HOST",
    "TERM",
    "VOTERS",
    "LEARNERS",
    "LAGGING",
    "MISSING",
    "MSG/S",
    "BYTES/S",
    "DISK",
    "TOPICS",
)
GROUP_FIELDS = (
    *("name", "state", "term", "wanted_voters", "wanted_learners"),
    *("messages_in_per_s", "bytes_in_per_s", "disk_used_percent", "topics"),
)
NODE_FIELDS = ("id", "address", "host", "rack", "voter", "member", "in_sync", "state", "version")
MAX_WARNINGS = 8  # with 30 groups everything fits one screen
NUMBERS = ("TERM", "VOTERS", "LEARNERS", "MSG/S", "BYTES/S", "DISK", "TOPICS")


def show_cluster(cluster: ClusterDirectory) -> None:
    """Print the screen, or the JSON."""
    if json_wanted():
        print_json(_json(cluster))
        return
    shown = [group for group in cluster.groups if not group.is_removed]
    print_table(HEADER, [_row(group) for group in shown], right=NUMBERS)
    leaders = leaders_by_host(cluster)
    print_line("leaders by host: " + (", ".join(f"{host} {count}" for host, count in sorted(leaders.items())) or "none"))
    if cluster.spares:
        print_line("spare nodes: " + ", ".join(f"{node.id} ({node.host or node.address})" for node in cluster.spares))
    found = warnings_of(cluster)
    for text in found[:MAX_WARNINGS]:
        note(f"warning: {text}")
    if len(found) > MAX_WARNINGS:
        note(f"{len(found) - MAX_WARNINGS} more warnings: dledger cluster status --json")


def leaders_by_host(cluster: ClusterDirectory) -> Counter[str]:
    """Host -> how many groups are led from it; hosts of members that lead nothing are counted as 0."""
    found: Counter[str] = Counter()
    for group in cluster.groups:
        for node in group.nodes:
            found[_host(node)] += node.id == group.leader_id
    return found


def warnings_of(cluster: ClusterDirectory) -> list[str]:
    """What is not as it should be, in words."""
    from broker.config.placement import shared_places

    found: list[str] = []
    for group in cluster.groups:
        if group.is_removed:
            continue
        if group.spare:
            found.append(f"replica group {group.name}: spare node {group.spare} {_task(group)}")
        if not group.leader_id:
            found.append(f"replica group {group.name} has no leader")
        for label, nodes in (("do not answer", group.missing), ("lag", group.lagging)):
            if nodes:
                found.append(f"replica group {group.name}: {', '.join(node.id for node in nodes)} {label}")
        for label, wanted, nodes in (("voters", group.wanted_voters, group.voters), ("learners", group.wanted_learners, group.learners)):
            if wanted > len(nodes):
                found.append(f"replica group {group.name}: {len(nodes)} {label}, {wanted} wanted")
        found += shared_places(group.name, [(node.id, node.host, node.rack) for node in group.nodes if node.member])
    leaders = leaders_by_host(cluster)
    if leaders and max(leaders.values()) - min(leaders.values()) > 1:
        most, least = max(leaders, key=lambda host: leaders[host]), min(leaders, key=lambda host: leaders[host])
        found.append(f"leaders are uneven: {leaders[most]} on {most}, {leaders[least]} on {least}")
    if not cluster.from_name_server:
        found.append("no name server knows of all replica groups; the nodes of the known ones were asked")
    return found


def _task(group: RegisteredGroup) -> str:
    return f"takes the place of {group.absent}" if group.absent else "becomes a learner"


def _host(node: RegisteredNode) -> str:
    return node.host or host_of(node.address)


def _row(group: RegisteredGroup) -> list[Any]:
    leader = group.leader
    in_sync = [sum(node.in_sync for node in nodes) for nodes in (group.voters, group.learners)]
    return [
        group.name,
        group.state,
        group.leader_id,
        _host(leader) if leader else None,
        group.term,
        f"{in_sync[0]}/{group.wanted_voters or len(group.voters)}",
        f"{in_sync[1]}/{group.wanted_learners or len(group.learners)}",
        ",".join(node.id for node in group.lagging),
        ",".join(node.id for node in group.missing),
        f"{group.messages_in_per_s:.0f}",
        f"{group.bytes_in_per_s:.0f}",
        f"{group.disk_used_percent:.0f}%",
        group.topics,
    ]


def _json(cluster: ClusterDirectory) -> dict[str, Any]:
    return {
        "cluster": cluster.cluster,
        "from_name_server": cluster.from_name_server,
        "groups": [_group_json(group) for group in cluster.groups],
        "leaders_by_host": dict(leaders_by_host(cluster)),
        "spares": [fields_of(node, "id", "address", "host", "rack") for node in cluster.spares],
        "warnings": warnings_of(cluster),
    }


def _group_json(group: RegisteredGroup) -> dict[str, Any]:
    return fields_of(group, *GROUP_FIELDS) | {
        "leader": group.leader_id or None,
        "in_sync": [node.id for node in group.nodes if node.in_sync],
        "lagging": [node.id for node in group.lagging],
        "missing": [node.id for node in group.missing],
        "spare": group.spare or None,
        "replaces": group.absent or None,
        "nodes": [fields_of(node, *NODE_FIELDS) for node in group.nodes],
    }
