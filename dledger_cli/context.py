"""What several commands share: options, the cluster file, and calls to the cluster that the options name."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dledger_cli.connection import as_member, checked_bootstrap, connection, take_authorities
from dledger_cli.given import not_empty
from dledger_cli.output import note, use_json

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_client.admin.cluster_status import ReplicaGroupStatus
    from dledger_client.aio import Admin

T = TypeVar("T")

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-f",
        metavar="FILE",
        help="Cluster file. Default: $DLEDGER_CONFIG, ./data/cluster.yaml, the shipped local-3.",
        callback=not_empty,
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Addresses of nodes, in place of a cluster file. Default: $DLEDGER_BOOTSTRAP.",
        callback=not_empty,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.", callback=use_json)]
# Defaults of commands: READ_S for what only asks, CHANGE_S for what changes something, LONG_S for what goes through everything.
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Give up after this time.")]
READ_S, CHANGE_S, LONG_S = 10.0, 30.0, 60.0
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DataOption = Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder of the local nodes.")]

SHIPPED_CONFIG = Path(__file__).with_name("local-3.yaml")
STATUS_DEADLINE_S = 2.0
CONTACT_S = 5.0  # for the first answer of any node
GRACE_S = 1.0


def config_path(option: str | None = None, data: str | None = None) -> str:
    """The cluster file to use; ``data`` is the data folder whose own file is preferred to ``./data``'s."""
    if chosen := option or connection().config:
        return chosen
    if named := connection().variable("DLEDGER_CONFIG"):
        return named
    written = Path(data or "data") / "cluster.yaml"
    return str(written if written.is_file() else SHIPPED_CONFIG)


def given_bootstrap(config: str | None = None) -> str:
    """The addresses of --bootstrap, or of $DLEDGER_BOOTSTRAP when no cluster file is named; empty without either."""
    used = connection()
    if used.bootstrap or config or used.config:
        return used.bootstrap
    text = used.variable("DLEDGER_BOOTSTRAP")
    return checked_bootstrap(text, "DLEDGER_BOOTSTRAP") if text else ""


def bootstrap_of(config: str | None = None) -> str:
    """The addresses a client starts from; no node is asked."""
    return given_bootstrap(config) or load_readable(config).bootstrap()


def confirm(question: str, yes: bool) -> None:
    """Continue after a ``y`` or with ``--yes``; wrong usage without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("standard input is not a terminal; expected --yes")
    typer.confirm(question, abort=True, err=True)


def parse_size_option(size: str, option: str = "--size") -> int:
    """A size such as ``1KiB`` given to ``option``; wrong usage when it is not one."""
    from broker.config.units import parse_size

    try:
        return parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_duration_option(duration: str, option: str) -> int:
    """Milliseconds of a duration such as ``90s`` given to ``option``; wrong usage when it is not one."""
    from broker.config.units import parse_duration_ms

    try:
        return parse_duration_ms(duration, "s")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def time_ms(text: str, option: str) -> int:
    """Milliseconds of a number of them, or of an ISO time (UTC when it names no zone); 0 for none."""
    from dledger_client.runtime.argument_ranges import FIRST_TIME_MS

    expected = "milliseconds since 1970 (13 digits), or a time such as 2026-01-31T12:30:00"
    if not text or text.isdecimal():
        number = int(text or 0)
        if 0 < number < FIRST_TIME_MS:
            raise typer.BadParameter(f"{text!r}: expected {expected}", param_hint=option)
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected {expected}", param_hint=option) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def load_config(option: str | None = None, data: str | None = None) -> ClusterConfig:
    """The cluster of the file; with --bootstrap as its nodes describe it."""
    from broker.config.cluster_file import ClusterConfig

    bootstrap = given_bootstrap(option)
    if bootstrap:
        return run(_described_by(bootstrap))
    config = ClusterConfig.load(config_path(option, data))
    take_authorities(config)
    return config


def load_readable(option: str | None = None) -> ClusterConfig:
    """The same for a command that only asks nodes: mistakes in the file are a warning while addresses can be read."""
    from broker.config.readable_part import readable_part

    if given_bootstrap(option):
        return load_config(option)
    path = config_path(option)
    connection().uses_shipped = path == str(SHIPPED_CONFIG)
    config, mistakes = readable_part(path)
    if mistakes:
        note(f"warning: {mistakes}\nwarning: the cluster file has mistakes; only its valid parts are used")
    take_authorities(config)
    return config


async def _described_by(bootstrap: str) -> ClusterConfig:
    """Replica groups and nodes as the first node that answers knows them; settings are the defaults."""
    from broker.config.cluster_file import ClusterConfig, GroupConfig, NodeConfig
    from dledger_client.aio import Admin
    from dledger_wire.errors import UnreachableError

    async with Admin(bootstrap, timeout_ms=int(STATUS_DEADLINE_S * 1000)) as admin:
        try:
            found = await admin.describe_cluster()
        except UnreachableError as error:
            raise UnreachableError(f"{error.message} (expected the address of a running node: --bootstrap HOST:PORT,...)") from error
    groups = [
        GroupConfig(name=group.name, nodes=[NodeConfig.made({"id": node.id, "address": node.address}) for node in group.nodes])
        for group in found.replica_groups
    ]
    return ClusterConfig(cluster=found.name, groups=groups)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's asyncio part."""
    import asyncio

    from dledger_wire.event_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def ask(work: Callable[[Admin], Awaitable[T]], timeout_s: float = 0.0) -> T:
    """Run ``work`` with an ``Admin`` of the cluster that the options name.  UnreachableError when no node answers soon.

    ``timeout_s``: in place of ``--timeout``.
    """
    return run(_asked(bootstrap_of(), timeout_s or connection().timeout_s, work))


async def _asked(bootstrap: str, timeout_s: float, work: Callable[[Admin], Awaitable[T]]) -> T:
    from dledger_client.aio import Admin
    from dledger_wire.errors import UnreachableError

    await check_reachable(bootstrap, timeout_s)
    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        try:
            return await work(admin)
        except UnreachableError as error:
            raise UnreachableError(with_hint(error.message)) from error


async def check_reachable(bootstrap: str, timeout_s: float) -> None:
    """UnreachableError when no node answers within a few seconds, however long the command may take later."""
    import asyncio

    from dledger_client.aio import Admin
    from dledger_wire.errors import UnreachableError

    limit_s = min(timeout_s, CONTACT_S)
    async with Admin(bootstrap, timeout_ms=int(limit_s * 1000)) as admin:
        try:
            async with asyncio.timeout(limit_s + GRACE_S):  # refused connections end by themselves, with a reason
                await admin.describe_cluster()
        except UnreachableError as error:
            raise UnreachableError(with_hint(error.message)) from error
        except TimeoutError:
            text = f"no node reachable at {', '.join(bootstrap.split(','))}: no answer within {limit_s:g} s"
            raise UnreachableError(with_hint(text)) from None


def with_hint(text: str) -> str:
    """What to do when no node answers."""
    if connection().uses_shipped:
        return f"{text} (no cluster file is named and ./data has none: this is the shipped local-3, which dledger up starts)"
    return f"{text} (are the nodes up? dledger status; on this machine dledger up starts them)"


async def replica_group_of(admin: Admin, name: str) -> str:
    """The replica group that --replica-group names; without a name the only one of the cluster."""
    from dledger_wire.errors import InvalidArgumentError

    names = [group.name for group in (await admin.describe_cluster()).replica_groups]
    if name in names:
        return name
    if not name and len(names) == 1:
        return names[0]
    if not name:
        raise InvalidArgumentError(f"this cluster has several replica groups; expected --replica-group with one of {', '.join(names)}")
    raise InvalidArgumentError(f"no replica group {name!r}; this cluster has {', '.join(names)} (--replica-group)")


def nodes_of(config: ClusterConfig) -> dict[str, dict[str, str]]:
    """Replica group -> node id -> address, of the cluster file."""
    return {group.name: {node.id: node.address for node in group.nodes} for group in config.groups}


async def cluster_status(config: ClusterConfig, timeout_s: float = STATUS_DEADLINE_S, *, as_node: bool = False) -> list[ReplicaGroupStatus]:
    """The state of every replica group of the file; no node is waited for longer than ``timeout_s``.  ``as_node``: as a node of the
    file, even if the options name a user, if this process may read its key."""
    from dledger_client.admin.ask_nodes import status_of_nodes

    with as_member(config, always=as_node):
        return await status_of_nodes(config.bootstrap(), nodes_of(config), timeout_s)
