"""Ports of the processes that a cluster file describes, and which of them cannot be listened on together.

Owns what listens where: the addresses of nodes, spare nodes and name servers, their metrics, the console beside a node, and the ports for
RocketMQ's clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from broker.config.console import starts_console
from broker.config.placement import is_loopback
from broker.config.rocketmq import remoting_listens
from broker.config.values import is_any_host, split_address
from broker.config.yaml_marks import Problem

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, NodeConfig
    from broker.config.name_servers import NameServerConfig

Place = tuple[str | int, ...]


class Use(IntEnum):
    """What a port is for.  Of two that meet, the one with the higher use is to be changed."""

    SERVICE = 0
    METRICS = 1
    CONSOLE = 2
    ROCKETMQ = 3


_SERVES = {
    Use.SERVICE: "serves another port",
    Use.METRICS: "serves its metrics",
    Use.CONSOLE: "serves the console",
    Use.ROCKETMQ: "serves RocketMQ's clients",
}


@dataclass(frozen=True, slots=True)
class Port:
    """``host`` is the machine that it is on, ``place`` where the file says so."""

    owner: str
    host: str
    address: str
    place: Place
    use: Use

    @property
    def ip(self) -> str:
        return split_address(self.address)[0]

    def meets(self, other: Port) -> bool:
        """Whether both, which are on one host and have one number, cannot be listened on."""
        return is_any_host(self.ip) or is_any_host(other.ip) or _spelling(self.ip) == _spelling(other.ip)


def taken_ports(ports: list[Port]) -> list[Problem]:
    """Ports of metrics and of the console that something else on the same host has."""
    problems: list[Problem] = []
    reported: set[Place] = set()
    before: dict[tuple[str, int], list[Port]] = defaultdict(list)
    for port in sorted(ports, key=lambda port: port.use):
        same_number = before[port.host, split_address(port.address)[1]]
        other = next(filter(port.meets, same_number), None) if port.use is not Use.SERVICE else None
        if other is not None and port.place not in reported:
            text = f"{port.address} of {port.owner} is taken: {other.owner} on the same host {_SERVES[other.use]} at {other.address}"
            problems.append(Problem(port.place, f"expected an address for each process of a host; {text}"))
            reported.add(port.place)
        same_number.append(port)
    return problems


def ports_of(config: ClusterConfig) -> Iterator[Port]:
    """Every port, in the order of the file."""
    for number, group in enumerate(config.groups):
        for at, node in enumerate(group.nodes):
            place = ("groups", number, "nodes", at)
            yield from _ports(config, f"node {node.id}", node.host_label, config.node(node.id).addresses, node.metrics, place)
            if config.console is not None and starts_console(config, node.id):
                owner, address = f"the console of node {node.id}", config.console.address
                yield Port(owner, _spelling(node.host_label), address, ("console", "address"), Use.CONSOLE)
            yield from _rocketmq(config, node, f"node {node.id}", place)
    for number, spare in enumerate(config.spares):
        yield from _ports(config, f"spare node {spare.id}", spare.host_label, spare.addresses, spare.metrics, ("spares", number))
    for number, server in enumerate(config.name_servers):
        if server.id:
            owner, at_server = f"name server {server.id}", ("name_servers", number)
            listens = (server.listened, server.quorum_listened)
            yield from _ports(config, owner, server.host_label, listens, server.metrics, at_server)
            yield from _rocketmq(config, server, owner, at_server)


def _ports(config: ClusterConfig, owner: str, host: str, listens: tuple[str, ...], metrics: str | None, place: Place) -> Iterator[Port]:
    host = _spelling(host)
    yield from (Port(owner, host, address, place, Use.SERVICE) for address in listens)
    shared = config.metrics.address
    if metrics is not None:
        yield Port(owner, host, metrics, (*place, "metrics"), Use.METRICS)
    elif shared is not None:
        yield Port(owner, host, shared, ("metrics", "address"), Use.METRICS)


def _rocketmq(config: ClusterConfig, process: NodeConfig | NameServerConfig, owner: str, place: Place) -> Iterator[Port]:
    where: Place = (*place, "rocketmq") if process.rocketmq is not None else ("rocketmq",)
    for address in remoting_listens(config, process.id):
        yield Port(owner, _spelling(process.host_label), address, where, Use.ROCKETMQ)


def _spelling(host: str) -> str:
    return "127.0.0.1" if is_loopback(host) else host.lower()
