"""Settings of consumer groups, changed through the log: PutGroup, DeleteGroup, ListGroups."""

from __future__ import annotations

import contextlib

from broker.context import ServiceContext
from broker.support.keyed_lock import KeyedLock
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.consumer_groups import (
    MAX_OFFSETS,
    DeleteOffsets,
    DeleteSubscriptionGroup,
    OffsetRow,
    PutSubscriptionGroup,
    ResetOffsets,
    SubscriptionGroup,
)

TIMEOUT_S = 5.0


class GroupSettingsService:
    """Answers at the master."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._deletions = KeyedLock()

    def register(self, server: Server) -> None:
        methods.PUT_GROUP.serve(server, self.put)
        methods.DELETE_GROUP.serve(server, self.delete)
        methods.LIST_GROUPS.serve(server, self.list_groups)

    async def put(self, request: retry_pb2.GroupSettings, _caller: CallContext) -> retry_pb2.GroupSettings:
        command = PutSubscriptionGroup(
            groupName=request.name,
            consumeEnable=request.consume_enable if request.HasField("consume_enable") else None,
            retryQueueNums=request.retry_queue_nums if request.HasField("retry_queue_nums") else None,
            retryMaxTimes=request.retry_max_times if request.HasField("retry_max_times") else None,
            consumeMessageOrderly=request.consume_in_order if request.HasField("consume_in_order") else None,
        )
        return _message(await self._context.command(command, TIMEOUT_S))

    async def delete(self, request: retry_pb2.GroupSettings, _caller: CallContext) -> retry_pb2.GroupSettings:
        """Forget a group: settings, positions and what it sent back.  Its retry and dead letter topics stay until they are deleted."""
        self._context.require_master()
        async with self._deletions.hold(request.name):
            if not request.seen_index or not await self._is_deleted_since(request.name, request.seen_index):
                await self._delete(request.name)
        return retry_pb2.GroupSettings(name=request.name)

    async def _is_deleted_since(self, name: str, index: int) -> bool:
        """Whether an earlier attempt, whose answer was lost, has deleted the group: what there is now was created again."""
        await self._context.raft.apply_all(TIMEOUT_S)
        return self._context.store.consumer_offsets.deleted_at(name) > index

    async def _delete(self, name: str) -> None:
        store = self._context.store
        configured = any(group.groupName == name for group in store.subscription_groups.configured())
        if not configured and name not in store.consumer_offsets.groups() and not self._only_sent_back(name):
            raise InvalidArgumentError(f"consumer group {name!r} has no settings and no positions")
        if configured:
            # Refused when a call whose answer was lost has done it by now; it may have ended before the positions.
            with contextlib.suppress(InvalidArgumentError):
                await self._context.command(DeleteSubscriptionGroup(groupName=name), TIMEOUT_S)
        await self._give_positions(name)
        await self._context.command(DeleteOffsets(group=name), TIMEOUT_S)

    def _only_sent_back(self, group: str) -> list[OffsetRow]:
        """Position 0 in each queue of which the group has sent messages back and committed nothing."""
        store = self._context.store
        return [
            OffsetRow(topic, queue_id, 0)
            for topic, queue_id in store.send_backs.queues_of(group)
            if store.consumer_offsets.known_position(group, topic, queue_id) is None and store.topics.get(topic) is not None
        ]

    async def _give_positions(self, group: str) -> None:
        """Reset the group in queues where it only sent back, so that the marks go as everywhere: a later send-back would count as repeated.

        ``DeleteOffsets`` drops marks of queues with a position.  That it drops the others, too, would be another meaning of a command that
        logs have already: replicas that apply one entry with different builds would differ, at any feature level (docs/adr/0027).
        """
        while rows := self._only_sent_back(group)[:MAX_OFFSETS]:
            try:
                await self._context.command(ResetOffsets(group=group, offsets=tuple(rows)), TIMEOUT_S)
            except TopicNotFoundError:  # deleted meanwhile, with its marks
                continue

    async def list_groups(self, request: retry_pb2.GroupSettings, caller: CallContext) -> retry_pb2.GroupSettingsList:
        """Those that were configured, or the one asked for, with defaults when none were."""
        self._context.require_master()
        await self._context.raft.read_barrier(TIMEOUT_S)  # a deletion relies on the index: one from before would spare the group
        name = request.name
        groups = self._context.store.subscription_groups
        found = [groups.of(name)] if name else groups.configured()
        seen = set(self._context.access.seen_groups(caller.principal, [group.groupName for group in found]))
        listed = [_message(group) for group in found if group.groupName in seen]
        return retry_pb2.GroupSettingsList(groups=listed, applied_index=self._context.store.applied_index)


def _message(group: SubscriptionGroup) -> retry_pb2.GroupSettings:
    return retry_pb2.GroupSettings(
        name=group.groupName,
        retry_max_times=group.retryMaxTimes,
        retry_queue_nums=group.retryQueueNums,
        consume_enable=group.consumeEnable,
        consume_in_order=group.consumeMessageOrderly,
    )
