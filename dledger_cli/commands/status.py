"""``dledger status``: the nodes of each replica group, and in one sentence what still works."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.commands.nameserver import ask_all, judge, server_json
from dledger_cli.connection import as_member
from dledger_cli.context import load_readable, run
from dledger_cli.output import RED, error_line, fields_of, json_wanted, note, print_json, print_line
from dledger_cli.removed_groups import say_removed, status_without_removed
from dledger_cli.status_text import groups_json, show_placement, show_status
from dledger_cli.watching import IntervalCommand, WatchOption, pages

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import ReplicaGroupStatus
    from dledger_client.admin.consumer_checks import Check, ConsumersStatus, Finding

QUIET_S = 0.25
CONSUMERS_TIMEOUT_MS = 2000


def register(app: typer.Typer) -> None:
    app.command("status", cls=IntervalCommand)(status)


def status(
    check: Annotated[str, typer.Option("--check", metavar="CHECK,...", help="Print only the findings of these checks, one a line.")] = "",
    watch: WatchOption = 0.0,
    until: Annotated[
        str, typer.Option("--until", metavar="healthy", help="Wait until every group is healthy, or the checks find nothing.")
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Give up --until after this time.")] = 60.0,
) -> None:
    """Show role, term, log indexes, lag and disk of every node.  Exits with 1 if a replica group accepts no writes or a check has
    findings.

    Checks: no-leader, no-writes, under-replicated (a member does not answer, or is not in sync), lag=ENTRIES, disk=PERCENT, cert=DAYS,
    damage, clock, slow-disk=MS (a write took that long on a disk, or waits that long for a majority), alarm (of memory or disk: a node
    takes no new messages); for consumers group-lag=TIME or MESSAGES (age or number of the unread messages), group-stuck=TIME (a
    connected consumer with unread messages makes no progress), dead-letters=MESSAGES and transactions=MESSAGES (more than that many are
    waiting); all: all of these. quorum-critical=NODE reports whether writes would stop without that node.
    """
    if until not in ("", "healthy"):
        raise typer.BadParameter("expected healthy", param_hint="--until")
    view = _View(load_readable(), _parsed(check))
    if not watch and not until:
        view.look()
        view.show()
        raise typer.Exit(0 if view.good else 1)
    _repeat(view, watch, timeout if until else math.inf)


def _repeat(view: _View, every_s: float, timeout_s: float) -> None:
    """Look until the cluster is healthy, with --watch showing each look.  Exit 1 after ``timeout_s``; infinite: without end."""
    deadline = time.monotonic() + timeout_s
    waits = timeout_s < math.inf
    looks = pages(every_s, as_json=json_wanted(), deadline=deadline) if every_s else _quietly()
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
            from dledger_client.admin.status_checks import find, needs_consumers

            wanted = {
                group.name: [node.id for node in group.nodes if not node.spare]
                for group in self.cluster.groups
                if group.name not in self.removed
            }
            consumers = run(_consumers(self.cluster)) if needs_consumers(self.checks) else None
            self.findings = find(self.groups, self.checks, int(time.time() * 1000), wanted, consumers)
            self.healthy = self.good = not self.findings
        else:
            self.healthy = all(group.healthy for group in self.groups)
            self.good = all(group.takes_messages for group in self.groups)

    def show(self) -> None:
        say_removed(self.removed)
        if self.checks:
            _show_findings(self.checks, self.findings)
            return
        servers = ask_all(self.cluster) if self.cluster.name_server_processes else []
        if json_wanted():
            from broker.config.rocketmq import grpc_endpoints, remoting_name_servers

            known: dict[str, object] = {"name_servers": [server_json(server) for server in servers]}
            if rocketmq := remoting_name_servers(self.cluster):
                known["rocketmq"] = {"name_servers": rocketmq, "grpc": grpc_endpoints(self.cluster)}
            print_json(groups_json(self.groups) | known)
            return
        show_status(self.cluster, self.groups)
        show_placement(self.cluster)
        if servers:
            print_line(*judge(servers))

    def trouble(self) -> str:
        """Why it is not healthy, on one line."""
        from dledger_client.admin.status_text import why_not_healthy

        return "; ".join(map(str, self.findings)) if self.checks else why_not_healthy(self.groups) if self.groups else "no answer"


async def _consumers(cluster: ClusterConfig) -> ConsumersStatus:
    from dledger_client.aio import Admin

    with as_member(cluster):
        admin = Admin(cluster.bootstrap(), read_from="follower", timeout_ms=CONSUMERS_TIMEOUT_MS)
    async with admin:
        return await admin.consumers_status()


def _show_findings(checks: list[Check], findings: list[Finding]) -> None:
    if json_wanted():
        rows = [fields_of(each, "check", "node", "consumer_group", "text", group="replica_group") for each in findings]
        rows = [{name: value or None for name, value in row.items()} for row in rows]
        print_json({"checks": [str(check) for check in checks], "findings": rows})
        return
    for finding in findings:
        print_line(str(finding), RED)
    if not findings:
        note(f"no findings: {', '.join(map(str, checks))}")
