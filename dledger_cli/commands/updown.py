"""``dledger up`` and ``dledger down``: all nodes of a cluster file as background processes of this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, DataOption, JsonOption, ask_nodes, config_path, run
from dledger_cli.output import error_line, note

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection

    from dledger_cli.context import NodeAnswer
    from dledger_cli.local.processes import LocalCluster

POLL_S = 0.1
REFUSED_S = 2.0  # a member that its peers refuse for so long stays refused
STOP_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    app.command("up", epilog="Examples: dledger up | dledger up --config cluster-configs/local-3.yaml --data /tmp/d")(up)
    app.command("down", epilog="Example: dledger down --data data")(down)


def up(
    config: ConfigOption = None,
    data: DataOption = "data",
    as_json: JsonOption = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for the masters.")] = 60.0,
) -> None:
    """Start all nodes in the background and wait until every group has a master.  Run again, it starts only what is missing."""
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.local.processes import LocalCluster, make_data_folder

    source = config_path(config, data)
    text = _read(source)
    cluster = LocalCluster(ClusterConfig.parse(text, source), make_data_folder(data))
    if not cluster.file.is_file() or cluster.file.read_text(encoding="utf-8") != text:
        cluster.file.write_text(text, encoding="utf-8")
    running = cluster.running()
    started: dict[str, subprocess.Popen[bytes]] = {}
    for node_id in cluster.node_ids():
        if node_id not in running:
            started[node_id] = cluster.spawn(node_id)
    if running:
        note(f"running already: {', '.join(f'{node_id} (pid {pid})' for node_id, pid in running.items())}")
    if not _wait_for_masters(cluster, started, timeout, as_json=as_json):
        raise typer.Exit(1)


def _read(path: str) -> str:
    from dledger_wire.errors import ConfigError

    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the cluster file: {reason}") from error


def _wait_for_masters(cluster: LocalCluster, started: dict[str, subprocess.Popen[bytes]], timeout_s: float, *, as_json: bool) -> bool:
    """Wait until every group has a master and all its members are in order, show the table; False, with the reason told, when it fails.

    Nodes that are no members only have to answer.  A member that its peers refuse is told soon: waiting does not mend it.
    """
    from dledger_cli.commands.status import show
    from dledger_cli.group_health import sentence, standings_of

    start = time.monotonic()
    refused_since: dict[str, float] = {}
    while True:
        for node_id, process in started.items():
            if process.poll() is not None:
                words = cluster.last_words(node_id) or f"exit status {process.returncode}"
                error_line(f"node {node_id} ended: {words} (log: {cluster.log_file(node_id)})")
                return False
        answers = run(ask_nodes(cluster.config))
        standings = standings_of(cluster.config, answers)
        silent = [answer.id for answer in answers if answer.id in started and answer.status is None]
        if not silent and all(standing.healthy for standing in standings):
            show(cluster.config, answers, as_json=as_json)
            return True
        now = time.monotonic()
        refused = {each.id: standing for standing in standings if standing.leader for each in standing.answers if standing.refusal(each.id)}
        refused_since = {node_id: refused_since.get(node_id, now) for node_id in refused}
        hopeless = [node_id for node_id, since in refused_since.items() if now - since > REFUSED_S]
        if hopeless or now - start > timeout_s:
            show(cluster.config, answers, as_json=as_json)
            for node_id in hopeless:
                error_line(f"node {node_id} is {refused[node_id].note(next(each for each in answers if each.id == node_id))}")
            if not hopeless:
                _tell_silent(cluster, answers, started)
                error_line(f"no healthy cluster after {timeout_s:g} s: {sentence(standings)}; logs: {cluster.data}/*.log")
            return False
        time.sleep(POLL_S)


def _tell_silent(cluster: LocalCluster, answers: list[NodeAnswer], started: Collection[str]) -> None:
    """Tell of nodes that ran before and do not answer: they may serve at an address that they had before."""
    running = cluster.running()
    for answer in answers:
        if answer.status is None and answer.id in running and answer.id not in started:
            text = f"node {answer.id} runs (pid {running[answer.id]}) and does not answer at {answer.address}"
            error_line(f"{text}; if its address was changed, stop it and run dledger up again")


def down(
    data: DataOption = "data",
    kill: Annotated[bool, typer.Option("--kill", help="Kill a node that does not stop in time.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long each node may take.")] = STOP_TIMEOUT_S,
) -> None:
    """Stop all nodes of the data folder: followers first, the leader last, one after the other."""
    from broker.config.cluster_file import ClusterConfig
    from dledger_cli.local.processes import LocalCluster

    file = Path(data) / "cluster.yaml"
    if not file.is_file():
        note(f"nothing to stop: {file} does not exist")
        return
    cluster = LocalCluster(ClusterConfig.load(str(file)), Path(data))
    failed = False
    for node_id in _stop_order(cluster):
        if not cluster.signal(node_id, signal.SIGTERM):
            continue
        if cluster.wait_stopped(node_id, timeout):
            note(f"{node_id} stopped")
        elif kill and cluster.signal(node_id, signal.SIGKILL) and cluster.wait_stopped(node_id, timeout):
            note(f"{node_id} killed after {timeout:g} s")
        else:
            error_line(f"{node_id} (pid {cluster.running().get(node_id)}) did not stop within {timeout:g} s")
            failed = True
    if failed:
        raise typer.Exit(1)


def _stop_order(cluster: LocalCluster) -> list[str]:
    running = cluster.running()
    if not running:
        note("no node is running")
        return []
    answers = run(ask_nodes(cluster.config))
    leads = {answer.id: bool(answer.status and answer.status.role == "leader") for answer in answers}
    return sorted(running, key=lambda node_id: (leads.get(node_id, False), node_id))
