"""What several commands share: finding the cluster file, running asyncio code, asking every node at once."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dledger_wire.event_loop import new_event_loop

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import DledgerError
    from dledger_wire.rpc.transport import Network

T = TypeVar("T")

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", "-f", metavar="FILE", help="Cluster file. Default: $DLEDGER_CONFIG, ./data/cluster.yaml, the shipped local-3."
    ),
]
BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Addresses of nodes to start from, in place of a cluster file. Default: $DLEDGER_BOOTSTRAP.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Give up after that long.")]
DataOption = Annotated[str, typer.Option("--data", metavar="DIR", help="Data folder of the local nodes.")]

SHIPPED_CONFIG = Path(__file__).with_name("local-3.yaml")
STATUS_DEADLINE_S = 2.0


def config_path(option: str | None, data: str | None = None) -> str:
    """The cluster file to use; ``data`` is the data folder whose own file is preferred to ``./data``'s."""
    if option:
        return option
    if os.environ.get("DLEDGER_CONFIG"):
        return os.environ["DLEDGER_CONFIG"]
    written = Path(data or "data") / "cluster.yaml"
    return str(written if written.is_file() else SHIPPED_CONFIG)


_given = ""  # what --bootstrap names; a process runs one command


def takes_bootstrap(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command``, which takes --config, the option --bootstrap; ``load_config`` and ``bootstrap_of`` heed it."""

    @functools.wraps(command)
    def with_bootstrap(*args: Any, bootstrap: str, **options: Any) -> Any:
        global _given
        if bootstrap and options.get("config"):
            raise typer.BadParameter("give either --bootstrap or --config", param_hint="--bootstrap")
        _given = _checked_bootstrap(bootstrap, "--bootstrap") if bootstrap else ""
        return command(*args, **options)

    signature = inspect.signature(command, eval_str=True)  # typer does not evaluate a signature that is given
    option = inspect.Parameter("bootstrap", inspect.Parameter.KEYWORD_ONLY, default="", annotation=BootstrapOption)
    with_bootstrap.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    with_bootstrap.__annotations__ = command.__annotations__ | {"bootstrap": BootstrapOption}
    return with_bootstrap


def _checked_bootstrap(text: str, where: str) -> str:
    from dledger_client.cluster.metadata import parse_bootstrap
    from dledger_wire.errors import InvalidArgumentError

    try:
        return ",".join(parse_bootstrap(text))
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint=where) from None


def given_bootstrap(config: str | None) -> str:
    """Addresses that stand for a cluster file: those of --bootstrap, or of the environment when no file is named; empty: there are none."""
    if _given or config:
        return _given
    text = os.environ.get("DLEDGER_BOOTSTRAP", "")
    return _checked_bootstrap(text, "DLEDGER_BOOTSTRAP") if text else ""


def bootstrap_of(config: str | None) -> str:
    """The addresses a client may start from, without asking any of them."""
    return given_bootstrap(config) or load_config(config).bootstrap()


def confirm(question: str, yes: bool) -> None:
    """Go on after a ``y`` or with ``--yes``; wrong usage when nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("this needs --yes when nobody can be asked")
    typer.confirm(question, abort=True, err=True)


def parse_size_option(size: str, option: str = "--size") -> int:
    """A size such as ``1KiB`` given to ``option``; wrong usage when it is none."""
    from broker.config.units import parse_size

    try:
        return parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_duration_option(duration: str, option: str) -> int:
    """Milliseconds of a duration such as ``90s`` given to ``option``; wrong usage when it is none."""
    from broker.config.units import parse_duration_ms

    try:
        return parse_duration_ms(duration, "s")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def time_ms(text: str, option: str) -> int:
    """Milliseconds of a number of them, or of an ISO time (UTC when it names no zone); 0 for none."""
    if not text or text.isdecimal():
        return int(text or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "milliseconds since 1970, or a time such as 2026-01-31T12:30:00"
        raise typer.BadParameter(f"{text!r}: expected {expected}", param_hint=option) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def load_config(option: str | None, data: str | None = None) -> ClusterConfig:
    """The cluster of the file, or as its nodes tell it when --bootstrap names some."""
    from broker.config.cluster_file import ClusterConfig

    bootstrap = given_bootstrap(option)
    return run(_told_by(bootstrap)) if bootstrap else ClusterConfig.load(config_path(option, data))


async def load_config_async() -> ClusterConfig:
    """The cluster that a command without options would ask, for code on an event loop."""
    from broker.config.cluster_file import ClusterConfig

    bootstrap = given_bootstrap(None)
    return await _told_by(bootstrap) if bootstrap else ClusterConfig.load(config_path(None))


async def _told_by(bootstrap: str) -> ClusterConfig:
    """Groups and nodes as the first node that answers knows them; settings are the defaults."""
    from broker.config.cluster_file import ClusterConfig, GroupConfig, NodeConfig
    from dledger_client.cluster.metadata import Router
    from dledger_wire.clock import SystemClock, system_random
    from dledger_wire.errors import UnreachableError

    router = Router(bootstrap, real_network(), SystemClock(), system_random())
    try:
        groups = await router.ensure_groups(router.clock.monotonic_ms() + int(STATUS_DEADLINE_S * 1000))
    except UnreachableError as error:
        raise UnreachableError(f"{error.message} (expected the address of a node that runs: --bootstrap HOST:PORT,...)") from error
    finally:
        await router.close()
    told = [
        GroupConfig.model_construct(name=group.name, nodes=[NodeConfig(id=node.id, address=node.address) for node in group.nodes])
        for group in groups.values()
    ]
    return ClusterConfig.model_construct(cluster=router.cluster, groups=told)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's asyncio part."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


@dataclass(slots=True)
class NodeAnswer:
    """What one node said about itself, or why it said nothing."""

    group: str
    id: str
    address: str
    status: admin_pb2.NodeStatusReply | None
    error: str = ""
    in_file: bool = True


def real_network() -> Network:
    from dledger_wire.tcp.network import TcpNetwork

    return TcpNetwork()


async def ask_nodes(config: ClusterConfig, deadline_s: float = STATUS_DEADLINE_S) -> list[NodeAnswer]:
    """NodeStatus of every configured node, then of members that leaders know beside them; all asked at once, none waited for longer than
    ``deadline_s``."""
    network = real_network()
    asked = [_ask(network, group.name, node.id, node.address, deadline_s) for group, node in config.all_nodes()]
    answers = list(await asyncio.gather(*asked))
    known = {(answer.group, answer.id) for answer in answers}
    others = {
        (answer.group, peer.id): peer.address
        for answer in answers
        if answer.status is not None and answer.status.role == "leader"
        for peer in answer.status.peers
        if (answer.group, peer.id) not in known
    }
    asked = [_ask(network, group, node_id, address, deadline_s) for (group, node_id), address in others.items()]
    return answers + [replace(answer, in_file=False) for answer in await asyncio.gather(*asked)]


def _why(error: DledgerError | TimeoutError, deadline_s: float) -> str:
    """Why a node said nothing, in a few words."""
    from dledger_wire.errors import DeadlineExceededError

    if isinstance(error, (TimeoutError, DeadlineExceededError)):
        return f"no answer within {deadline_s:g} s"
    return error.details.get("reason") or error.message


async def _ask(network: Network, group: str, node_id: str, address: str, deadline_s: float) -> NodeAnswer:
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import DledgerError
    from dledger_wire.rpc import methods

    channel = network.connect(address)
    try:
        reply = await asyncio.wait_for(channel.call(methods.NODE_STATUS.path, b"", timeout_s=deadline_s), deadline_s + 0.3)
    except (DledgerError, TimeoutError) as error:
        return NodeAnswer(group, node_id, address, None, _why(error, deadline_s))
    finally:
        await channel.close()
    status = admin_pb2.NodeStatusReply.FromString(reply)
    if status.id != node_id:
        return NodeAnswer(group, node_id, address, None, f"another node answers there: {status.cluster}/{status.group}/{status.id}")
    return NodeAnswer(group, node_id, address, status)
