"""Telemetry, Heartbeat and NotifyClientTermination: RocketMQ's gRPC clients at this node, each with a stream while it is here.

Owns the table of streams and the settings that clients get.  Nothing else asks for a stream: a client that comes from another node, or
whose stream broke, is served as before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from broker.node import BrokerNode
from broker.remoting.leader import CALLER
from broker.rocketmq_grpc._pb.definition_pb2 import (
    CustomizedBackoff,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from broker.rocketmq_grpc._pb.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    TelemetryCommand,
)
from broker.rocketmq_grpc.client import NODE, Client, group_of, topic_of
from broker.rocketmq_grpc.leases import Leases
from broker.rocketmq_grpc.statuses import ok
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.rpc.transport import ByteStream

MAX_TOPICS = 1_000  # that a client says it sends to
MAX_SETTINGS_BYTES = 1 << 20
SEND_ATTEMPTS = 3
SEND_PAUSES = Duration(nanos=10_000_000), Duration(seconds=1)  # the first and the last
PAUSES_GROW = 2.0
BATCH, LONG_POLL_S = 32, 20
# How long a message is invisible after each attempt that failed, in seconds: RocketMQ's own.
RETRY_S = (1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200)


@dataclass(slots=True)
class Session:
    """A client with a stream."""

    client_id: str
    stream: ByteStream
    caller: LocalCaller = field(default_factory=CALLER.get)
    topics: set[str] = field(default_factory=set)  # that it sends to
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, command: TelemetryCommand) -> None:
        async with self._turn:
            await self.stream.write(methods.encode(command))


class Sessions:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leases: Leases) -> None:
        self._node, self._leases = node, leases
        self._sessions: dict[str, Session] = {}  # by client id

    @property
    def topics(self) -> set[str]:
        """That clients here send transactions to, or may."""
        return {topic for session in self._sessions.values() for topic in session.topics}

    def producers_of(self, topic: str) -> list[Session]:
        return [session for session in self._sessions.values() if topic in session.topics]

    def produces(self, client: Client, topic: str) -> None:
        """A client sends to a topic, whether its settings say so or not."""
        session = self._sessions.get(client.client_id)
        if session is not None and len(session.topics) < MAX_TOPICS:
            session.topics.add(topic)

    async def telemetry(self, stream: ByteStream, client: Client) -> None:
        session = Session(client.client_id, stream)
        self._sessions[client.client_id] = session
        try:
            while (data := await stream.read()) is not None:
                if len(data) > MAX_SETTINGS_BYTES:
                    raise InvalidArgumentError(f"a command of {len(data)} bytes; expected at most {MAX_SETTINGS_BYTES}")
                command = methods.decode(TelemetryCommand, data)
                if command.HasField("settings"):
                    await session.write(TelemetryCommand(status=ok(), settings=self._settings(session, client, command.settings)))
        finally:
            if self._sessions.get(client.client_id) is session:
                del self._sessions[client.client_id]

    def _settings(self, session: Session, client: Client, given: Settings) -> Settings:
        """What the client is to do, beside what it said itself."""
        kind = given.WhichOneof("pub_sub")
        if kind is None:
            raise InvalidArgumentError("settings of neither a producer nor a consumer")
        answer = Settings()
        answer.CopyFrom(given)
        answer.metric.CopyFrom(Metric(on=False))
        if kind == "publishing":
            if len(given.publishing.topics) > MAX_TOPICS:
                raise InvalidArgumentError(f"settings of more than {MAX_TOPICS} topics")
            session.topics |= {topic_of(topic) for topic in given.publishing.topics}
            answer.publishing.max_body_size = self._node.settings.cluster.store.maxMessageSize
            answer.publishing.validate_message_type = False  # topics take messages of every type
            answer.backoff_policy.CopyFrom(_exponential(SEND_ATTEMPTS, *SEND_PAUSES))
        else:
            group = group_of(given.subscription.group)
            answer.subscription.receive_batch_size = BATCH
            answer.subscription.long_polling_timeout.CopyFrom(Duration(seconds=LONG_POLL_S))
            configured = self._node.store.subscription_groups.of(group)
            answer.subscription.fifo = configured.consumeMessageOrderly
            answer.backoff_policy.CopyFrom(_retries(client, configured.retryMaxTimes + 1))
        return answer

    async def heartbeat(self, _request: HeartbeatRequest, client: Client) -> HeartbeatResponse:
        self._leases.heard(client)
        return HeartbeatResponse(status=ok())

    async def terminate(self, _request: NotifyClientTerminationRequest, client: Client) -> NotifyClientTerminationResponse:
        self._sessions.pop(client.client_id, None)
        await self._leases.left(client)
        return NotifyClientTerminationResponse(status=ok())


def _retries(client: Client, attempts: int) -> RetryPolicy:
    """How often a push consumer tries.  The one for Node.js knows no pauses one by one: it would forward a message after one attempt."""
    first, *_, last = pauses = [Duration(seconds=seconds) for seconds in RETRY_S]
    if client.language == NODE:
        return _exponential(attempts, first, last)
    return RetryPolicy(max_attempts=attempts, customized_backoff=CustomizedBackoff(next=pauses))


def _exponential(attempts: int, first: Duration, last: Duration) -> RetryPolicy:
    return RetryPolicy(max_attempts=attempts, exponential_backoff=ExponentialBackoff(initial=first, max=last, multiplier=PAUSES_GROW))
