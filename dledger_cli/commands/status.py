"""``dledger status``: who leads, who lags, and in one sentence what still works.

Every node is asked at once with a deadline of two seconds; one that does not answer keeps its row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ConfigOption, JsonOption, NodeAnswer, ask_nodes, load_config, run
from dledger_cli.group_health import Standing, sentence, standings_of
from dledger_cli.output import GREEN, RED, YELLOW, error_line, paint, print_json, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

HEADER = ("GROUP", "NODE", "ADDRESS", "ROLE", "TERM", "FIRST", "LAST", "COMMIT", "APPLIED", "LAG", "DISK", "LAST-SEEN", "PID", "NOTE")
NUMBERS = ("TERM", "FIRST", "LAST", "COMMIT", "APPLIED", "LAG", "DISK", "LAST-SEEN", "PID")
ROLE_ORDER = {"leader": 0, "follower": 1, "pre_candidate": 1, "candidate": 1, "learner": 2}
EXAMPLES = "Examples: dledger status | dledger status --json | dledger status --watch 1 --until healthy --timeout 60"


def register(app: typer.Typer) -> None:
    app.command("status", epilog=EXAMPLES)(status)


def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    watch: Annotated[float, typer.Option("--watch", "-w", metavar="SECONDS", min=0.0, help="Show again every so many seconds.")] = 0.0,
    until: Annotated[str, typer.Option("--until", metavar="healthy", help="Wait until every group is healthy.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long --until waits.")] = 60.0,
) -> None:
    """Per group and node: role, term, log indexes, lag, disk, pid.  Exit 1 when a group takes no writes."""
    if until not in ("", "healthy"):
        raise typer.BadParameter("expected healthy", param_hint="--until")
    cluster = load_config(config)
    deadline = time.monotonic() + timeout
    while True:
        answers = run(ask_nodes(cluster))
        standings = standings_of(cluster, answers)
        healthy = all(standing.healthy for standing in standings)
        if not until or healthy or watch:
            show(cluster, answers, as_json=as_json)
        if until:
            if healthy:
                return
            if time.monotonic() > deadline:
                error_line(f"not healthy after {timeout:g} s: {sentence(standings)}")
                raise typer.Exit(1)
        elif not watch:
            break
        time.sleep(watch or 0.25)
    if not all(standing.takes_messages for standing in standings):
        raise typer.Exit(1)


def show(cluster: ClusterConfig, answers: list[NodeAnswer], *, as_json: bool) -> None:
    standings = standings_of(cluster, answers)
    if as_json:
        print_json({"groups": [_group_json(standing) for standing in standings]})
        return
    several = len(standings) > 1
    rows = [row for standing in standings for row in _group_rows(standing, several)]
    print_table(HEADER, rows, right=NUMBERS)
    healthy, working = all(each.healthy for each in standings), all(each.takes_messages for each in standings)
    print(paint(sentence(standings), GREEN if healthy else YELLOW if working else RED), flush=True)


def _group_rows(standing: Standing, several_groups: bool) -> list[list[Any]]:
    def order(answer: NodeAnswer) -> tuple[int, str]:
        return (ROLE_ORDER.get(answer.status.role, 1) if answer.status else 3, answer.id)

    return [_row(answer, standing, several_groups) for answer in sorted(standing.answers, key=order)]


def _row(answer: NodeAnswer, standing: Standing, several_groups: bool) -> list[Any]:
    from broker.config.units import format_duration_ms

    leader, note = standing.leader, standing.note(answer, several_groups)
    contact = None
    if leader and leader.status and answer is not leader:
        contact = next((peer.last_contact_ms for peer in leader.status.peers if peer.id == answer.id and peer.last_contact_ms >= 0), None)
    seen = None if contact is None else format_duration_ms(contact)
    status = answer.status
    if status is None:
        nothing = [None] * 8
        return [answer.group, answer.id, answer.address, *nothing, seen, None, note]
    lag = None
    if leader and leader.status and answer is not leader:
        lag = max(0, leader.status.committed_index - status.committed_index)
    indexes = [status.first_index, status.last_index, status.committed_index, status.applied_index]
    disk = f"{status.disk_used_percent:.0f}%"
    return [answer.group, answer.id, status.address, status.role, status.term, *indexes, lag, disk, seen, status.pid, note]


def _group_json(standing: Standing) -> dict[str, Any]:
    return {
        "name": standing.name,
        "term": max((answer.status.term for answer in standing.answers if answer.status), default=0),
        "leader": standing.leader.id if standing.leader else None,
        "voters": list(standing.voters),
        "learners": list(standing.learners),
        "acknowledging": [voter for voter in standing.voters if voter in standing.acknowledging],
        "takes_writes": standing.takes_messages,
        "nodes": [_node_json(answer) | {"member": standing.is_member(answer.id)} for answer in standing.answers],
    }


def _node_json(answer: NodeAnswer) -> dict[str, Any]:
    status = answer.status
    result: dict[str, Any] = {"id": answer.id, "address": answer.address, "reachable": status is not None}
    for key in ("role", "term", "pid", "first_index", "last_index", "committed_index", "applied_index"):
        result[key] = getattr(status, key) if status else None
    if status is None:
        return result | {"error": answer.error}
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
        for peer in status.peers
    ]
    return result | {
        "state": status.state,
        "leader": status.leader or None,
        "leader_confirmed": status.leader_confirmed,
        "store_id": status.store_id,
        "committed_pos": status.committed_pos,
        "disk_used_percent": status.disk_used_percent,
        "rss_bytes": status.rss_bytes,
        "anonymous_bytes": status.anonymous_bytes,
        "version": status.version,
        "started_at_ms": status.started_at_ms,
        "voters": list(status.voters),
        "learners": list(status.learners),
        "peers": peers,
        "role_state": status.role_state,
        "services_term": status.services_term or None,
        "role_log": list(status.role_log),
    }
