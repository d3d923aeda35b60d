"""Who leads a replica group and who belongs to it: leadership transfer, learners and voters."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods


@dataclass(frozen=True, slots=True)
class LeaderTransfer:
    """A leadership transfer that is complete.

    Attributes:
        replica_group: The group of nodes.
        old_leader: Id of the node that led before.
        new_leader: Id of the node that leads now; ``old_leader`` when that node led already.
        term: The new leader's term.
        took_ms: From the request to the new leader's confirmation, in milliseconds.
    """

    replica_group: str
    old_leader: str
    new_leader: str
    term: int
    took_ms: float


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a replica group, as the log has them committed.

    Attributes:
        replica_group: The group of nodes.
        voters: Ids of the nodes that vote and whose acknowledgements count.
        learners: Ids of the nodes that only copy the log.
    """

    replica_group: str
    voters: tuple[str, ...]
    learners: tuple[str, ...]


async def transfer_leader(calls: ClusterCalls, to: str, replica_group: str) -> LeaderTransfer:
    group = await calls.replica_group(replica_group)
    ids = [node.id for node in group.nodes]
    if to and to not in ids:
        raise InvalidArgumentError(f"no node {to!r} in replica group {group.name}; expected one of {', '.join(ids)}")
    reply = await calls.ask_leader(group.name, methods.TRANSFER_LEADER, admin_pb2.TransferRequest(target=to))
    return LeaderTransfer(group.name, reply.old_leader, reply.new_leader, reply.term, reply.took_ms)


async def change_member(
    calls: ClusterCalls, action: str, node_id: str, replica_group: str, *, address: str = "", replaces: str = ""
) -> Membership:
    """``action``: add, promote, remove or replace."""
    group = await calls.replica_group(replica_group)
    request = admin_pb2.MemberRequest(action=action, id=node_id, address=address, replaces=replaces)
    reply = await calls.ask_leader(group.name, methods.CHANGE_MEMBER, request)
    return Membership(group.name, tuple(reply.voters), tuple(reply.learners))
