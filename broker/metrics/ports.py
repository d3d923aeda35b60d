"""The metrics ports of a node, a name server and a spare node: what each of them watches."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from broker.config.cluster_file import ClusterConfig
from broker.config.replicas import SpareConfig
from broker.membership.waiting_spare import WaitingSpare
from broker.metrics.health import Check, name_server_checks, node_checks
from broker.metrics.node_samples import NodeSamples
from broker.metrics.other_samples import NameServerSamples, SpareSamples
from broker.metrics.port import Watched, metrics_port
from broker.nameserver.node import NameServerNode
from broker.node import BrokerNode
from broker.process.machine import Machine
from dledger_wire.errors import NotReadyError

Port = AbstractAsyncContextManager[None]


def node_port(node: BrokerNode, machine: Machine) -> Port:
    """Serves a node's samples while it is open."""
    watched = Watched(
        NodeSamples(node), lambda: node_checks(node), lambda: _failure(node), machine.network.arrivals, node.security.access, machine.watch
    )
    return metrics_port(node.settings.cluster, node.settings.node.metrics, machine.network.security, watched)


def name_server_port(server: NameServerNode, machine: Machine) -> Port:
    """Serves a name server's samples while it is open."""
    watched = Watched(
        NameServerSamples(server),
        lambda: name_server_checks(server),
        lambda: _failure(server),
        machine.network.arrivals,
        server.access,
        machine.watch,
    )
    return metrics_port(server.settings.cluster, server.settings.server.metrics, machine.network.security, watched)


def spare_port(cluster: ClusterConfig, spare: SpareConfig, waiting: WaitingSpare, machine: Machine) -> Port:
    """Serves a spare node's samples until a replica group takes it in."""
    watched = Watched(
        SpareSamples(waiting, spare.id),
        lambda: [Check("open")],
        lambda: _failure(waiting),
        machine.network.arrivals,
        waiting.access,
        machine.watch,
    )
    return metrics_port(cluster, spare.metrics, machine.network.security, watched)


def _failure(served: BrokerNode | NameServerNode | WaitingSpare) -> BaseException | None:
    try:
        return served.failed.result() if served.failed.done() else None
    except NotReadyError:
        return None  # it is not open yet
