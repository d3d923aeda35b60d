"""``dledger status``: who leads, who lags, and in one sentence what still works.

Every node is asked at once with a deadline of two seconds; one that does not answer keeps its row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.context import ConfigOption, JsonOption, NodeAnswer, ask_nodes, load_config, run
from broker.cli.output import GREEN, RED, YELLOW, error_line, paint, print_json, print_table

if TYPE_CHECKING:
    from broker.config import ClusterConfig

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
    """Per group and node: role, term, log indexes, lag, disk, pid.  Exit 1 when a group has no leader."""
    if until not in ("", "healthy"):
        raise typer.BadParameter("expected healthy", param_hint="--until")
    cluster = load_config(config)
    deadline = time.monotonic() + timeout
    while True:
        answers = run(ask_nodes(cluster))
        healthy = all_healthy(cluster, answers)
        if not until or healthy or watch:
            show(cluster, answers, as_json=as_json)
        if until:
            if healthy:
                return
            if time.monotonic() > deadline:
                error_line(f"not healthy after {timeout:g} s: {sentence(cluster, answers)}")
                raise typer.Exit(1)
        elif not watch:
            break
        time.sleep(watch or 0.25)
    if not all_led(cluster, answers):
        raise typer.Exit(1)


def show(cluster: ClusterConfig, answers: list[NodeAnswer], *, as_json: bool) -> None:
    if as_json:
        print_json({"groups": [_group_json(group.name, _of_group(answers, group.name)) for group in cluster.groups]})
        return
    rows = [row for group in cluster.groups for row in _group_rows(_of_group(answers, group.name))]
    print_table(HEADER, rows, right=NUMBERS)
    text = sentence(cluster, answers)
    colour = GREEN if all_healthy(cluster, answers) else YELLOW if all_led(cluster, answers) else RED
    print(paint(text, colour), flush=True)


def all_led(cluster: ClusterConfig, answers: list[NodeAnswer]) -> bool:
    """Whether every group has a leader that can serve."""
    return all(_leader(_of_group(answers, group.name)) for group in cluster.groups)


def all_healthy(cluster: ClusterConfig, answers: list[NodeAnswer]) -> bool:
    """Every node up, in order, and following the leader of its group."""
    for group in cluster.groups:
        members = _of_group(answers, group.name)
        leader = _leader(members)
        if leader is None or leader.status is None:
            return False
        for answer in members:
            if answer.status is None or answer.status.state.partition(";")[0] not in ("", "ok") or answer.status.leader != leader.id:
                return False
    return True


def sentence(cluster: ClusterConfig, answers: list[NodeAnswer]) -> str:
    """What an operator wants to know: what works, and what one more failure would do."""
    up = sum(answer.status is not None for answer in answers)
    count = len(cluster.groups)
    start = f"{count} group{'s' if count > 1 else ''}, {up} of {len(answers)} node{'s' if len(answers) > 1 else ''} up, "
    spare = min(_spare(_of_group(answers, group.name)) for group in cluster.groups)
    if spare < 0:
        broken = [group.name for group in cluster.groups if _spare(_of_group(answers, group.name)) < 0]
        return start + f"no quorum in {', '.join(broken)} (writes are stopped until another node returns)"
    if not all_led(cluster, answers):
        return start + "quorum ok, but a leader is still being elected"
    if spare == 0:
        return start + "quorum ok (losing one more stops writes)"
    return start + f"quorum ok (writes go on when {'one more node fails' if spare == 1 else f'{spare} more nodes fail'})"


def _spare(members: list[NodeAnswer]) -> int:
    """How many more voters may fail before writes stop; negative when they have stopped."""
    leader = _leader(members)
    voters = set(leader.status.voters) if leader and leader.status and leader.status.voters else {answer.id for answer in members}
    up = sum(answer.status is not None for answer in members if answer.id in voters)
    return up - (len(voters) // 2 + 1)


def _of_group(answers: list[NodeAnswer], group: str) -> list[NodeAnswer]:
    return [answer for answer in answers if answer.group == group]


def _leader(members: list[NodeAnswer]) -> NodeAnswer | None:
    """The newest leader that has confirmed its term."""
    leaders = [answer for answer in members if answer.status and answer.status.role == "leader" and answer.status.leader_confirmed]
    return max(leaders, key=lambda answer: answer.status.term if answer.status else 0, default=None)


def _group_rows(members: list[NodeAnswer]) -> list[list[Any]]:
    leader = _leader(members)

    def order(answer: NodeAnswer) -> tuple[int, str]:
        return (ROLE_ORDER.get(answer.status.role, 1) if answer.status else 3, answer.id)

    return [_row(answer, leader) for answer in sorted(members, key=order)]


def _row(answer: NodeAnswer, leader: NodeAnswer | None) -> list[Any]:
    from broker.units import format_duration_ms

    contact = None
    if leader and leader.status and answer is not leader:
        contact = next((peer.last_contact_ms for peer in leader.status.peers if peer.id == answer.id and peer.last_contact_ms >= 0), None)
    seen = None if contact is None else format_duration_ms(contact)
    status = answer.status
    if status is None:
        nothing = [None] * 8
        return [answer.group, answer.id, answer.address, *nothing, seen, None, f"unreachable: {answer.error}"]
    lag = None
    if leader and leader.status and answer is not leader:
        lag = max(0, leader.status.committed_index - status.committed_index)
    indexes = [status.first_index, status.last_index, status.committed_index, status.applied_index]
    disk = f"{status.disk_used_percent:.0f}%"
    return [answer.group, answer.id, status.address, status.role, status.term, *indexes, lag, disk, seen, status.pid, _note(answer)]


def _note(answer: NodeAnswer) -> str:
    status = answer.status
    if status is None:
        return ""
    notes = [] if status.state in ("", "ok") else [status.state]
    if status.role == "leader":
        notes.append("master on" if status.leader_confirmed else "confirming its term")
        if status.leader_confirmed and not status.services_term:
            notes.append(status.role_state)
    elif not status.leader:
        notes.append("knows no leader")
    return ", ".join(notes)


def _group_json(name: str, members: list[NodeAnswer]) -> dict[str, Any]:
    leader = _leader(members)
    term = max((answer.status.term for answer in members if answer.status), default=0)
    return {"name": name, "term": term, "leader": leader.id if leader else None, "nodes": [_node_json(answer) for answer in members]}


def _node_json(answer: NodeAnswer) -> dict[str, Any]:
    status = answer.status
    result: dict[str, Any] = {"id": answer.id, "address": answer.address, "reachable": status is not None}
    for key in ("role", "term", "pid", "first_index", "last_index", "committed_index", "applied_index"):
        result[key] = getattr(status, key) if status else None
    if status is None:
        return result | {"error": answer.error}
    peers = [
        {"id": peer.id, "match_index": peer.match_index, "state": peer.state, "last_contact_ms": peer.last_contact_ms}
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
