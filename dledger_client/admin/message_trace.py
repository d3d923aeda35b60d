"""Message traces: every stored copy of a message, the replicas that have it, and the consumer groups that have passed it.

Consumption is known by offsets: a group whose committed offset is past a message has consumed it, sent it back or skipped it.  The time
is known as the span between two of the group's commits, and not at all for old ones.  Retries, dead letters and delayed messages are
copies in other topics that keep the id their producer gave.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from dledger_client.admin.message_query import QueryResult, Replicas, call_replica, messages_of, query_by_id, query_by_key
from dledger_client.cluster.responses import parse_envelope
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import Node
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire._pb import query_pb2
from dledger_wire.errors import DledgerError, PermissionDeniedError, TopicNotFoundError
from dledger_wire.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic
from dledger_wire.rpc import methods

REPLICA_TIMEOUT_S = 2.0
MAX_COPIES = 256
REAL_TOPIC = "REAL_TOPIC"  # of a message that waits in a system topic: where it goes

MESSAGE, RETRY, DEAD_LETTER, DELAYED, HALF, SYSTEM = "message", "retry", "dead letter", "delayed", "half message", "system"
HOLDS, HAS_NOT, SILENT = "holds it", "has it not", "no answer"
CONSUMED_STATE, WAITING, SENT_BACK = "consumed", "not yet", "sent back"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Whether a replica stores a message.

    Attributes:
        node_id: The replica.
        state: ``holds it`` (whole, with its checksum), ``has it not`` (yet), or ``no answer``.
    """

    node_id: str
    state: str


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """What a consumer group did with a message, concluded from its committed offset.

    Attributes:
        group: The consumer group.
        state: ``consumed``, ``sent back`` (to be redelivered), or ``not yet``.
        committed: The group's committed offset in the queue.
        after_ms: It was passed after this time, milliseconds since 1970; 0: unknown.
        by_ms: It was passed by this time, milliseconds since 1970; 0: unknown.
    """

    group: str
    state: str
    committed: int
    after_ms: int = 0
    by_ms: int = 0


@dataclass(slots=True)
class TracedCopy:
    """One stored copy of a message.

    Attributes:
        message: The copy.
        kind: ``message``, ``retry``, ``dead letter``, ``delayed``, ``half message`` or ``system``.
        consumer_group: The consumer group that a retry or dead letter belongs to.
        replicas: Which replicas store it.
        consumers: What consumer groups did with it.
    """

    message: ReceivedMessage
    kind: str
    consumer_group: str = ""
    replicas: list[ReplicaState] = field(default_factory=list)
    consumers: list[ConsumerState] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """All stored copies of the messages of a trace, oldest first.

    Attributes:
        copies: The copies.
        complete: False while an index is still being built, or when a replica group did not answer: there may be more.
        unanswered: The replica groups that did not answer, and why.
    """

    copies: list[TracedCopy]
    complete: bool = True
    unanswered: dict[str, DledgerError] = field(default_factory=dict)


async def trace(replicas: Replicas, topic: str, key: str, msg_id: str, max_messages: int, deadline_ms: int) -> Trace:
    """By ``key`` of a topic, or by id (of a topic, or of all)."""
    if key:
        found = await _by_key(replicas, topic, key, max_messages, deadline_ms)
    else:
        found = await query_by_id(replicas, msg_id, topic, max_messages, deadline_ms)
    places: dict[tuple[str, int], ReceivedMessage] = {(each.replica_group, each.physical_offset): each for each in found.messages}
    complete, unanswered = found.complete, found.unanswered
    for unique_id in dict.fromkeys(each.properties.get("UNIQ_KEY", "") for each in found.messages):
        if unique_id:
            copies = await query_by_id(replicas, unique_id, "", MAX_COPIES, deadline_ms)
            complete &= copies.complete
            unanswered = unanswered | copies.unanswered
            places |= {(each.replica_group, each.physical_offset): each for each in copies.messages}
    messages = sorted(places.values(), key=lambda each: (each.store_timestamp, each.replica_group, each.physical_offset))
    return Trace([await _traced(replicas, message, deadline_ms) for message in messages], complete, unanswered)


async def _by_key(replicas: Replicas, topic: str, key: str, max_messages: int, deadline_ms: int) -> QueryResult:
    """The newest messages of the topic with this key, also those that consumers do not see yet: delayed ones, and of open transactions."""

    async def staged(in_topic: str) -> QueryResult:
        try:
            found = await query_by_key(replicas, in_topic, key, 0, 0, max_messages, deadline_ms)
        except (PermissionDeniedError, TopicNotFoundError):
            return QueryResult([])  # a user that may read the topic need not see what waits for it
        return replace(found, messages=[each for each in found.messages if each.properties.get(REAL_TOPIC) == topic])

    of_topic = query_by_key(replicas, topic, key, 0, 0, max_messages, deadline_ms)
    parts = await asyncio.gather(of_topic, *map(staged, (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)))  # a dead group is waited for once
    messages = sorted((each for part in parts for each in part.messages), key=lambda each: each.store_timestamp, reverse=True)
    unanswered = {group: error for part in parts for group, error in part.unanswered.items()}
    return QueryResult(messages[:max_messages], all(part.complete for part in parts), unanswered)


def kind_of(message: ReceivedMessage) -> tuple[str, str]:
    """(kind, consumer group it is kept for)."""
    topic = message.topic
    if topic.startswith(RETRY_PREFIX):
        return RETRY, topic.removeprefix(RETRY_PREFIX)
    if topic.startswith(DLQ_PREFIX):
        return DEAD_LETTER, topic.removeprefix(DLQ_PREFIX)
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        real = message.properties.get(REAL_TOPIC, "")
        return DELAYED, real.removeprefix(RETRY_PREFIX) if real.startswith(RETRY_PREFIX) else ""
    if topic == HALF_TOPIC:
        return HALF, ""
    return (SYSTEM if is_system_topic(topic) else MESSAGE), ""


async def _traced(replicas: Replicas, message: ReceivedMessage, deadline_ms: int) -> TracedCopy:
    kind, consumer_group = kind_of(message)
    copy = TracedCopy(message, kind, consumer_group)
    nodes = (await replicas.router.ensure_group(message.replica_group, deadline_ms)).nodes
    copy.replicas = list(await asyncio.gather(*(_replica_state(replicas.router, message, node) for node in nodes)))
    if kind in (MESSAGE, RETRY, DEAD_LETTER):
        copy.consumers = await _consumers(replicas, message, deadline_ms)
    return copy


async def _replica_state(router: Router, message: ReceivedMessage, node: Node) -> ReplicaState:
    request = query_pb2.QueryMessagesRequest(pos=message.physical_offset)
    try:
        data = await methods.QUERY_MESSAGES.call_bytes(router.channel(node.address), request, timeout_s=REPLICA_TIMEOUT_S)
        reply, payload = parse_envelope(query_pb2.QueryMessagesResponse, data, node.address)
        found = messages_of(reply, payload, message.replica_group, node)
    except DledgerError:
        return ReplicaState(node.id, SILENT)
    same = bool(found) and (found[0].body, found[0].offset_msg_id) == (message.body, message.offset_msg_id)
    return ReplicaState(node.id, HOLDS if same else HAS_NOT)


def _parsed(data: bytes, address: str) -> tuple[query_pb2.ConsumedResponse, memoryview]:
    return methods.CONSUMED.parse_response(data, address), memoryview(b"")


async def _consumers(replicas: Replicas, message: ReceivedMessage, deadline_ms: int) -> list[ConsumerState]:
    place = {"topic": message.topic, "queue_id": message.queue_id, "offset": message.queue_offset}
    request = query_pb2.ConsumedRequest(**place)  # type: ignore[arg-type]
    try:
        reply, _, _ = await call_replica(replicas, message.replica_group, methods.CONSUMED, request, deadline_ms, _parsed)
    except TopicNotFoundError:
        return []  # deleted meanwhile
    states = []
    for each in reply.groups:
        passed = each.committed > message.queue_offset
        state = SENT_BACK if each.sent_back else CONSUMED_STATE if passed else WAITING
        states.append(ConsumerState(each.group, state, each.committed, each.after_ms, each.by_ms))
    return states
