"""AutoCreate: topics made at the wish of a producer, where the cluster file allows it (autoCreateTopicEnable)."""

from __future__ import annotations

from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import topics_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import AUTO_CREATE_TOPIC, check_topic, is_system_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from store.commands.topics import CreateTopic

TIMEOUT_S = 5.0


class AutoCreateService:
    """Makes topics at the master."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        methods.AUTO_CREATE_TOPIC.serve_bytes(server, self.auto_create)

    async def auto_create(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(topics_pb2.AutoCreateRequest, request)
        settings = self._face.settings.cluster.broker
        if not settings.autoCreateTopicEnable:
            raise TopicNotFoundError(f"topic {wish.name!r} does not exist, and autoCreateTopicEnable is off", topic=wish.name)
        if wish.create_topic_key != AUTO_CREATE_TOPIC:
            raise InvalidArgumentError(f"createTopicKey {wish.create_topic_key!r}: expected {AUTO_CREATE_TOPIC}")
        if is_system_topic(check_topic(wish.name)):
            raise InvalidArgumentError(f"topic {wish.name} belongs to the system; expected a name of your own", topic=wish.name)
        queues = min(wish.queues or settings.defaultTopicQueueNums, settings.defaultTopicQueueNums)
        command = CreateTopic(name=wish.name, read_queues=queues, write_queues=queues, if_not_exists=True)
        topic = await self._face.command(command, TIMEOUT_S)
        return topics_pb2.AutoCreateResponse(queues=topic.write_queues, created=topic.created).SerializeToString()
