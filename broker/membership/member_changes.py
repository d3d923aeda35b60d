"""Changes of members by operators: add, promote, replace and remove, one step at a time.

Owns the checks of a node before it becomes a member.  One that leads, or that has the log of another group, is refused: it would never
follow, since its log has other entries where the group has committed its own, and the links refuse it by its lineage.  A log of the group's
own lineage does no harm: a member that was removed comes back with it.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.context import ServiceContext
from broker.membership.membership_steps import check_new_member, membership_steps
from broker.routes.registrar import Registrar
from dledger.core.types import NodeId
from dledger.membership.lineage import named
from dledger_wire._pb import admin_pb2
from dledger_wire.addresses import is_address
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Network, Server

CHANGE_TIMEOUT_S = 10.0
ASK_TIMEOUT_S = 2.0


class MemberService:
    """Served by the leader."""

    def __init__(self, context: ServiceContext, registrar: Registrar) -> None:
        self._context = context
        self._registrar = registrar

    def register(self, server: Server) -> None:
        methods.CHANGE_MEMBER.serve(server, self.change_member)

    async def change_member(self, request: admin_pb2.MemberRequest, _caller: CallContext) -> admin_pb2.MemberReply:
        raft = self._context.raft
        self._context.require_leader()
        if request.action in ("add", "replace"):
            await self._refuse_waiting_spare(request.id)
            await self._refuse_other_log(request.id, request.address or raft.address_of(NodeId(request.id)))
        membership = raft.membership  # nothing may change it between here and the first step
        known = raft.address_of(NodeId(request.id))
        steps = membership_steps(membership, request.action, request.id, request.replaces, known)
        if request.action in ("add", "replace"):
            check_new_member(request.id, request.address or known, self._other_addresses(request.replaces))
        for step in steps:
            addresses = {request.id: request.address} if request.address else {}
            membership = await raft.change_members(step.voters, step.learners, addresses, CHANGE_TIMEOUT_S)
        return admin_pb2.MemberReply(voters=membership.voters, learners=membership.learners)

    async def _refuse_waiting_spare(self, node_id: str) -> None:
        """A spare node belongs to no group before a leader takes it in, and would never catch up as a member: InvalidArgumentError.

        One that was taken in before waits again with a new folder: name servers list it then.
        """
        waiting = {spare.id for spare in self._context.settings.cluster.spares}.difference(self._context.store.replica_group.taken)
        directory = await self._registrar.directory()
        if directory is not None:
            waiting.update(spare.id for spare in directory.spares if not spare.expired)
        if node_id in waiting.difference(self._context.raft.membership.members):
            text = f"{node_id} is a spare node that no leader took in: it takes the place of a member that is away for replaceAfter"
            raise InvalidArgumentError(f"{text} (dledger cluster apply sets that); expected a node that is not among spares")

    async def _refuse_other_log(self, node_id: str, address: str) -> None:
        raft = self._context.raft
        if node_id not in raft.membership and is_address(address):
            members = raft.membership.members
            await refuse_other_log(self._context.env.network, node_id, address, lineage=raft.status().lineage, members=members)

    def _other_addresses(self, replaced: str) -> dict[str, str]:
        """The addresses of the members, without the one that is to be replaced, and of the nodes of other groups."""
        cluster = self._context.settings.cluster
        known = {node.id: node.address for group, node in cluster.all_nodes() if group is not self._context.settings.group}
        known |= {peer.node_id: peer.address for peer in self._context.raft.status().peers}
        known.pop(replaced, None)
        return known


async def refuse_other_log(network: Network, node: str, address: str, *, lineage: str, members: Collection[str]) -> None:
    """InvalidArgumentError when ``node`` answers at ``address`` and cannot follow a group of that ``lineage`` with these ``members``.

    A node that does not answer is not started yet.
    """
    channel = network.connect(address)
    try:
        found = await methods.NODE_STATUS.call(channel, admin_pb2.Empty(), timeout_s=ASK_TIMEOUT_S)
    except DledgerError:
        return
    finally:
        await channel.close()
    if found.id == node and (text := _other_log(found, lineage, members)):
        remedy = f"stop it, move its data folder away, start it with an empty one and spare: true, then dledger member add --id {node}"
        raise InvalidArgumentError(f"{node} {text}: {remedy}")


def _other_log(found: admin_pb2.NodeStatusReply, lineage: str, members: Collection[str]) -> str:
    if found.role == "leader":
        return f"leads a replica group {found.group} of its own, in term {found.term}"
    if found.leader and found.leader != found.id and found.leader not in members:
        return f"follows {found.leader}, which is no member of this replica group {found.group}"
    if found.last_index and found.lineage != lineage:
        return f"has the log of {named(found.lineage)}, this replica group that of {named(lineage)}"
    return ""
