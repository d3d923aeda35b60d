"""``dledger node``: one node in the foreground, as systemd or a container runs it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.output import note

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig


def register(app: typer.Typer) -> None:
    app.command("node")(node)


def node(
    config: Annotated[str, typer.Option("--config", "-f", metavar="FILE", help="Cluster file.")],
    node_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Id of the node in the cluster file; with --check also of a name server.")
    ],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder; the node writes to DIR/ID.")] = "",
    log_file: Annotated[str, typer.Option("--log-file", metavar="FILE", help="Write the log to FILE instead of stderr.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the cluster file, then exit.")] = False,
) -> None:
    """Run one node in the foreground.  SIGTERM, SIGINT and SIGHUP (a closed terminal) stop it; it transfers leadership first."""
    from broker.config.cluster_file import ClusterConfig

    cluster = ClusterConfig.load(config)
    spare = cluster.spare(node_id)
    own = cluster.addresses_of(node_id)  # ConfigError unless the file has it
    if check:
        check_files(cluster, node_id)
        check_expiry(cluster, node_id)
        check_hosts(cluster, node_id)
        note(f"{config}: ok")
        return
    if not data:
        raise typer.BadParameter("required to run a node", param_hint="--data")
    folder = Path(data)
    if (folder / "identity.json").is_file():
        text = f"{folder} is the folder of one node; expected the folder above it: --data {folder.parent}"
        raise typer.BadParameter(text, param_hint="--data")
    from broker.process.allocator import restart_with_malloc_settings

    restart_with_malloc_settings()  # before anything of a node is loaded, which would be loaded again
    from broker.main import run_node, run_spare
    from broker.process.data_dir_lock import holder_pid
    from dledger_cli.local.processes import check_addresses_free

    if holder_pid(str(folder / node_id)) is None:  # else the lock of the folder gives the better error
        check_addresses_free(node_id, own)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's messages come as errors of the calls
    if spare is not None:
        sys.exit(run_spare(cluster, spare, data, log_file))
    sys.exit(run_node(cluster.node(node_id), data, log_file, _console(cluster, config, node_id, data)))


def _console(cluster: ClusterConfig, file: str, node_id: str, data: str) -> AbstractContextManager[object]:
    """The web console that this node keeps running, if it is to start one and can.  It has no credentials of its own: its users log in."""
    from broker.config.console import console_options, starts_console
    from broker.process.supervised_process import SupervisedProcess, not_started
    from dledger_cli.commands.console import need_library
    from dledger_wire.errors import ConfigError
    from dledger_wire.security import variables

    if cluster.console is None or not starts_console(cluster, node_id):
        return nullcontext()
    try:
        need_library()
    except ConfigError as error:  # the page beside the node is no reason to keep messages out
        return not_started("console", error.message)
    command = [sys.executable, "-P", "-m", "dledger_cli", "console", "--config", str(Path(file).resolve())]
    command += [*console_options(cluster.console, node_id), "--reports", str(Path(data).resolve() / "drills")]
    left_out = (variables.USER, variables.PASSWORD_FILE, variables.CERT, variables.KEY, "DLEDGER_BOOTSTRAP", "DLEDGER_CONTEXT")
    return SupervisedProcess("console", command, without=left_out)


def check_expiry(cluster: ClusterConfig, own_id: str) -> None:
    """ConfigError when the certificate has expired.  A start does not ask: what is put in its place is taken over while the node runs."""
    from datetime import UTC, datetime

    from broker.config.security import tls_settings
    from dledger_wire.errors import ConfigError
    from dledger_wire.security.tls import expiry

    if cluster.security is None or cluster.security.tls is None:
        return
    file = tls_settings(cluster.security.tls, cluster.folder, own_id).cert
    expired = expiry(file)
    if expired <= datetime.now(UTC):
        raise ConfigError(f"{file}: expired on {expired:%Y-%m-%d}; expected a certificate that is valid: dledger certs create")


def check_hosts(cluster: ClusterConfig, own_id: str) -> None:
    """ConfigError when the certificate does not do for one of the hosts at which others reach the process.  A start does not ask either."""
    from broker.config.security import tls_settings
    from broker.config.values import split_address
    from broker.security.own_certificate import check_handshake
    from dledger_wire.security.tls import TlsContexts

    if cluster.security is None or cluster.security.tls is None:
        return
    tls = TlsContexts(tls_settings(cluster.security.tls, cluster.folder, own_id))
    for host in dict.fromkeys(split_address(address)[0] for address in cluster.reached_at(own_id)):
        check_handshake(tls, host)


def check_files(cluster: ClusterConfig, node_id: str) -> None:
    """ConfigError when certificates, keys or secrets of a node, a spare node or a name server cannot be used, or name servers of a secured
    cluster would not start for want of a secret.  What the variable of their password holds elsewhere is not known here."""
    from broker.security.setup import process_security
    from dledger_wire.security import principal

    servers = cluster.name_server_processes
    if any(server.id == node_id for server in servers):
        process_security(cluster, principal.name_server(cluster.cluster, node_id))
        settings = cluster.name_server(node_id)
        settings.check_password()
        settings.password()
        return
    group = principal.SPARE_GROUP if cluster.spare(node_id) is not None else cluster.node(node_id).group.name
    process_security(cluster, principal.node(cluster.cluster, group, node_id))
    if servers and cluster.security is not None:
        cluster.name_server(servers[0].id).check_password()
