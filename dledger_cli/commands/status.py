"""``dledger status``: the nodes of each replica group, and in one sentence what still works."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands.nameserver import ask_all, judge, server_json
from dledger_cli.commands.updown import show_placement
from dledger_cli.context import ConfigOption, JsonOption, load_config, run
from dledger_cli.output import GREEN, RED, YELLOW, error_line, note, print_json, print_line, print_table
from dledger_cli.removed_groups import say_removed, status_without_removed
from dledger_cli.watching import WatchedCommand, WatchOption, pages

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus
    from dledger_client.admin.status_checks import Check, Finding

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
EXAMPLES = (
    "Examples: dledger status | dledger status --json | dledger status --watch 1 --until healthy --timeout 60 | "
    "dledger status --check lag=10000,disk=85 | dledger status --check quorum-critical=n1"
)
QUIET_S = 0.25


def register(app: typer.Typer) -> None:
    app.command("status", cls=WatchedCommand, epilog=EXAMPLES)(status)


def status(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    check: Annotated[
        str, typer.Option("--check", metavar="CHECK,...", help="Print only what these checks find, a line each: see below.")
    ] = "",
    watch: WatchOption = 0.0,
    until: Annotated[
        str, typer.Option("--until", metavar="healthy", help="Wait until every group is healthy, or the checks find nothing.")
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long --until waits.")] = 60.0,
) -> None:
    """Show role, term, log indexes, lag, disk and pid of every node.  Exit 1 when a group takes no writes, or a check finds something.

    Checks: no-leader, no-writes, under-replicated (a member does not answer, or is not in sync), lag=ENTRIES, disk=PERCENT, cert=DAYS,
    damage, clock, or all of these: all.  quorum-critical=NODE finds whether writes would stop without that node.
    """
    if until not in ("", "healthy"):
        raise typer.BadParameter("expected healthy", param_hint="--until")
    view = _View(load_config(config), as_json, _parsed(check))
    if not watch and not until:
        view.look()
        view.show()
        raise typer.Exit(0 if view.good else 1)
    _repeat(view, watch, timeout if until else math.inf)


def _repeat(view: _View, every_s: float, timeout_s: float) -> None:
    """Look until the cluster is healthy, with --watch showing each look.  Exit 1 after ``timeout_s``; infinite: without end."""
    deadline = time.monotonic() + timeout_s
    waits = timeout_s < math.inf
    looks = pages(every_s, as_json=view.as_json, deadline=deadline) if every_s else _quietly()
    with contextlib.closing(looks) as found:
        for page in found:
            with page:
                view.look()
                if every_s or view.healthy:
                    view.show()
            if waits and (view.healthy or time.monotonic() > deadline):
                break
    if not view.healthy:
        error_line(f"not healthy after {timeout_s:g} s: {view.trouble()}")
        raise typer.Exit(1)


def _quietly() -> Generator[contextlib.AbstractContextManager[None], None, None]:
    while True:
        yield contextlib.nullcontext()
        time.sleep(QUIET_S)


def _parsed(check: str) -> list[Check]:
    if not check:
        return []
    from dledger_client.admin.status_checks import parse_checks
    from dledger_wire.errors import InvalidArgumentError

    try:
        return parse_checks(check)
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--check") from None


@dataclass(slots=True)
class _View:
    """What one look at the cluster found, and how it is shown."""

    cluster: ClusterConfig
    as_json: bool
    checks: list[Check]
    groups: list[ReplicaGroupStatus] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    healthy: bool = False
    good: bool = False

    def look(self) -> None:
        """Ask every node."""
        self.healthy = self.good = False  # also when the question fails
        self.groups, self.removed = run(status_without_removed(self.cluster))
        if self.checks:
            from dledger_client.admin.status_checks import find

            wanted = {
                group.name: [node.id for node in group.nodes if not node.spare]
                for group in self.cluster.groups
                if group.name not in self.removed
            }
            self.findings = find(self.groups, self.checks, int(time.time() * 1000), wanted)
            self.healthy = self.good = not self.findings
        else:
            self.healthy = all(group.healthy for group in self.groups)
            self.good = all(group.takes_messages for group in self.groups)

    def show(self) -> None:
        say_removed(self.removed)
        if self.checks:
            _show_findings(self.checks, self.findings, as_json=self.as_json)
            return
        servers = ask_all(self.cluster) if self.cluster.name_server_processes else []
        if self.as_json:
            print_json(_groups_json(self.groups) | {"name_servers": [server_json(server) for server in servers]})
            return
        show(self.cluster, self.groups, as_json=False)
        show_placement(self.cluster)
        if servers:
            print_line(*judge(servers))

    def trouble(self) -> str:
        """Why it is not healthy, on one line."""
        from dledger_client.admin.status_text import sentence

        return "; ".join(map(str, self.findings)) if self.checks else sentence(self.groups) if self.groups else "no answer"


def _show_findings(checks: list[Check], findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        rows = [{"check": each.check, "group": each.replica_group, "node": each.node or None, "text": each.text} for each in findings]
        print_json({"checks": [str(check) for check in checks], "findings": rows})
        return
    for finding in findings:
        print_line(str(finding), RED)
    if not findings:
        note(f"nothing found: {', '.join(map(str, checks))}")


def show(cluster: ClusterConfig, groups: list[ReplicaGroupStatus], *, as_json: bool) -> None:
    """Print the table with its sentence, or the JSON."""
    if as_json:
        print_json(_groups_json(groups))
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
    indexes = [node.first_index, node.last_index, node.committed_index, node.applied_index]
    return [*place, node.role, node.term, *indexes, group.lag(node), f"{node.disk_used_percent:.0f}%", seen, node.pid, note]


def _groups_json(groups: list[ReplicaGroupStatus]) -> dict[str, Any]:
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
            "unheard": peer.unheard,
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
