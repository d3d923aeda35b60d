"""Which replica group a spare node belongs to: ``spare.json``, written once, before anything of that group reaches the folder.

Owns the file, what a bound node takes from the cluster file, and its answer to a leader that binds it once more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from broker.config.cluster_file import ClusterConfig, GroupConfig, NodeConfig, NodeSettings
from broker.config.replicas import SpareConfig
from dledger.runtime.env import Disk
from dledger.runtime.json_file import JsonFile
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

BINDING_FILE = "spare.json"


@dataclass(frozen=True, slots=True)
class Binding:
    """A replica group, and its voters with their addresses when the spare node was taken in."""

    group: str
    voters: tuple[tuple[str, str], ...]


def _decode(data: Any) -> Binding:
    return Binding(str(data["group"]), tuple((str(node_id), str(address)) for node_id, address in data["voters"]))


_FILE = JsonFile(BINDING_FILE, _decode, asdict, indent=1)


async def read_binding(disk: Disk) -> Binding | None:
    """None for a spare node that belongs to no group yet.  DataDirectoryError when the file is damaged."""
    return await _FILE.read(disk)


async def write_binding(disk: Disk, binding: Binding) -> None:
    """Durable when this returns."""
    await _FILE.write(disk, binding)


def bound_settings(cluster: ClusterConfig, spare: SpareConfig, binding: Binding) -> NodeSettings:
    """The settings of a spare node as a member of its group: as one that the group takes in, never one that it begins with."""
    same = {"id": spare.id, "address": spare.address, "listen": spare.listen, "host": spare.host, "rack": spare.rack}
    own = NodeConfig.made({**same, "metrics": spare.metrics, "spare": True})
    known = next((group for group in cluster.groups if group.name == binding.group), None)
    if known is None:
        nodes = [NodeConfig.made({"id": node_id, "address": address}) for node_id, address in binding.voters if node_id != own.id]
        group = GroupConfig(name=binding.group, nodes=[*nodes, own])
    else:
        group = known.changed(nodes=[*known.nodes, own])
    return NodeSettings(cluster, group, own)


class BoundService:
    """A spare node that is bound confirms it to its own group, and refuses others.

    A master may fail between the binding of a spare node and the change of its membership; its successor asks again.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings

    def register(self, server: Server) -> None:
        methods.TAKE_SPARE.serve(server, self.take)

    async def take(self, request: admin_pb2.TakeSpareRequest, _caller: CallContext) -> admin_pb2.TakeSpareReply:
        cluster, group, node = self._settings.cluster.cluster, self._settings.group.name, self._settings.node.id
        if (request.cluster, request.node_id) != (cluster, node):
            raise InvalidArgumentError(f"this is node {node} of cluster {cluster}, not {request.node_id}")
        if request.group != group:
            raise InvalidArgumentError(f"spare node {node} belongs to replica group {group}")
        return admin_pb2.TakeSpareReply(group=group)
