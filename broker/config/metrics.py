"""The block ``metrics`` of a cluster file: where each process serves its metrics and probes, and how many series it may have.

Owns the settings, where one process serves, and what must hold between the ports of processes on one host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from broker.config.placement import is_loopback
from broker.config.replicas import ConfigModel
from broker.config.values import ListenAddress, is_any_host, split_address
from broker.config.yaml_marks import Problem

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

Place = tuple[str | int, ...]


class MetricsConfig(ConfigModel):
    """Of every node, name server and spare node.  Without an address, here or of its own, a process serves none."""

    address: ListenAddress | None = None
    # So many topics have series of their own, those with the most traffic; the rest is summed.
    topics: Annotated[int, Field(ge=0, le=10_000)] = 50
    # Of pairs of consumer group and topic, those with the oldest or the most messages to go.
    consumerGroups: Annotated[int, Field(ge=0, le=10_000)] = 50
    # False: plain HTTP, although the other ports speak TLS.
    tls: bool = True
    # True: whoever reaches the port reads metrics, although there are users.
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class _Port:
    """A port of a process: of its metrics, or any other one.  ``host`` is the machine that it is on."""

    owner: str
    host: str
    address: str
    place: Place
    is_metrics: bool

    def meets(self, other: _Port) -> bool:
        """Whether both cannot be listened on."""
        (mine, port), (others, other_port) = split_address(self.address), split_address(other.address)
        if port != other_port or self.host != other.host:
            return False
        return is_any_host(mine) or is_any_host(others) or _spelling(mine) == _spelling(others)


def metrics_problems(config: ClusterConfig) -> list[Problem]:
    """Ports of metrics that are taken, and passwords that would cross a network in the clear."""
    ports = list(_ports(config))
    problems = []
    told: set[Place] = set()
    for number, port in enumerate(ports):
        for other in ports:
            same_kind = port.is_metrics and other.is_metrics
            if not port.is_metrics or other is port or (same_kind and ports.index(other) > number) or port.place in told:
                continue
            if port.meets(other):
                what = "its metrics" if other.is_metrics else "another port"
                text = f"{port.address} of {port.owner} is taken: {other.owner} on the same host serves {what} at {other.address}"
                problems.append(Problem(port.place, f"expected an address for each process of a host; {text}"))
                told.add(port.place)
    return problems + _clear_passwords(config, ports)


def _clear_passwords(config: ClusterConfig, ports: list[_Port]) -> list[Problem]:
    security, metrics = config.security, config.metrics
    if security is None or security.users is None or security.tls is None or metrics.tls or metrics.anonymous:
        return []
    if all(is_loopback(split_address(port.address)[0]) for port in ports if port.is_metrics):
        return []
    return [Problem(("metrics", "tls"), "expected true, or anonymous: true: passwords would cross the network in the clear")]


def _ports(config: ClusterConfig) -> Iterator[_Port]:
    shared = config.metrics.address

    def of(owner: str, host: str, own: str | None, place: Place, others: tuple[str, ...]) -> Iterator[_Port]:
        yield from (_Port(owner, _spelling(host), address, place, is_metrics=False) for address in others)
        if own is not None:
            yield _Port(owner, _spelling(host), own, (*place, "metrics"), is_metrics=True)
        elif shared is not None:
            yield _Port(owner, _spelling(host), shared, ("metrics", "address"), is_metrics=True)

    for number, group in enumerate(config.groups):
        for at, node in enumerate(group.nodes):
            listens = config.node(node.id).addresses
            yield from of(f"node {node.id}", node.host_label, node.metrics, ("groups", number, "nodes", at), listens)
    for number, spare in enumerate(config.spares):
        yield from of(f"spare node {spare.id}", spare.host_label, spare.metrics, ("spares", number), spare.addresses)
    for number, server in enumerate(config.name_servers):
        if server.id:
            host = server.host or split_address(server.address)[0]
            listens = (server.address, server.quorum)
            yield from of(f"name server {server.id}", host, server.metrics, ("name_servers", number), listens)


def _spelling(host: str) -> str:
    return "127.0.0.1" if is_loopback(host) else host.lower()
