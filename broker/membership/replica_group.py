"""The state and the settings of this replica group, and what is left in it.

Owns the check before a group is removed.  It is made on the master's applied state; the command that removes the group is refused when
anything was written after the check, and the check is made again.
"""

from __future__ import annotations

from broker.config.alarm_limits import with_limits
from broker.context import ServiceContext
from broker.membership.drain_check import DISCARDABLE, remaining_messages
from broker.support.messages import message_of
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError, UnsafeShrinkError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.status import DRAINING, REMOVED
from store.commands.replica_group import ALARM_LIMITS, SetReplicaGroup

COMMAND_TIMEOUT_S = 5.0
REMOVE_ATTEMPTS = 10
MAX_ROWS = 1000
SHOWN = 5


class ReplicaGroupService:
    """Operators' calls about the replica group as a whole."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.DESCRIBE_REPLICA_GROUP.serve(server, self.describe)
        methods.SET_REPLICA_GROUP.serve(server, self.set)

    async def describe(self, _request: admin_pb2.Empty, _caller: CallContext) -> admin_pb2.ReplicaGroupReply:
        """The state and, on the master only, what is left."""
        self._context.require_master()
        await self._context.raft.read_barrier(COMMAND_TIMEOUT_S)
        return await self._reply()

    async def set(self, request: admin_pb2.ReplicaGroupRequest, _caller: CallContext) -> admin_pb2.ReplicaGroupReply:
        context = self._context
        context.require_master()
        if request.state == DRAINING:
            self._check_can_be_drained()
        if request.state == REMOVED and context.store.replica_group.state == DRAINING:
            await self._remove(discard=request.discard)
            return await self._reply()
        with_limits(context.settings.cluster, {name: value for name, value in request.limits.items() if value and name in ALARM_LIMITS})
        command = SetReplicaGroup(
            state=request.state,
            voters=request.voters,
            learners=request.learners if request.HasField("learners") else None,
            replace_after_ms=request.replace_after_ms if request.HasField("replace_after_ms") else None,
            limits=tuple(sorted(request.limits.items())),
        )
        await context.command(command, COMMAND_TIMEOUT_S)
        return await self._reply()

    def _check_can_be_drained(self) -> None:
        cluster, group = self._context.settings.cluster, self._context.settings.group
        if group.name == cluster.groups[0].name and cluster.nodes_serve_names:
            text = f"replica group {group.name} serves the cluster's name service; give name_servers ids and start them first"
            raise InvalidArgumentError(text)

    async def _remove(self, *, discard: bool) -> None:
        """Set the state removed, at an index at which nothing is left.  UnsafeShrinkError names what is."""
        context = self._context
        for attempt in range(1, REMOVE_ATTEMPTS + 1):
            await context.raft.apply_all(COMMAND_TIMEOUT_S)
            at_index = context.store.applied_index
            left = [row for row in await remaining_messages(context) if not (discard and row.kind in DISCARDABLE)]
            if left:
                more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
                found = "; ".join(row.text for row in left[:SHOWN])
                raise UnsafeShrinkError(f"replica group {context.settings.group.name} is not drained: {found}{more}")
            try:
                await context.command(SetReplicaGroup(state=REMOVED, at_index=at_index), COMMAND_TIMEOUT_S)
            except NotReadyError:
                if attempt == REMOVE_ATTEMPTS:
                    raise
            else:
                return

    async def _reply(self) -> admin_pb2.ReplicaGroupReply:
        context = self._context
        now, wanted = context.store.replica_group.settings, context.wanted_replicas()
        group = context.settings.group.name
        in_force = with_limits(context.settings.cluster, now.limits)
        limits = {"diskFreeLimit": in_force.store.diskFreeLimit, "memoryHighWatermark": in_force.broker.memoryHighWatermark}
        reply = message_of(
            admin_pb2.ReplicaGroupReply,
            wanted,
            group=group,
            state=now.state,
            since_ms=now.since_ms,
            limits=limits,
            limits_set=sorted(now.limits),
        )
        for row in (await remaining_messages(context))[:MAX_ROWS]:
            reply.left.append(message_of(admin_pb2.LeftInGroup, row))
        return reply
