"""AutoCreate: creates topics when a producer asks, where the cluster file allows it (autoCreateTopicEnable)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.context import ServiceContext
from dledger_wire._pb import topics_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import AUTO_CREATE_TOPIC, check_new_topic, is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.topics import CreateTopic

TIMEOUT_S = 5.0


class AutoCreateService:
    """Creates topics at the master."""

    def __init__(self, context: ServiceContext, registered: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._registered = registered

    def register(self, server: Server) -> None:
        methods.AUTO_CREATE_TOPIC.serve(server, self.auto_create)

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
        topic = await self._context.command(command, TIMEOUT_S)
        await self._registered()
        return topics_pb2.AutoCreateResponse(queues=topic.write_queues, created=topic.created)
