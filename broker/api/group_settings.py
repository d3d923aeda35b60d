"""Settings of consumer groups, changed through the log: PutGroup, DeleteGroup, ListGroups."""

from __future__ import annotations

from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.consumer_groups import DeleteOffsets, DeleteSubscriptionGroup, PutSubscriptionGroup, SubscriptionGroup

TIMEOUT_S = 5.0


class GroupSettingsService:
    """Answers at the master."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        methods.PUT_GROUP.serve_bytes(server, self.put)
        methods.DELETE_GROUP.serve_bytes(server, self.delete)
        methods.LIST_GROUPS.serve_bytes(server, self.list_groups)

    async def put(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(retry_pb2.GroupSettings, request)
        command = PutSubscriptionGroup(
            groupName=wish.name,
            consumeEnable=wish.consume_enable if wish.HasField("consume_enable") else None,
            retryQueueNums=wish.retry_queue_nums if wish.HasField("retry_queue_nums") else None,
            retryMaxTimes=wish.retry_max_times if wish.HasField("retry_max_times") else None,
        )
        return _message(await self._face.command(command, TIMEOUT_S)).SerializeToString()

    async def delete(self, request: bytes, _context: CallContext) -> bytes:
        """Forget a group: its settings and its positions.  Its retry and dead letter topics stay until they are deleted."""
        self._face.require_master()
        name, store = decoded(retry_pb2.GroupSettings, request).name, self._face.store
        configured = any(group.groupName == name for group in store.subscription_groups.configured())
        if not configured and name not in store.consumer_offsets.groups():
            raise InvalidArgumentError(f"consumer group {name!r} has no settings and no positions")
        if configured:
            await self._face.command(DeleteSubscriptionGroup(groupName=name), TIMEOUT_S)
        await self._face.command(DeleteOffsets(group=name), TIMEOUT_S)
        return retry_pb2.GroupSettings(name=name).SerializeToString()

    async def list_groups(self, request: bytes, _context: CallContext) -> bytes:
        """Those somebody configured, or the one asked for, with defaults when nobody did."""
        self._face.require_master()
        name = decoded(retry_pb2.GroupSettings, request).name
        groups = self._face.store.subscription_groups
        found = [groups.of(name)] if name else groups.configured()
        return retry_pb2.GroupSettingsList(groups=[_message(group) for group in found]).SerializeToString()


def _message(group: SubscriptionGroup) -> retry_pb2.GroupSettings:
    return retry_pb2.GroupSettings(
        name=group.groupName,
        retry_max_times=group.retryMaxTimes,
        retry_queue_nums=group.retryQueueNums,
        consume_enable=group.consumeEnable,
    )
