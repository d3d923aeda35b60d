"""Leaders and members of a replica group: leadership transfer, learners and voters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dledger_client.admin.calls import ClusterCalls, Subject
from dledger_client.admin.replica_groups import LeaderTransfer, Membership
from dledger_client.cluster.retry import until
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError
from dledger_wire.rpc import methods


class MembershipAdmin(Subject):
    """Leaders and members of replica groups; use ``Admin``."""

    async def transfer_leader(self, to: str = "", *, replica_group: str = "", force: bool = False) -> LeaderTransfer:
        """Hand the leadership of a replica group over, and wait until the new leader has taken it.

        A voter that must not lead is refused: without room on its disk, with a wrong clock or an expired certificate, silent, far behind.

        Args:
            to: Id of the new leader; empty for the voter whose log is longest.
            replica_group: The group of nodes; needed when the cluster has several.
            force: Also to a voter that must not lead.

        Examples:
            >>> print((await admin.transfer_leader("n1")).took_ms)
        """
        group = await self._calls.replica_group(replica_group)
        ids = [node.id for node in group.nodes]
        if to and to not in ids:
            raise InvalidArgumentError(f"no node {to!r} in replica group {group.name}; expected one of {', '.join(ids)}")
        reply = await self._calls.ask_leader(group.name, methods.TRANSFER_LEADER, admin_pb2.TransferRequest(target=to, force=force))
        return LeaderTransfer(group.name, reply.old_leader, reply.new_leader, reply.term, reply.took_ms)

    async def add_member(self, node_id: str, address: str, *, replica_group: str = "") -> Membership:
        """Add a node to a replica group as a learner: it copies the log and does not vote.

        One that is a member at that address already is left as it is; ``changed`` says so.

        Args:
            node_id: Id of the new node.
            address: Its address, ``host:port``.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.add_member("n3", "10.0.0.4:10911")
        """
        return await _change_member(self._calls, "add", node_id, replica_group, address=address)

    async def promote_member(self, node_id: str, *, replica_group: str = "") -> Membership:
        """Make a learner that has caught up a voter.  A voter is left as it is; ``changed`` says so.

        Args:
            node_id: Id of the learner.
            replica_group: The group of nodes; needed when the cluster has several.

        Raises:
            NotReadyError: The learner has not caught up.
            InvalidArgumentError: The node is not a member.

        Examples:
            >>> await admin.promote_member("n3")
        """
        return await _change_member(self._calls, "promote", node_id, replica_group)

    async def remove_member(self, node_id: str, *, replica_group: str = "") -> Membership:
        """Remove a node from its replica group.  For a node that is not a member nothing is changed; ``changed`` says so.

        Args:
            node_id: Id of the member.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.remove_member("n2")
        """
        return await _change_member(self._calls, "remove", node_id, replica_group)

    async def replace_member(self, node_id: str, address: str, *, replaces: str, replica_group: str = "") -> Membership:
        """Replace a member that is lost by a new node, which copies the log first.

        Args:
            node_id: Id of the new node.
            address: Its address, ``host:port``.
            replaces: Id of the member that is lost.
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> await admin.replace_member("n3", "10.0.0.4:10911", replaces="n2")
        """
        return await _change_member(self._calls, "replace", node_id, replica_group, address=address, replaces=replaces)


async def _change_member(
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
            status = await calls.ask_leader(group, methods.NODE_STATUS, admin_pb2.Empty())
            last_index = last_index or status.last_index
            if committed and not (status.leader_confirmed and status.committed_index >= last_index):
                raise NotReadyError(f"{group}: the newest change of members is not committed yet")
            addresses = {status.id: status.address} | {peer.id: peer.address for peer in status.peers}
            return _Members(Membership(group, tuple(status.voters), tuple(status.learners)), addresses)
    raise NotReadyError(f"{group}: no attempt was made before the deadline")
