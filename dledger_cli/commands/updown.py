"""``dledger up`` and ``dledger down``: all nodes of a cluster file as background processes of this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import LONG_S, DataOption, cluster_status, config_path, run
from dledger_cli.help_page import FileCommand, JsonCommand
from dledger_cli.output import error_line, json_wanted, note, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.local.local_process import LocalProcess
    from dledger_cli.local.processes import LocalCluster
    from dledger_client.admin.cluster_status import ReplicaGroupStatus
    from dledger_wire.errors import DledgerError

POLL_S = 0.1
REFUSED_S = 2.0  # a member that its peers refuse that long stays refused
STOP_TIMEOUT_S = 30.0
ROCKETMQ_PORTS = 10_000


def register(app: typer.Typer) -> None:
    app.command("up", cls=FileCommand)(up)
    app.command("down", cls=JsonCommand)(down)


def up(
    data: DataOption = "data",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Give up waiting for leaders after this time.")
    ] = LONG_S,
    rocketmq: Annotated[
        bool, typer.Option("--rocketmq", help="Serve RocketMQ's clients, too: 10000 ports above each node's, unless the file says where.")
    ] = False,
) -> None:
    """Start all nodes and name servers in the background.  Wait until every replica group has a leader.  Running nodes are left
    alone.
    """
    from broker.config.cluster_file import ClusterConfig, read_cluster_text
    from dledger_cli.local.cluster_edit import moved, replace_file
    from dledger_cli.local.folder_lock import one_at_a_time
    from dledger_cli.local.processes import LocalCluster, make_data_folder
    from dledger_cli.status_text import show_placement

    source = config_path(data=data)
    text = read_cluster_text(source)
    if rocketmq:
        text = _with_rocketmq(ClusterConfig.parse(text, source), text)
    cluster = LocalCluster(ClusterConfig.parse(text, source), make_data_folder(data))
    with one_at_a_time(cluster.data):
        _check_replaced(cluster, source)
        replace_file(cluster.file, moved(text, Path(source)), Path(source))
        show_placement(cluster.config)
        running, new = cluster.running(), cluster.new_groups()
        started = cluster.start(cluster.all_ids())
    if running:
        note(f"already running: {', '.join(f'{node_id} (pid {pid})' for node_id, pid in running.items())}")
    start = time.monotonic()
    if not _wait_for_masters(cluster, started, timeout):
        raise typer.Exit(1)
    if cluster.name_server_ids() and not _wait_for_name_servers(cluster, started, timeout - (time.monotonic() - start)):
        raise typer.Exit(1)
    if new:
        run(_begin_at_newest_level(cluster.config, new))


def _with_rocketmq(config: ClusterConfig, text: str) -> str:
    """The cluster file with ports for RocketMQ's clients, if it has none."""
    from broker.config.rocketmq import remoting_name_servers
    from dledger_cli.local.yaml_text import with_value

    if remoting_name_servers(config):
        return text
    if "rocketmq" in config.given_names:
        return with_value(text, "rocketmq", "portOffset", ROCKETMQ_PORTS)
    return f"{text.rstrip()}\nrocketmq: {{portOffset: {ROCKETMQ_PORTS}}}\n"


async def _begin_at_newest_level(config: ClusterConfig, groups: Collection[str]) -> None:
    """New replica groups have no older build to go back to."""
    from dledger_cli.connection import as_member
    from dledger_client.aio import Admin
    from dledger_wire.errors import DledgerError

    with as_member(config):
        admin = Admin(config.bootstrap())
    async with admin:
        for group in groups:
            try:
                await admin.finish_upgrade(group)
            except DledgerError as error:
                note(f"replica group {group} stays at its feature level (dledger cluster upgrade-finish): {error.message}")


def _check_replaced(cluster: LocalCluster, source: str) -> None:
    """DataDirectoryError when the folder's cluster file is of another cluster, or names a node that runs and would be forgotten."""
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.local.processes import LocalCluster
    from dledger_wire.errors import ConfigError, DataDirectoryError

    try:
        before = LocalCluster(ClusterConfig.load(str(cluster.file)), cluster.data)
    except ConfigError:
        return  # there is none yet, or it says nothing
    old, new = before.config.cluster, cluster.config.cluster
    if old != new and any(before.belongs(each) for each in before.all_ids()):
        text = f"{cluster.data} is the data folder of cluster {old}, and {source} is of cluster {new}"
        raise DataDirectoryError(f"{text}; expected another folder (--data)")
    for name, pid in before.running().items():
        if name not in cluster.all_ids():
            stop = f"dledger down --data {cluster.data} --id {name}"
            raise DataDirectoryError(f"{name} (pid {pid}) runs, and {source} does not name it; stop it first ({stop})")


def _wait_for_masters(cluster: LocalCluster, started: dict[str, LocalProcess], timeout_s: float) -> bool:
    """Wait until every group has a master and all its members are in order, and show the table; False, with an error, when that fails.

    Nodes that are not members only have to answer.  A member that its peers refuse fails soon: waiting does not change that.
    """
    from dledger_cli.status_text import show_status
    from dledger_wire.errors import AuthenticationFailedError, PermissionDeniedError

    start = time.monotonic()
    refused_since: dict[str, float] = {}
    while True:
        if ended := cluster.ended(started):
            error_line(ended)
            return False
        try:
            groups = run(cluster_status(cluster.config, as_node=True))
        except (AuthenticationFailedError, PermissionDeniedError) as error:
            error_line(f"the nodes were started, but their state is not known: {error.message}{_hint(error)}")
            return False
        missing = [node.id for group in groups for node in group.nodes if node.id in started and not node.reachable]
        if not missing and all(group.healthy for group in groups):
            show_status(cluster.config, groups)
            return True
        now = time.monotonic()
        refused = [node.id for group in groups if group.leader for node in group.nodes if group.refusal(node.id)]
        refused_since = {node_id: refused_since.get(node_id, now) for node_id in refused}
        stay_refused = [node_id for node_id, since in refused_since.items() if now - since > REFUSED_S]
        if stay_refused or now - start > timeout_s:
            show_status(cluster.config, groups)
            _explain(cluster, groups, started, stay_refused, timeout_s)
            return False
        time.sleep(POLL_S)


def _hint(error: DledgerError) -> str:
    """Another user helps a caller without credentials or without a right, not against a certificate or a password that is refused."""
    from dledger_wire.errors import PermissionDeniedError

    helps = isinstance(error, PermissionDeniedError) or error.details.get("reason") == "no_credentials"
    return " (dledger up --user NAME)" if helps else ""


def _wait_for_name_servers(cluster: LocalCluster, started: dict[str, LocalProcess], limit_s: float) -> bool:
    """Wait until every name server knows the whole cluster, and say so; False, with an error, when that fails."""
    from dledger_cli.commands.nameserver import ask_all, judge

    deadline = time.monotonic() + limit_s
    while True:
        if ended := cluster.ended(started):
            error_line(ended)
            return False
        found = ask_all(cluster.config, as_node=True)
        if len(found) == len(cluster.name_server_ids()) and all(server.complete for server in found):
            if not json_wanted():
                print_line(judge(found)[0])
            return True
        if time.monotonic() > deadline:
            error_line(f"{judge(found)[0]}; logs: {cluster.data}/*.log")
            return False
        time.sleep(POLL_S)


def _explain(
    cluster: LocalCluster, groups: list[ReplicaGroupStatus], started: Collection[str], refused: Collection[str], timeout_s: float
) -> None:
    """Why the cluster is not healthy: nodes that their peers refuse, or nodes that do not answer."""
    from dledger_client.admin.status_text import node_note, sentence

    for group in groups:
        for node in group.nodes:
            if node.id in refused:
                error_line(f"node {node.id} is {node_note(group, node)}")
    if refused:
        return
    running = cluster.running()  # also of an earlier start, perhaps at an address that the node had then
    for node in (node for group in groups for node in group.nodes):
        if not node.reachable and node.id in running and node.id not in started:
            text = f"node {node.id} runs (pid {running[node.id]}) and does not answer at {node.address}"
            error_line(f"{text}; if its address was changed, stop it and run dledger up again")
    error_line(f"no healthy cluster after {timeout_s:g} s: {sentence(groups)}; logs: {cluster.data}/*.log")


def down(
    data: DataOption = "data",
    only: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Stop only this node or name server. May be repeated.")
    ] = None,
    kill: Annotated[bool, typer.Option("--kill", help="Kill a node that does not stop in time.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Give up on a node that does not stop within this time.")
    ] = STOP_TIMEOUT_S,
) -> None:
    """Stop all nodes and name servers of the data folder.  Followers are stopped first, then leaders, then name servers."""
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.local.folder_lock import one_at_a_time
    from dledger_cli.local.processes import LocalCluster
    from dledger_wire.errors import ConfigError

    folder = Path(data)
    cluster, why = LocalCluster(ClusterConfig(cluster="", groups=[]), folder), ""
    if not cluster.file.is_file():
        if not cluster.recorded():
            note(f"nothing to stop: {cluster.file} does not exist")
            if json_wanted():
                print_json({"stopped": []})
            return
        why = f"{cluster.file} does not exist"
    with one_at_a_time(folder):
        try:
            cluster = cluster if why else LocalCluster(ClusterConfig.load(str(cluster.file)), folder)
        except ConfigError as error:
            why = error.message
        if why:
            note(f"{why}; stopping what dledger up started in {folder}, by its pid files")
        stopped, failed = _stop(cluster, only, kill=kill, timeout=timeout)
    if json_wanted():
        print_json({"stopped": stopped})
    if failed:
        raise typer.Exit(1)


def _stop(cluster: LocalCluster, only: Sequence[str] | None, *, kill: bool, timeout: float) -> tuple[list[str], bool]:
    """What was stopped, and whether something else runs on."""
    stopped, failed = [], False
    for node_id in _stop_order(cluster, _known(cluster, only)):
        if not cluster.signal(node_id, signal.SIGTERM):
            continue
        if cluster.wait_stopped(node_id, timeout):
            note(f"{node_id} stopped")
            stopped.append(node_id)
        elif kill and cluster.signal(node_id, signal.SIGKILL) and cluster.wait_stopped(node_id, timeout):
            note(f"{node_id} killed after {timeout:g} s")
            stopped.append(node_id)
        else:
            text = f"{node_id} (pid {(cluster.running() | cluster.unnamed()).get(node_id)}) did not stop within {timeout:g} s"
            error_line(text if kill else f"{text}; --kill kills it")
            failed = True
    for name, pid in () if only else cluster.unnamed().items():
        error_line(f"{name} runs here, and neither {cluster.file} nor a pid file names it: kill {pid} stops it")
        failed = True
    return stopped, failed


def _known(cluster: LocalCluster, only: Sequence[str] | None) -> Collection[str]:
    """What is to be stopped: everything, unless some are named."""
    known = [*cluster.all_ids(), *cluster.recorded()]
    for name in only or []:
        if name not in known:
            raise typer.BadParameter(f"no node {name!r} in {cluster.file}; it has {', '.join(known)}", param_hint="--id")
    return only or known


def _stop_order(cluster: LocalCluster, wanted: Collection[str]) -> list[str]:
    from dledger_wire.errors import DledgerError

    running = {name: pid for name, pid in (cluster.running() | cluster.recorded()).items() if name in wanted}
    if not running:
        note("no node is running" if len(wanted) != 1 else f"{next(iter(wanted))} is not running")
        return []
    groups = []
    if cluster.config.groups:
        try:
            groups = run(cluster_status(cluster.config, as_node=True))
        except DledgerError as error:
            note(f"the leader is not known, so it may be stopped first: {error.message}")
    leaders = {node.id for group in groups for node in group.nodes if node.role == "leader"}
    return sorted(running, key=lambda name: (cluster.is_name_server(name), name in leaders, name))
