"""What several commands share: finding the cluster file, running asyncio code, asking every node at once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from broker.config import ClusterConfig
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import DledgerError
    from dledger_wire.rpc import Network

T = TypeVar("T")

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", "-f", metavar="FILE", help="Cluster file. Default: $DLEDGER_CONFIG, ./data/cluster.yaml, the shipped local-3."
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


def confirm(question: str, yes: bool) -> None:
    """Go on after a ``y`` or with ``--yes``; wrong usage when nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("this needs --yes when nobody can be asked")
    typer.confirm(question, abort=True, err=True)


def parse_size_option(size: str, option: str = "--size") -> int:
    """A size such as ``1KiB`` given to ``option``; wrong usage when it is none."""
    from broker.units import parse_size

    try:
        return parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_duration_option(duration: str, option: str) -> int:
    """Milliseconds of a duration such as ``90s`` given to ``option``; wrong usage when it is none."""
    from broker.units import parse_duration_ms

    try:
        return parse_duration_ms(duration, "s")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def load_config(option: str | None, data: str | None = None) -> ClusterConfig:
    from broker.config import ClusterConfig

    return ClusterConfig.load(config_path(option, data))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's asyncio part on the fast loop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@dataclass(slots=True)
class NodeAnswer:
    """What one node said about itself, or why it said nothing."""

    group: str
    id: str
    address: str
    status: admin_pb2.NodeStatusReply | None
    error: str = ""


def real_network() -> Network:
    from dledger_wire.tcp_network import TcpNetwork

    return TcpNetwork()


async def ask_nodes(config: ClusterConfig, deadline_s: float = STATUS_DEADLINE_S) -> list[NodeAnswer]:
    """NodeStatus of every configured node, all asked at once, none waited for longer than ``deadline_s``."""
    network = real_network()
    asked = [_ask(network, group.name, node.id, node.address, deadline_s) for group, node in config.all_nodes()]
    return list(await asyncio.gather(*asked))


def _why(error: DledgerError | TimeoutError, deadline_s: float) -> str:
    """Why a node said nothing, in a few words."""
    from dledger_wire.errors import DeadlineExceededError

    if isinstance(error, (TimeoutError, DeadlineExceededError)):
        return f"no answer within {deadline_s:g} s"
    return error.details.get("reason") or error.message


async def _ask(network: Network, group: str, node_id: str, address: str, deadline_s: float) -> NodeAnswer:
    from dledger_wire._pb import admin_pb2
    from dledger_wire.errors import DledgerError

    channel = network.connect(address)
    try:
        reply = await asyncio.wait_for(channel.call("/dledger.v1.Admin/NodeStatus", b"", timeout_s=deadline_s), deadline_s + 0.3)
    except (DledgerError, TimeoutError) as error:
        return NodeAnswer(group, node_id, address, None, _why(error, deadline_s))
    finally:
        await channel.close()
    status = admin_pb2.NodeStatusReply.FromString(reply)
    if status.id != node_id:
        return NodeAnswer(group, node_id, address, None, f"another node answers there: {status.cluster}/{status.group}/{status.id}")
    return NodeAnswer(group, node_id, address, status)
