"""``dledger console``: the web console in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.connection import connection
from dledger_cli.context import ConfigOption, bootstrap_of, given_bootstrap, load_config
from dledger_cli.output import note
from dledger_wire.security.variables import CERT, USER

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire.security.tls import TlsSettings

DEFAULT_ADDRESS = "127.0.0.1:8080"
MIN_IDLE_MS = 1_000


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    config: ConfigOption = None,
    address: Annotated[str, typer.Option("--address", metavar="HOST:PORT", help="Where the console listens.")] = DEFAULT_ADDRESS,
    read_only: Annotated[bool, typer.Option("--read-only", help="Disable all actions, whatever permissions users have.")] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="Host name that browsers may request. May be repeated."),
    ] = None,
    idle: Annotated[str, typer.Option("--idle", metavar="TIME", help="Log users out after this time without a click or key.")] = "30m",
    reports: Annotated[str, typer.Option("--reports", metavar="DIR", help="Folder with reports of drills, HTML.")] = "drills",
    cert: Annotated[str, typer.Option("--cert", metavar="FILE", help="Serve HTTPS with this certificate, PEM.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="FILE", help="Its key (mode 0600), PEM.")] = "",
    of_node: Annotated[str, typer.Option("--of-node", hidden=True, help="Started by this node: ends with it, has its certificate.")] = "",
) -> None:
    """Serve the web console.  Users of the cluster log in with their passwords."""
    from dledger_console.settings import ConsoleSettings

    host, port = _split(address)
    cluster = None if given_bootstrap(config) else load_config(config)
    if of_node and cluster is not None and cluster.console is not None:
        from broker.process.kernel_limits import take_low_priority

        take_low_priority(cluster.console.maxMemory)
    settings = ConsoleSettings(
        bootstrap=bootstrap_of(config),
        host=host,
        port=port,
        read_only=read_only,
        users=None if cluster is None else cluster.security is not None and cluster.security.users is not None,
        as_started=_as_started(host, read_only=read_only),
        host_names=frozenset(name.lower() for name in host_name or ()),
        tls=_certificate(cluster, cert, key, of_node),
        idle_s=_idle_s(idle),
        reports=str(Path(reports).absolute()),
    )
    need_library()
    from dledger_console.app import serve

    note(f"console of {settings.bootstrap} at {settings.url}{' (read-only)' if read_only else ''}")
    serve(settings, ends_with_stdin=bool(of_node))


def _idle_s(text: str) -> float:
    from dledger_cli.context import parse_duration_option

    idle_ms = parse_duration_option(text, "--idle")
    if idle_ms < MIN_IDLE_MS:
        raise typer.BadParameter(f"{text}: expected at least 1s", param_hint="--idle")
    return idle_ms / 1000


def _split(address: str) -> tuple[str, int]:
    from broker.config.values import split_address

    try:
        return split_address(address)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--address") from None


def _as_started(host: str, *, read_only: bool) -> bool:
    """Whether every visitor acts as the user of the options or the environment: access is then up to this machine."""
    from broker.config.placement import is_loopback

    used = connection()
    if not (used.variable(USER) or used.variable(CERT)):
        return False
    if not (read_only or is_loopback(host)):
        text = "anyone who reaches the console would act as this user; expected a loopback address, or --read-only"
        raise typer.BadParameter(text, param_hint="--user")
    return True


def _certificate(cluster: ClusterConfig | None, cert: str, key: str, of_node: str) -> TlsSettings | None:
    from dledger_wire.security.tls import TlsSettings

    if bool(cert) != bool(key):
        raise typer.BadParameter("--cert and --key are required together", param_hint="--cert")
    if cert:
        return TlsSettings(cert, cert, key, client_auth="none")
    if not of_node or cluster is None or cluster.security is None or cluster.security.tls is None:
        return None
    from dataclasses import replace

    from broker.config.security import tls_settings

    return replace(tls_settings(cluster.security.tls, cluster.folder, of_node), client_auth="none")


def need_library() -> None:
    """ConfigError without what the extra ``console`` installs."""
    from importlib.util import find_spec

    from dledger_wire.errors import ConfigError
    from dledger_wire.extras import install_command

    if find_spec("nicegui") is None:
        raise ConfigError(f"the web console needs nicegui: {install_command('console')}")
