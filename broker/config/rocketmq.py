"""The block ``rocketmq`` of a cluster file: where nodes and name servers speak its protocol, and where clients reach them for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from broker.config.model import ConfigModel
from broker.config.values import ListenAddress, number, split_address
from dledger_wire.addresses import host_of

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig


class RocketmqConfig(ConfigModel):
    """Of every node.  Without an address, here or of its own, a node does not speak it."""

    address: ListenAddress | None = None
    # So many ports above that of its own address, for nodes that share a host; 0: none.
    portOffset: Annotated[int, number(0, 60_000)] = 0
    # Of every name server; of nodes, beside their own, where the cluster has no name servers.
    nameserver_address: ListenAddress | None = None


def remoting_listens(config: ClusterConfig, name: str) -> tuple[str, ...]:
    """Where the node or name server of the file listens for RocketMQ's clients."""
    second = config.rocketmq.nameserver_address
    server = next((server for server in config.name_server_processes if server.id == name), None)
    if server is not None:
        return tuple(filter(None, (server.rocketmq or second,)))
    node = next((node for _, node in config.all_nodes() if node.id == name), None)
    own = node.rocketmq if node is not None else None
    if own is None and node is not None and config.rocketmq.portOffset:
        host, port = split_address(node.listen or node.address)
        own = f"{f'[{host}]' if ':' in host else host}:{port + config.rocketmq.portOffset}"
    first = own or config.rocketmq.address
    if first is None:
        return ()
    return (first,) if second is None or own is not None or not config.nodes_serve_names else (first, second)


def remoting_address(config: ClusterConfig, name: str, address: str) -> str:
    """Where RocketMQ's clients reach a process whose own address is ``address``; empty where it does not speak to them."""
    listens = remoting_listens(config, name)
    return f"{host_of(address)}:{split_address(listens[0])[1]}" if listens else ""


def remoting_name_servers(config: ClusterConfig) -> list[str]:
    """What RocketMQ's clients are given as their name servers; every node answers what a name server does."""
    servers = (remoting_address(config, server.id, server.address) for server in config.name_server_processes)
    found = list(filter(None, servers))
    for _, node in config.all_nodes():
        listens = remoting_listens(config, node.id)
        if listens:
            found.append(f"{host_of(node.address)}:{split_address(listens[-1])[1]}")
    return found


def grpc_endpoints(config: ClusterConfig) -> list[str]:
    """What RocketMQ's gRPC clients are given as their endpoints: the nodes, each of which takes every request."""
    return list(filter(None, (remoting_address(config, node.id, node.address) for _, node in config.all_nodes())))
