"""SendMessage and RecallMessage: messages of RocketMQ's gRPC producers, stored by the leader like those of any other.

Owns which queue a message goes to: one for each message group, else each in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.groups.pop_reads import SHARDING_KEY
from broker.node import BrokerNode
from broker.remoting.leader import CALL_S, Leader
from broker.remoting.messages import Sending
from broker.remoting.recalls import recalled_by
from broker.remoting.send import Senders
from broker.rocketmq_grpc._pb.definition_pb2 import Code
from broker.rocketmq_grpc._pb.service_pb2 import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from broker.rocketmq_grpc.client import Client, topic_of
from broker.rocketmq_grpc.incoming import frame_of
from broker.rocketmq_grpc.sessions import Sessions
from broker.rocketmq_grpc.statuses import StatusError, ok, status_of, summary
from broker.rocketmq_grpc.transaction_ids import transaction_id
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import Frame
from dledger_wire.frames.priority import PRIORITY
from dledger_wire.frames.timer import TIMER_DELIVER
from dledger_wire.java_hash import java_hash
from dledger_wire.rpc import methods

ANY_QUEUE = -1
MAX_MESSAGES = 1_000  # of one request


class GrpcSends:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, senders: Senders, sessions: Sessions) -> None:
        self._node, self._leader, self._senders, self._sessions = node, leader, senders, sessions

    async def send(self, request: SendMessageRequest, client: Client) -> SendMessageResponse:
        if not 0 < len(request.messages) <= MAX_MESSAGES:
            raise StatusError(Code.BAD_REQUEST, f"{len(request.messages)} messages; expected 1 to {MAX_MESSAGES}")
        topics = {topic_of(message.topic) for message in request.messages}
        if len(topics) > 1:
            raise StatusError(Code.BAD_REQUEST, f"messages to {len(topics)} topics; expected one")
        topic = topics.pop()
        max_bytes = self._node.settings.cluster.store.maxMessageSize
        frames = [await frame_of(message, topic, client, max_bytes) for message in request.messages]
        end_s = asyncio.get_running_loop().time() + min(CALL_S, client.left_s)
        entries: list[SendResultEntry] = []
        for part in _parts(frames):
            entries += await self._send(Sending(topic, self._queue(topic, part[0]), topic, 0, part), client, end_s)
        return SendMessageResponse(status=summary([entry.status for entry in entries]), entries=entries)

    async def _send(self, sending: Sending, client: Client, end_s: float) -> list[SendResultEntry]:
        if sending.is_half:
            self._sessions.produces(client, sending.topic)
        staging = self._senders.staging()
        try:
            _, result, _ = await self._senders.stored(sending, staging, end_s)
        except DledgerError as error:
            failed = status_of(error)
            return [SendResultEntry(status=failed, message_id=unique) for unique in sending.ids]
        handle, first = self._senders.recall_handle(sending, staging, result), result.first_queue_offset
        return [
            SendResultEntry(
                status=ok(),
                message_id=unique,
                transaction_id=transaction_id(unique, first + number) if sending.is_half else unique,
                offset=first + number,
                recall_handle=handle,
            )
            for number, unique in enumerate(sending.ids)
        ]

    def _queue(self, name: str, frame: Frame) -> int:
        group, topic = frame.properties.get(SHARDING_KEY), self._node.store.topics.get(name)
        if group is None or topic is None or not topic.write_queues or topic.priorities:
            return ANY_QUEUE
        return abs(java_hash(group)) % topic.write_queues  # as a queue_key of the clients of this cluster

    async def recall(self, request: RecallMessageRequest, _client: Client) -> RecallMessageResponse:
        unique_id, wanted = recalled_by(request.recall_handle)
        if wanted.topic != topic_of(request.topic):
            raise StatusError(Code.BAD_REQUEST, f"the handle is of a message to topic {wanted.topic}")
        await self._leader.call(methods.RECALL_MESSAGE, wanted)
        return RecallMessageResponse(status=ok(), message_id=unique_id)


def _parts(frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """What is stored together: all when they belong to one queue and none waits, else each by itself."""
    groups = {(frame.properties.get(SHARDING_KEY), frame.properties.get(PRIORITY)) for frame in frames}
    if len(groups) == 1 and not any(frame.sys_flag or TIMER_DELIVER in frame.properties for frame in frames):
        return [frames]
    return [[frame] for frame in frames]
