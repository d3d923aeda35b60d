"""``dledger status``: the nodes of each replica group, and in one sentence what still works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands.nameserver import ask_all, judge
from dledger_cli.commands.updown import show_placement
from dledger_cli.context import ConfigOption, JsonOption, cluster_status, load_config, run
from dledger_cli.output import GREEN, RED, YELLOW, error_line, print_json, print_line, print_table
from dledger_cli.status_text import node_note, replicas_line, replicas_of, sentence

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus

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
FIELDS = ("role", "term", "pid", "first_index", "last_index", "committed_index", "applied_index")
EXAMPLES = "Examples: dledger status | dledger status --json | dledger status --watch 1 --until healthy --timeout 60"


def register(app: typer.Typer) -> None:
    app.command("status", epilog=EXAMPLES)(status)


def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    watch: Annotated[float, typer.Option("--watch", "-w", metavar="SECONDS", min=0.0, help="Print again at this interval.")] = 0.0,
    until: Annotated[str, typer.Option("--until", metavar="healthy", help="Wait until every group is healthy.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long --until waits.")] = 60.0,
) -> None:
    """Show role, term, log indexes, lag, disk and pid of every node.  Exit 1 when a group takes no writes."""
    if until not in ("", "healthy"):
        raise typer.BadParameter("expected healthy", param_hint="--until")
    cluster = load_config(config)
    deadline = time.monotonic() + timeout
    while True:
        groups = run(cluster_status(cluster))
        healthy = all(group.healthy for group in groups)
        if not until or healthy or watch:
            show(groups, as_json=as_json)
            if not as_json:
                show_placement(cluster)
                _show_name_servers(cluster)
        if until:
            if healthy:
                return
            if time.monotonic() > deadline:
                error_line(f"not healthy after {timeout:g} s: {sentence(groups)}")
                raise typer.Exit(1)
        elif not watch:
            break
        time.sleep(watch or 0.25)
    if not all(group.takes_messages for group in groups):
        raise typer.Exit(1)


def _show_name_servers(cluster: ClusterConfig) -> None:
    """One sentence on those that are processes of their own."""
    if cluster.name_server_processes:
        text, colour = judge(ask_all(cluster))
        print_line(text, colour)


def show(groups: list[ReplicaGroupStatus], *, as_json: bool) -> None:
    """Print the table with its sentence, or the JSON."""
    if as_json:
        print_json({"groups": [_group_json(group) for group in groups]})
        return
    rows = [_row(group, node, several_groups=len(groups) > 1) for group in groups for node in sorted(group.nodes, key=_order)]
    print_table(HEADER, rows, right=NUMBERS)
    for group in groups:
        if any(replicas_of(group)[kind] for kind in ("lagging", "missing")):
            print_line(replicas_line(group))
    healthy, working = all(each.healthy for each in groups), all(each.takes_messages for each in groups)
    print_line(sentence(groups), GREEN if healthy else YELLOW if working else RED)


def _order(node: NodeStatus) -> tuple[int, str]:
    return (ROLE_ORDER.get(node.role, 1) if node.reachable else 3, node.id)


def _row(group: ReplicaGroupStatus, node: NodeStatus, *, several_groups: bool) -> list[Any]:
    from broker.config.units import format_duration_ms

    contact_ms = group.last_contact_ms(node)
    seen = None if contact_ms is None else format_duration_ms(contact_ms)
    note = node_note(group, node, several_groups=several_groups)
    place = [group.name, node.id, node.address]
    if not node.reachable:
        return [*place, *[None] * 8, seen, None, note]
    indexes = [node.first_index, node.last_index, node.committed_index, node.applied_index]
    return [*place, node.role, node.term, *indexes, group.lag(node), f"{node.disk_used_percent:.0f}%", seen, node.pid, note]


def _group_json(group: ReplicaGroupStatus) -> dict[str, Any]:
    return {
        "name": group.name,
        "term": group.term,
        "leader": group.leader.id if group.leader else None,
        "voters": list(group.voters),
        "learners": list(group.learners),
        "acknowledging": [voter for voter in group.voters if voter in group.acknowledging],
        "takes_writes": group.takes_messages,
        "replicas": replicas_of(group),
        "nodes": [_node_json(node) | {"member": group.is_member(node.id)} for node in group.nodes],
    }


def _node_json(node: NodeStatus) -> dict[str, Any]:
    result: dict[str, Any] = {"id": node.id, "address": node.address, "reachable": node.reachable}
    result |= {name: getattr(node, name) if node.reachable else None for name in FIELDS}
    if not node.reachable:
        return result | {"error": node.error}
    peers = [
        {
            "id": peer.id,
            "match_index": peer.match_index,
            "state": peer.state,
            "last_contact_ms": peer.last_contact_ms,
            "connected": peer.connected,
            "acknowledges": peer.acknowledges,
            "refused": peer.refused or None,
        }
        for peer in node.peers
    ]
    return result | {
        "state": node.state,
        "leader": node.leader or None,
        "leader_confirmed": node.leader_confirmed,
        "store_id": node.store_id,
        "committed_pos": node.committed_pos,
        "disk_used_percent": node.disk_used_percent,
        "rss_bytes": node.rss_bytes,
        "anonymous_bytes": node.anonymous_bytes,
        "version": node.version,
        "started_at_ms": node.started_at_ms,
        "voters": list(node.voters),
        "learners": list(node.learners),
        "peers": peers,
        "role_state": node.role_state,
        "services_term": node.services_term or None,
        "role_log": list(node.role_log),
        "certificate_expires_at_ms": node.certificate_expires_at_ms or None,
        "warnings": list(node.warnings),
    }
