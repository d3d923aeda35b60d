"""Deleting old messages now.  Every node deletes from its own log, by its own disk and clock, so each gives an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_client.cluster.routes import Node
from dledger_client.runtime.argument_ranges import MAX_OFFSET, texts, within
from dledger_wire._pb import retention_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods


@dataclass(frozen=True, slots=True)
class NodeExpiry:
    """What one node deleted.

    Attributes:
        node_id: The node.
        segments: How many segments of the log it deleted.
        size_bytes: Their size in bytes.
        first_index: Index of the first entry that is left.
        first_pos: Byte position in the log where that entry begins.
        held_by: Why the next segment stays; empty when it is young enough, or the one being written.
        error: Why the node deleted nothing; None when it answered.
    """

    node_id: str
    segments: int = 0
    size_bytes: int = 0
    first_index: int = 0
    first_pos: int = 0
    held_by: str = ""
    error: DledgerError | None = None


async def expire(calls: ClusterCalls, older_than_ms: int | None, replica_group: str, node_ids: Collection[str]) -> list[NodeExpiry]:
    nodes = await nodes_to_expire(calls, replica_group, node_ids)
    within(0, MAX_OFFSET, older_than_ms=older_than_ms or 0)
    request = retention_pb2.ExpireRequest(has_reserved=older_than_ms is not None, reserved_ms=older_than_ms or 0)
    return list(await asyncio.gather(*(_expire_node(calls, node, request) for node in nodes)))


async def nodes_to_expire(calls: ClusterCalls, replica_group: str, node_ids: Collection[str]) -> list[Node]:
    """The named nodes of the replica group, all when none is named.  InvalidArgumentError for a node it does not have."""
    group = await calls.replica_group(replica_group)
    ids = [node.id for node in group.nodes]
    for node_id in texts("node_ids", node_ids):
        if node_id not in ids:
            raise InvalidArgumentError(f"no node {node_id!r} in replica group {group.name}; expected one of {', '.join(ids)}")
    return [node for node in group.nodes if not node_ids or node.id in node_ids]


async def _expire_node(calls: ClusterCalls, node: Node, request: retention_pb2.ExpireRequest) -> NodeExpiry:
    try:
        reply = await methods.EXPIRE.call(calls.router.channel(node.address), request, timeout_s=calls.timeout_ms / 1000)
    except DledgerError as error:
        return NodeExpiry(node.id, error=error)
    return NodeExpiry(reply.id, reply.segments, reply.size_bytes, reply.first_index, reply.first_pos, reply.held_by)
