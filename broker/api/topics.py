"""Topics: operators create, update, delete and list them; producers create them where the cluster file allows it.

Every node answers for its own replica group.  Changes go through the master's log; a replica that is not the master answers NOT_LEADER
with the master's address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from broker.context import ServiceContext
from broker.delivery.waiting_for_topic import waiting_for
from broker.support.keyed_lock import KeyedLock
from broker.support.limits import in_slices
from broker.support.messages import message_of
from dledger_wire._pb import admin_pb2, topics_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError, UnsafeShrinkError
from dledger_wire.names import AUTO_CREATE_TOPIC, check_new_topic, check_topic, is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.status import Perm
from store.commands.command import Command
from store.commands.security import Action
from store.commands.topics import DRAINED, CreateTopic, DeleteTopic, DeleteTopicIf, TopicResult, UpdateTopic

COMMAND_TIMEOUT_S = 5.0


class TopicService:
    """``registered``: returns once name servers know the topics as they are."""

    def __init__(self, context: ServiceContext, registered: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._registered = registered
        self._deletions = KeyedLock()

    def register(self, server: Server) -> None:
        methods.CREATE_TOPIC.serve(server, self.create_topic)
        methods.UPDATE_TOPIC.serve(server, self.update_topic)
        methods.DELETE_TOPIC.serve(server, self.delete_topic)
        methods.LIST_TOPICS.serve(server, self.list_topics)
        methods.AUTO_CREATE_TOPIC.serve(server, self.auto_create)

    async def create_topic(self, spec: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        self._check_topic(spec)
        if not spec.if_not_exists:  # else it may be the retry or dead letter topic of a group: an import makes it before the cluster does
            check_new_topic(spec.name)
        check_topic(spec.name)
        default = self._context.settings.cluster.broker.defaultTopicQueueNums
        command = CreateTopic(
            name=spec.name,
            read_queues=spec.read_queues or spec.write_queues or default,
            write_queues=spec.write_queues or spec.read_queues or default,
            perm=spec.perm,
            if_not_exists=spec.if_not_exists,
            groups=tuple(spec.groups),
            priorities=spec.priorities,
        )
        return await self._change_topic(command)

    async def update_topic(self, spec: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        self._check_topic(spec)
        known = self._context.store.topics.get(spec.name)
        if spec.priorities and known is not None and not known.priorities:
            raise InvalidArgumentError(f"topic {spec.name} has no priorities; it would get them only when it is created", topic=spec.name)
        command = UpdateTopic(
            name=spec.name,
            read_queues=spec.read_queues,
            write_queues=spec.write_queues,
            perm=spec.perm,
            force=spec.force,
            groups=tuple(spec.groups),
        )
        return await self._change_topic(command)

    async def delete_topic(self, spec: admin_pb2.TopicSpec, _caller: CallContext) -> admin_pb2.TopicReply:
        self._check_topic(spec)
        async with self._deletions.hold(spec.name):
            if spec.only_if:
                with self._context.store.nothing_new_waits_for(spec.name):
                    return await self._delete_if(spec)
            if spec.incarnation:
                await self._check_incarnation(spec.name, spec.incarnation)
            return await self._change_topic(DeleteTopic(name=spec.name))

    async def _delete_if(self, spec: admin_pb2.TopicSpec) -> admin_pb2.TopicReply:
        await self._check_nothing_waits(spec)
        if spec.incarnation:
            await self._check_incarnation(spec.name, spec.incarnation)
        return await self._change_topic(DeleteTopicIf(name=spec.name, only_if=spec.only_if))

    async def _check_incarnation(self, name: str, wanted: str) -> None:
        """TopicNotFoundError unless the topic is the one that is meant.

        It still is when the command of the caller, which holds the lock of deletions, is applied: only this node adds to the log, and
        another topic of that name could be made only behind another deletion.
        """
        self._context.require_master()
        await self._context.raft.apply_all(COMMAND_TIMEOUT_S)
        self._require_incarnation(name, wanted)

    def _require_incarnation(self, name: str, wanted: str) -> None:
        now = self._context.store.topics.require(name).topic_epoch
        if now != wanted:
            text = f"topic {name!r} was deleted and created again meanwhile; nothing was deleted"
            raise TopicNotFoundError(text, topic=name, incarnation=now)

    async def _check_nothing_waits(self, spec: admin_pb2.TopicSpec) -> None:
        """UnsafeShrinkError when messages that were acknowledged for the topic are still to be stored in it."""
        context = self._context
        context.require_master()
        await context.raft.apply_all(COMMAND_TIMEOUT_S)
        if spec.incarnation:
            self._require_incarnation(spec.name, spec.incarnation)  # else what waits for another topic would be named
        topic = context.store.topics.get(spec.name)
        if topic is None or (spec.only_if == DRAINED and topic.perm & Perm.WRITE):
            return  # the command is refused for that
        if waiting := await waiting_for(context, topic):
            raise UnsafeShrinkError(f"topic {topic.name}: {waiting}", topic=topic.name)

    def _check_topic(self, spec: admin_pb2.TopicSpec) -> None:
        group = self._context.settings.group.name
        if spec.group not in ("", group):
            raise InvalidArgumentError(f"this node serves replica group {group}, not {spec.group}")
        if is_system_topic(spec.name):
            raise InvalidArgumentError(f"topic {spec.name} belongs to the system; expected a name of your own", topic=spec.name)

    async def _change_topic(self, command: Command[TopicResult]) -> admin_pb2.TopicReply:
        topic = await self._context.command(command, COMMAND_TIMEOUT_S)
        await self._registered()  # routes that are read after this reply have the change
        return message_of(admin_pb2.TopicReply, topic, group=self._context.settings.group.name)

    async def list_topics(self, _request: admin_pb2.Empty, caller: CallContext) -> admin_pb2.TopicList:
        group = self._context.settings.group.name
        reply = admin_pb2.TopicList()
        sees = partial(self._context.access.may_topic, caller.principal, Action.DESCRIBE)
        shown = [topic for topic in self._context.store.topics if not is_system_topic(topic.name) and sees(topic.name)]
        async for topic in in_slices(shown):
            reply.topics.append(message_of(admin_pb2.TopicReply, topic, group=group))
        return reply

    # For producers

    async def auto_create(self, request: topics_pb2.AutoCreateRequest, _caller: CallContext) -> topics_pb2.AutoCreateResponse:
        settings = self._context.settings.cluster.broker
        if not settings.autoCreateTopicEnable:
            raise TopicNotFoundError(f"topic {request.name!r} does not exist, and autoCreateTopicEnable is off", topic=request.name)
        if request.create_topic_key != AUTO_CREATE_TOPIC:
            raise InvalidArgumentError(f"createTopicKey {request.create_topic_key!r}: expected {AUTO_CREATE_TOPIC}")
        if is_system_topic(check_new_topic(request.name)):
            raise InvalidArgumentError(f"topic {request.name} belongs to the system; expected a name of your own", topic=request.name)
        queues = min(request.queues or settings.defaultTopicQueueNums, settings.defaultTopicQueueNums)
        command = CreateTopic(name=request.name, read_queues=queues, write_queues=queues, if_not_exists=True, groups=tuple(request.groups))
        topic = await self._context.command(command, COMMAND_TIMEOUT_S)
        await self._registered()
        return topics_pb2.AutoCreateResponse(queues=topic.write_queues, created=topic.created)
