"""One of RocketMQ's gRPC clients, call by call, over a stock gRPC channel."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message as ProtobufMessage

from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc._pb import service_pb2
from broker.rocketmq_grpc.service import SERVICE
from broker.rocketmq_grpc.signature import DATE_TIME
from tests.waiting import LIMIT_S

Answer = TypeVar("Answer", bound=ProtobufMessage)


class GrpcClient:
    """At one address; ``metadata`` goes with each call."""

    def __init__(
        self, address: str, client_id: str = "client-1", *, tls: bytes | None = None, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.channel = (
            grpc.insecure_channel(address)
            if tls is None
            else grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates=tls))
        )
        self.metadata = ((("x-mq-client-id", client_id),) if client_id else ()) + metadata

    def call(self, name: str, request: ProtobufMessage, timeout_s: float = LIMIT_S) -> Any:
        """The answer to a call."""
        answer = getattr(service_pb2, f"{name}Response")
        method = self.channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer.FromString)
        return method(request, timeout=timeout_s, metadata=self.metadata)

    def code(self, name: str, request: ProtobufMessage) -> int:
        """The code of its status."""
        return int(self.call(name, request).status.code)

    def stream(self, name: str, requests: Iterator[ProtobufMessage], answer: type[Answer]) -> Iterator[Answer]:
        method = self.channel.stream_stream(SERVICE + name, lambda request: request.SerializeToString(), answer.FromString)
        found: Iterator[Answer] = method(requests, timeout=LIMIT_S, metadata=self.metadata)
        return found

    def receive(self, request: service_pb2.ReceiveMessageRequest, timeout_s: float = LIMIT_S) -> list[service_pb2.ReceiveMessageResponse]:
        answer = service_pb2.ReceiveMessageResponse
        method = self.channel.unary_stream(SERVICE + "ReceiveMessage", type(request).SerializeToString, answer.FromString)
        return list(method(request, timeout=timeout_s, metadata=self.metadata))

    def send(
        self, topic: str, body: bytes, message_id: str, properties: dict[str, str] | None = None, **fields: Any
    ) -> service_pb2.SendMessageResponse:
        sent = message(topic, body, message_id, properties, **fields)
        answer: service_pb2.SendMessageResponse = self.call("SendMessage", service_pb2.SendMessageRequest(messages=[sent]))
        return answer

    def close(self) -> None:
        self.channel.close()


def topic_of(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def message(topic: str, body: bytes, message_id: str, properties: dict[str, str] | None = None, **fields: Any) -> pb.Message:
    """``fields``: of its system properties."""
    system = pb.SystemProperties(message_id=message_id, **{"body_encoding": pb.IDENTITY, "message_type": pb.NORMAL} | fields)
    return pb.Message(topic=topic_of(topic), user_properties=properties or {}, system_properties=system, body=body)


def signed(name: str, secret: str, date_time: str) -> str:
    """What a client sends as ``authorization``."""
    signature = hmac.new(secret.encode(), date_time.encode(), "sha1").hexdigest()
    return f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders={DATE_TIME}, Signature={signature}"
