"""Who calls: one of RocketMQ's gRPC clients, by the headers of its call; and the names in its requests."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from broker.rocketmq_grpc._pb.definition_pb2 import Code, Resource
from broker.rocketmq_grpc.statuses import StatusError
from dledger_wire.errors import InvalidNameError
from dledger_wire.names import MAX_ID_CHARS, check_group, check_topic
from dledger_wire.rpc.transport import CallContext

CLIENT_ID, LANGUAGE = "x-mq-client-id", "x-mq-language"
NODE = "HTTP"  # what the client for Node.js says that its language is


@dataclass(frozen=True, slots=True)
class Client:
    """``peer`` is where it is connected from; it waits for an answer until ``end_s`` by the clock of the event loop."""

    client_id: str
    peer: str
    end_s: float = math.inf
    language: str = ""

    @property
    def left_s(self) -> float:
        return self.end_s - asyncio.get_running_loop().time()


def client_of(caller: CallContext) -> Client:
    """StatusError without the id of a client."""
    client_id = caller.metadata.get(CLIENT_ID, "")
    if not client_id or len(client_id) > MAX_ID_CHARS:
        raise StatusError(Code.CLIENT_ID_REQUIRED, f"{CLIENT_ID}: expected 1 to {MAX_ID_CHARS} characters")
    return Client(client_id, caller.peer, getattr(caller, "end_s", math.inf), caller.metadata.get(LANGUAGE, ""))


def topic_of(resource: Resource) -> str:
    """The topic's name here, where a namespace is the part before a percent sign.  StatusError for none."""
    try:
        return check_topic(_joined(resource))
    except InvalidNameError as error:
        raise StatusError(Code.ILLEGAL_TOPIC, error.message) from None


def group_of(resource: Resource) -> str:
    """As ``topic_of``, of a group."""
    try:
        return check_group(_joined(resource))
    except InvalidNameError as error:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, error.message) from None


def resource_of(name: str) -> Resource:
    """The topic or group of that name as its clients know it."""
    namespace, percent, rest = name.partition("%")
    return Resource(resource_namespace=namespace, name=rest) if namespace and percent else Resource(name=name)


def _joined(resource: Resource) -> str:
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name
