"""``dledger nameserver``: one name server in the foreground, and what all of them say of themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.connection import as_member
from dledger_cli.context import ask, run
from dledger_cli.help_page import command_group
from dledger_cli.output import GREEN, RED, YELLOW, json_wanted, print_answer, print_line
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.name_servers import NameServerStatus

HEADER = ("ID", "ADDRESS", "ROLE", "GROUPS", "TOPICS", "WAITING", "REGISTRATIONS", "REFUSED", "ROUTES", "RSS", "CPU", "NOTE")
ASK_TIMEOUT_MS = 2_000
NUMBERS = ("GROUPS", "TOPICS", "WAITING", "REGISTRATIONS", "REFUSED", "ROUTES", "RSS", "CPU")


def register(root: typer.Typer) -> None:
    app = command_group(root, "nameserver", no_args_is_help=False)
    app.callback(invoke_without_command=True)(nameserver)
    reading_command(app, "status")(status)


def nameserver(
    context: typer.Context,
    config: Annotated[str, typer.Option("--config", "-f", metavar="FILE", help="Cluster file.")] = "",
    server_id: Annotated[str, typer.Option("--id", metavar="ID", help="Id of the name server in the cluster file.")] = "",
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder; the name server uses DIR/ID.")] = "",
    log_file: Annotated[str, typer.Option("--log-file", metavar="FILE", help="Write the log to FILE instead of stderr.")] = "",
) -> None:
    """Run one name server in the foreground until SIGTERM, SIGINT or SIGHUP, or show all of them (status)."""
    if context.invoked_subcommand is not None:
        return
    for value, option in ((config, "--config"), (server_id, "--id"), (data, "--data")):
        if not value:
            raise typer.BadParameter("required to run a name server", param_hint=option)
    from pathlib import Path

    from broker.config.cluster_file import ClusterConfig
    from broker.main import run_name_server
    from broker.process.data_dir_lock import holder_pid
    from dledger_cli.local.processes import check_addresses_free

    cluster = ClusterConfig.load(config)
    settings = cluster.name_server(server_id)
    if holder_pid(str(Path(data) / server_id)) is None:  # else the lock of the folder gives the better error
        check_addresses_free(server_id, cluster.addresses_of(server_id))
    sys.exit(run_name_server(settings, data, log_file))


def status() -> None:
    """Show what each name server knows, and whether they agree.  Exits with 1 if none knows the whole cluster."""
    found = ask(lambda admin: admin.name_servers())
    show(found)
    if not any(server.complete for server in found):
        raise typer.Exit(1)


def show(found: list[NameServerStatus]) -> None:
    """Print the table with its sentence, or the JSON."""
    print_answer({"name_servers": [server_json(server) for server in found]}, HEADER, [_row(server) for server in found], right=NUMBERS)
    if not json_wanted():
        print_line(*judge(found))


def ask_all(config: ClusterConfig, *, as_node: bool = False) -> list[NameServerStatus]:
    """What each name server of the cluster file that is a process of its own says."""
    from dledger_client.aio import Admin

    async def asked() -> list[NameServerStatus]:
        with as_member(config, always=as_node):
            admin = Admin([server.address for server in config.name_server_processes], timeout_ms=ASK_TIMEOUT_MS)
        async with admin:
            return await admin.name_servers()

    return run(asked())


def judge(found: list[NameServerStatus]) -> tuple[str, str]:
    """One sentence on all name servers, and its colour."""
    answering = [server for server in found if server.reachable]
    complete = [server for server in answering if server.complete]
    if not complete:
        return f"{len(answering)} of {len(found)} name servers answer, none for the whole cluster: clients ask the nodes", RED
    versions = {server.directory_version for server in complete}
    if len(complete) == len(found) and len(versions) == 1:
        return f"all {len(found)} name servers know the whole cluster and agree", GREEN
    agree = "" if len(versions) == 1 else "; they do not agree yet"
    return f"{len(complete)} of {len(found)} name servers know the whole cluster{agree}", YELLOW


def _row(server: NameServerStatus) -> list[Any]:
    name = server.id or "(node)"
    if not server.reachable:
        return [server.id or "-", server.address, *[None] * 9, "does not answer"]
    notes = [] if server.complete else ["not all replica groups have registered"]
    if server.id and not server.has_quorum:
        notes.append("no majority of name servers connected")
    counts = [server.replica_groups, server.topics, server.waiting_clients, server.registrations, server.refused_registrations]
    size = f"{server.rss_bytes / (1 << 20):.0f} MiB"
    return [name, server.address, server.role, *counts, server.routes_requests, size, f"{server.cpu_s:.1f} s", ", ".join(notes)]


def server_json(server: NameServerStatus) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(server)
