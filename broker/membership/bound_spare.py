"""A node of a replica group that is asked to belong to one: a spare node that is bound says yes to its own group once more.

A master may fail between the binding of a spare node and the change of its membership; its successor asks again.
"""

from __future__ import annotations

from broker.config.cluster_file import NodeSettings
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server


class BoundService:
    """Of one node."""

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
