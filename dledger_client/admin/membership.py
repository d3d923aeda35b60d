"""Who leads a replica group and who belongs to it: leadership transfer, learners and voters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dledger_client.admin.calls import ClusterCalls
from dledger_client.cluster.retry import until
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError
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
        changed: False when the members were as asked before the call.
    """

    replica_group: str
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    changed: bool = True


async def transfer_leader(calls: ClusterCalls, to: str, replica_group: str, *, force: bool) -> LeaderTransfer:
    group = await calls.replica_group(replica_group)
    ids = [node.id for node in group.nodes]
    if to and to not in ids:
        raise InvalidArgumentError(f"no node {to!r} in replica group {group.name}; expected one of {', '.join(ids)}")
    reply = await calls.ask_leader(group.name, methods.TRANSFER_LEADER, admin_pb2.TransferRequest(target=to, force=force))
    return LeaderTransfer(group.name, reply.old_leader, reply.new_leader, reply.term, reply.took_ms)


async def change_member(
    calls: ClusterCalls, action: str, node_id: str, replica_group: str, *, address: str = "", replaces: str = ""
) -> Membership:
    """``action``: add, promote, remove or replace.  A repeated call changes nothing and is no error.

    The leader refuses what is done already.  An attempt whose answer is lost may have made the change, and one whose leader fails the
    first half of a replacement, so a refusal is compared with the members.
    """
    group = (await calls.replica_group(replica_group)).name
    request = admin_pb2.MemberRequest(action=action, id=node_id, address=address, replaces=replaces)
    before = await _members(calls, group, committed=False)
    try:
        reply = await calls.ask_leader(group, methods.CHANGE_MEMBER, request)
    except InvalidArgumentError:
        now = await _members(calls, group, committed=True)
        if _is_done(request, now):
            return replace(now.membership, changed=not _is_done(request, before))
        is_half = action == "replace" and replaces in before.ids and not {replaces, node_id} & now.ids
        if not is_half:
            raise
        rest = admin_pb2.MemberRequest(action="add", id=node_id, address=address)
        reply = await calls.ask_leader(group, methods.CHANGE_MEMBER, rest)
    return Membership(group, tuple(reply.voters), tuple(reply.learners))


@dataclass(frozen=True, slots=True)
class _Members:
    membership: Membership
    addresses: Mapping[str, str]

    @property
    def ids(self) -> set[str]:
        return {*self.membership.voters, *self.membership.learners}


def _is_done(request: admin_pb2.MemberRequest, now: _Members) -> bool:
    """Whether the members are as asked.  A member at another address is another node: it is not added."""
    is_there = request.id in now.ids and request.address in ("", now.addresses.get(request.id))
    match request.action:
        case "add":
            return is_there
        case "promote":
            return request.id in now.membership.voters
        case "replace":
            return is_there and request.replaces not in now.ids
        case _:
            return request.id not in now.ids


async def _members(calls: ClusterCalls, group: str, *, committed: bool) -> _Members:
    """As the leader has them.  ``committed``: and its log up to them is, too."""
    last_index = 0
    async for attempt in until(calls.deadline_ms(), calls.router.clock, calls.router.random):
        with attempt:
            told = await calls.ask_leader(group, methods.NODE_STATUS, admin_pb2.Empty())
            last_index = last_index or told.last_index
            if committed and not (told.leader_confirmed and told.committed_index >= last_index):
                raise NotReadyError(f"{group}: the newest change of members is not committed yet")
            addresses = {told.id: told.address} | {peer.id: peer.address for peer in told.peers}
            return _Members(Membership(group, tuple(told.voters), tuple(told.learners)), addresses)
    raise NotReadyError(f"{group}: no attempt was made before the deadline")
