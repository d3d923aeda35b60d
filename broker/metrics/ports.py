"""The metrics ports of a node, a name server and a spare node: what each of them watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from broker.config.cluster_file import ClusterConfig
from broker.config.replicas import SpareConfig
from broker.membership.waiting_spare import WaitingSpare
from broker.metrics.health import Check, name_server_checks, node_checks
from broker.metrics.node_samples import NodeSamples
from broker.metrics.other_samples import NameServerSamples, SpareSamples
from broker.metrics.port import Collecting, Watched, metrics_port
from broker.nameserver.node import NameServerNode
from broker.node import BrokerNode
from broker.process.machine import Machine
from broker.security.access import AccessControl
from dledger_wire.errors import NotReadyError

Port = AbstractAsyncContextManager[None]
Served = BrokerNode | NameServerNode | WaitingSpare


def node_port(node: BrokerNode, machine: Machine) -> Port:
    """Serves a node's samples while it is open."""
    cluster, address = node.settings.cluster, node.settings.node.metrics
    return _port(cluster, address, machine, NodeSamples(node), lambda: node_checks(node), node.security.access, node)


def name_server_port(server: NameServerNode, machine: Machine) -> Port:
    """Serves a name server's samples while it is open."""
    cluster, address = server.settings.cluster, server.settings.server.metrics
    return _port(cluster, address, machine, NameServerSamples(server), lambda: name_server_checks(server), server.access, server)


def spare_port(cluster: ClusterConfig, spare: SpareConfig, waiting: WaitingSpare, machine: Machine) -> Port:
    """Serves a spare node's samples until a replica group takes it in."""
    return _port(cluster, spare.metrics, machine, SpareSamples(waiting, spare.id), lambda: [Check("open")], waiting.access, waiting)


def _port(
    cluster: ClusterConfig,
    address: str | None,
    machine: Machine,
    samples: Collecting,
    ready: Callable[[], Sequence[Check]],
    access: AccessControl,
    served: Served,
) -> Port:
    watched = Watched(samples, ready, lambda: _failure(served), machine.network.arrivals, access, machine.watch)
    return metrics_port(cluster, address, machine.network.security, watched)


def _failure(served: Served) -> BaseException | None:
    try:
        return served.failed.result() if served.failed.done() else None
    except NotReadyError:
        return None  # it is not open yet
