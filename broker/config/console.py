"""The block ``console`` of a cluster file: where the web console is served, and which nodes start it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from broker.config.model import ConfigModel
from broker.config.values import ListenAddress, Name, size, text

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig


class ConsoleConfig(ConfigModel):
    """A process beside a node: pages for a browser, in which users of the cluster log in."""

    address: ListenAddress
    readOnly: bool = False
    # Names under which browsers ask for it, beside IP addresses and the machine's own name.
    hostNames: list[Annotated[str, text(1, 253)]] = field(default_factory=list)
    # Which nodes start one; default: the first node of each machine, so that a machine has one console.
    nodes: list[Name] = field(default_factory=list)
    maxMemory: Annotated[int, size(256 << 20, 1 << 50)] = 1 << 30


def starts_console(config: ClusterConfig, node_id: str) -> bool:
    """Whether node ``node_id`` starts the console of its machine."""
    if config.console is None:
        return False
    if config.console.nodes:
        return node_id in config.console.nodes
    hosts = {node.id: node.host_label for _, node in config.all_nodes()}
    first = next((other for other, host in hosts.items() if host == hosts.get(node_id)), "")
    return first == node_id


def console_options(config: ConsoleConfig, node_id: str) -> Sequence[str]:
    """Options of ``dledger console`` for the one that node ``node_id`` starts."""
    names = [part for name in config.hostNames for part in ("--host-name", name)]
    return ["--address", config.address, "--of-node", node_id, *names, *(["--read-only"] if config.readOnly else [])]
