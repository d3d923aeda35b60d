"""What is printed of the nodes of a cluster: the table of ``dledger status`` with its sentence, its JSON, and warnings of placement."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dledger_cli.output import GREEN, RED, YELLOW, fields_of, json_wanted, note, print_json, print_line, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import NodeStatus, PeerStatus, ReplicaGroupStatus

HEADER = (
    "REPLICA-GROUP",
    "NODE",
    "ADDRESS",
    "ROLE",
    "TERM",
    "FIRST",
    "LAST",
    "COMMIT",
    "APPLIED",
    "LAG",
    "DISK",
    "LAST-SEEN",
    "PID",
    "NOTE",
)
NUMBERS = ("TERM", "FIRST", "LAST", "COMMIT", "APPLIED", "LAG", "DISK", "LAST-SEEN", "PID")
ROLE_ORDER = {"leader": 0, "follower": 1, "pre_candidate": 1, "candidate": 1, "learner": 2}
PEER_FIELDS = ("id", "match_index", "state", "last_contact_ms", "unheard", "connected", "acknowledges")
STATUS_FIELDS = (
    *("state", "leader_confirmed", "role_state", "role_log", "warnings", "voters", "learners", "store_id", "committed_pos"),
    *("disk_used_percent", "rss_bytes", "anonymous_bytes", "version", "started_at_ms", "uncommitted_ms", "sync_ms"),
    *("connection_states", "bottleneck"),
)
FIELDS = ("role", "term", "pid", "first_index", "last_index", "committed_index", "applied_index")


def show_status(cluster: ClusterConfig, groups: list[ReplicaGroupStatus]) -> None:
    """Print the table with its sentence, or the JSON."""
    if json_wanted():
        print_json(groups_json(groups))
        return
    from dledger_client.admin.status_text import node_note, replicas_line, replicas_of, sentence

    spares = [spare.id for spare in cluster.spares]
    notes = functools.partial(node_note, several_groups=len(groups) > 1, spares=spares)
    rows = [_row(group, node, notes(group, node)) for group in groups for node in sorted(group.nodes, key=_order)]
    print_table(HEADER, rows, right=NUMBERS)
    for group in groups:
        if any(replicas_of(group)[kind] for kind in ("lagging", "missing")):
            print_line(replicas_line(group))
    healthy, working = all(each.healthy for each in groups), all(each.takes_messages for each in groups)
    print_line(sentence(groups), GREEN if healthy else YELLOW if working else RED)


def show_placement(config: ClusterConfig) -> None:
    """Warn of members of one replica group that would fail together."""
    from broker.config.placement import group_warnings

    for group in config.groups:
        for text in group_warnings(group):
            note(f"warning: {text}")


def _order(node: NodeStatus) -> tuple[int, str]:
    return (ROLE_ORDER.get(node.role, 1) if node.reachable else 3, node.id)


def _row(group: ReplicaGroupStatus, node: NodeStatus, note: str) -> list[Any]:
    from broker.config.units import format_duration_ms

    contact_ms, peer = group.last_contact_ms(node), group.peer(node)
    longer = ">" if peer is not None and peer.unheard else ""  # than the leader leads
    seen = None if contact_ms is None else f"{longer}{format_duration_ms(contact_ms)}"
    place = [group.name, node.id, node.address]
    if not node.reachable:
        return [*place, *[None] * 8, seen, None, note]
    note = ", ".join(filter(None, (note, _held_up(node))))
    indexes = [node.first_index, node.last_index, node.committed_index, node.applied_index]
    return [*place, node.role, node.term, *indexes, group.lag(node), f"{node.disk_used_percent:.0f}%", seen, node.pid, note]


def _held_up(node: NodeStatus) -> str:
    """How many connections of a node are held up, and by what; empty when none is."""
    from dledger_client.admin.status_text import connections_text

    states = node.connection_states
    return f"connections: {connections_text(states, node.bottleneck)}" if sum(states.values()) > states.get("running", 0) else ""


def groups_json(groups: list[ReplicaGroupStatus]) -> dict[str, Any]:
    """What ``--json`` prints of replica groups."""
    return {"groups": [_group_json(group) for group in groups]}


def _group_json(group: ReplicaGroupStatus) -> dict[str, Any]:
    from dledger_client.admin.status_text import replicas_of

    return {
        "name": group.name,
        "term": group.term,
        "leader": group.leader_id or None,
        "voters": list(group.voters),
        "learners": list(group.learners),
        "acknowledging": [voter for voter in group.voters if voter in group.acknowledging],
        "takes_writes": group.takes_messages,
        "replicas": replicas_of(group),
        "nodes": [_node_json(node) | {"member": group.is_member(node.id)} for node in group.nodes],
    }


def _node_json(node: NodeStatus) -> dict[str, Any]:
    result = fields_of(node, "id", "address", "reachable")
    if not node.reachable:
        return result | dict.fromkeys(FIELDS) | {"error": node.error}
    peers = [fields_of(peer, *PEER_FIELDS) | _known(peer, "refused", "cannot_lead") for peer in node.peers]
    unknown = _known(node, "leader", "services_term", "certificate_expires_at_ms", "cannot_lead")
    return result | fields_of(node, *FIELDS, *STATUS_FIELDS) | unknown | {"peers": peers}


def _known(record: NodeStatus | PeerStatus, *names: str) -> dict[str, Any]:
    """None for what is empty."""
    return {name: value or None for name, value in fields_of(record, *names).items()}
