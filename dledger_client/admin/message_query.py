"""Search for single messages: by key, by id, by their place in the log.

The leader is asked first, since it has everything that was acknowledged, unless the caller wants to spare it; without its answer any other
replica serves.  An id is the producer's, or the one of the message's position in the log.  The latter names a store host, which only the
cluster knows, so both are searched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message

from dledger_client.admin.calls import GROUP_TIMEOUT_MS, answers_of
from dledger_client.cluster.followers_first import FollowersFirst, is_silence, may_be_answered_elsewhere, read_at
from dledger_client.cluster.missing_parts import find_parts
from dledger_client.cluster.responses import garbage, parse_envelope
from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import Node, ReplicaGroup
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_wire._pb import query_pb2
from dledger_wire.errors import (
    CorruptFrameError,
    DledgerError,
    InvalidArgumentError,
    NotLeaderError,
    NotReadyError,
    TopicNotFoundError,
    UnreachableError,
)
from dledger_wire.frames.message_id import parse_offset_message_id
from dledger_wire.rpc import methods
from dledger_wire.rpc.methods import UnaryMethod

CALL_TIMEOUT_S = 5.0
PAGE_BYTES = 8 << 20
MAX_PAGE = 1024

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(slots=True)
class QueryResult:
    """Messages that a query found.

    Attributes:
        messages: The messages, newest first in each replica group.
        complete: False while an index is still being built, or when a replica group did not answer, or only a replica that is far
            behind: there may be more.
        unanswered: The replica groups that did not answer, and why.
    """

    messages: list[ReceivedMessage]
    complete: bool = True
    unanswered: dict[str, DledgerError] = field(default_factory=dict)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages."""
        return iter(self.messages)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The nodes to ask: the leader first, or where it is to be spared, those of ``followers``."""

    router: Router
    followers: FollowersFirst | None = None

    def in_order(self, view: ReplicaGroup) -> list[Node]:
        if self.followers is not None:
            return self.followers.in_order(view)
        return sorted(view.nodes, key=lambda node: node.id != view.leader_id)

    def avoid(self, node: Node) -> None:
        """It is silent, or too far behind."""
        if self.followers is not None:
            self.followers.avoid(node)

    def is_current(self, answer: Message) -> bool:
        """Whether an answer is as new as the caller expects; without its leader a group has nothing better."""
        says_where = "replica" in answer.DESCRIPTOR.fields_by_name  # what groups have consumed is compared by its index instead
        return self.followers is None or not says_where or read_at(answer).is_current


async def call_replica(
    replicas: Replicas,
    group: str,
    method: UnaryMethod[Request, Response],
    request: Request,
    deadline_ms: int,
    parse: Callable[[bytes, str], tuple[Response, memoryview]],
) -> tuple[Response, memoryview, Node]:
    """The answer of the first replica that gives one and is not too far behind, or else the newest; its payload, and which node it is."""
    router = replicas.router
    async for attempt in until(deadline_ms, router.clock, router.random):
        with attempt:
            return await _try_all(replicas, await router.ensure_group(group, deadline_ms), method, request, deadline_ms, parse)
    raise NotReadyError(f"replica group {group}: no attempt was made before the deadline")


async def _try_all(
    replicas: Replicas,
    view: ReplicaGroup,
    method: UnaryMethod[Request, Response],
    request: Request,
    deadline_ms: int,
    parse: Callable[[bytes, str], tuple[Response, memoryview]],
) -> tuple[Response, memoryview, Node]:
    problem: DledgerError = UnreachableError(f"replica group {view.name} has no nodes")
    missing: DledgerError | None = None
    late: list[tuple[Response, memoryview, Node]] = []
    nodes = replicas.in_order(view)
    for number, node in enumerate(nodes, 1):
        left_s = (deadline_ms - replicas.router.clock.monotonic_ms()) / 1000
        share_s = left_s if number == len(nodes) else left_s / 2  # a node that hangs leaves time for the others
        try:
            channel = replicas.router.channel(node.address)
            data = await method.call_bytes(channel, request, timeout_s=max(0.0, min(CALL_TIMEOUT_S, share_s)))
            answer, payload = parse(data, node.address)
        except TopicNotFoundError as error:  # this replica may lag; the others decide
            missing = missing or error
            continue
        except DledgerError as error:
            if not may_be_answered_elsewhere(error):
                raise
            if is_silence(error):
                replicas.avoid(node)
            problem = error
            continue
        if replicas.is_current(answer):
            return answer, payload, node
        replicas.avoid(node)
        late.append((answer, payload, node))
    if late:
        return min(late, key=lambda each: read_at(each[0]).age)
    raise missing or problem


def _parsed(data: bytes, address: str) -> tuple[query_pb2.QueryMessagesResponse, memoryview]:
    return parse_envelope(query_pb2.QueryMessagesResponse, data, address)


async def pages(
    replicas: Replicas, group: str, request: query_pb2.QueryMessagesRequest, deadline_ms: int
) -> AsyncGenerator[tuple[query_pb2.QueryMessagesResponse, memoryview, Node]]:
    """(answer, its frames, the node) for each page of ``request``, which the caller may narrow between two pages."""
    while True:
        reply, payload, node = await call_replica(replicas, group, methods.QUERY_MESSAGES, request, deadline_ms, _parsed)
        if reply.replica.master:
            replicas.router.cache.leader_is(group, node.address)  # it may have become the leader: the next call spares it
        yield reply, payload, node
        if not reply.before_pos:
            return
        request.before_pos = reply.before_pos


async def query_group(
    replicas: Replicas, group: str, request: query_pb2.QueryMessagesRequest, max_messages: int, deadline_ms: int
) -> tuple[list[ReceivedMessage], bool]:
    """(up to ``max_messages`` messages of one replica group, whether its index covered everything); 0: the replicas' default.

    What followers do not have is looked for at the leader: they may lag behind it."""
    found, complete = await _query_group(replicas, group, request, max_messages, deadline_ms)
    if found or replicas.followers is None:
        return found, complete
    return await _query_group(Replicas(replicas.router), group, request, max_messages, deadline_ms)


async def _query_group(
    replicas: Replicas, group: str, wanted: query_pb2.QueryMessagesRequest, max_messages: int, deadline_ms: int
) -> tuple[list[ReceivedMessage], bool]:
    found: list[ReceivedMessage] = []
    complete = True
    request = query_pb2.QueryMessagesRequest()
    request.CopyFrom(wanted)  # pages move it on
    request.max_bytes = PAGE_BYTES
    request.max_messages = min(max_messages, MAX_PAGE)
    async with aclosing(pages(replicas, group, request, deadline_ms)) as answers:
        async for reply, payload, node in answers:
            found += messages_of(reply, payload, group, node)
            complete &= reply.complete and replicas.is_current(reply)
            if not max_messages or len(found) >= max_messages:
                break
            request.max_messages = min(max_messages - len(found), MAX_PAGE)
    return found, complete


def messages_of(reply: query_pb2.QueryMessagesResponse, payload: memoryview, group: str, node: Node) -> list[ReceivedMessage]:
    """The messages of an answer.  UnreachableError for damaged frames."""
    at, messages = 0, []
    try:
        for found in reply.messages:
            frame = payload[at : at + found.size]
            at += found.size
            offsets, sizes = np.array([found.queue_offset], np.int64), np.array([found.size], np.int64)
            messages += Chunk(found.topic, group, found.queue_id, node.id, offsets, sizes, frame).messages()
    except CorruptFrameError as error:
        raise garbage(node.address, error.message) from None
    return messages


async def query_by_key(
    replicas: Replicas, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, deadline_ms: int
) -> QueryResult:
    """Messages of ``topic`` with ``key`` among their keys."""
    if not key or " " in key:
        raise InvalidArgumentError(f"key {key!r}: expected one key, without spaces")
    request = query_pb2.QueryMessagesRequest(topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms)
    return await _in_topic(replicas, topic, request, max_messages, deadline_ms)


async def query_by_id(replicas: Replicas, msg_id: str, topic: str, max_messages: int, deadline_ms: int) -> QueryResult:
    """Messages with this id, the producer's or that of a position in the log; of all topics when none is named."""
    if not msg_id:
        raise InvalidArgumentError("an empty message id")
    by_offset_id = await query_by_offset_id(replicas, msg_id, deadline_ms)
    if by_offset_id is not None and (not topic or by_offset_id.topic == topic):
        return QueryResult([by_offset_id])
    request = query_pb2.QueryMessagesRequest(topic=topic, unique_id=msg_id)
    if topic:
        return await _in_topic(replicas, topic, request, max_messages, deadline_ms)
    return await _all(replicas, sorted(await replicas.router.all_groups(deadline_ms)), request, max_messages, deadline_ms)


async def query_by_offset_id(replicas: Replicas, msg_id: str, deadline_ms: int) -> ReceivedMessage | None:
    """The message at the position that this id names; None for an id of another kind."""
    try:
        host, pos = parse_offset_message_id(msg_id)
    except InvalidArgumentError:
        return None
    groups = await replicas.router.all_groups(deadline_ms)
    # The node that stored it may no longer be a member: then every group is asked.
    own = [name for name, group in sorted(groups.items()) if any(node.address == host for node in group.nodes)]
    result = await _all(replicas, own or sorted(groups), query_pb2.QueryMessagesRequest(pos=pos), 0, deadline_ms)
    return next((message for message in result.messages if message.offset_msg_id == msg_id.upper()), None)


async def _in_topic(
    replicas: Replicas, topic: str, request: query_pb2.QueryMessagesRequest, max_messages: int, deadline_ms: int
) -> QueryResult:
    parts = await find_parts(replicas.router, topic, deadline_ms)
    result = await _all(replicas, [part.replica_group for part in parts.queues], request, max_messages, deadline_ms)
    for group in parts.missing:
        result.unanswered[group] = NotLeaderError(f"replica group {group} has no leader now", leader_address="")
    result.complete &= not parts.missing
    return result


async def _all(
    replicas: Replicas, groups: Sequence[str], request: query_pb2.QueryMessagesRequest, max_messages: int, deadline_ms: int
) -> QueryResult:
    """What the replica groups find, asked at once; one that does not answer is left out, and named, unless there is no other."""
    if len(groups) > 1:
        deadline_ms = min(deadline_ms, replicas.router.clock.monotonic_ms() + GROUP_TIMEOUT_MS)

    answers = await answers_of(lambda group: query_group(replicas, group, request, max_messages, deadline_ms), groups)
    found = answers.some().values()
    complete = not answers.unanswered and all(is_complete for _, is_complete in found)
    result = QueryResult([message for messages, _ in found for message in messages], complete, answers.unanswered)
    result.messages.sort(key=lambda message: -message.store_timestamp)
    del result.messages[max_messages or len(result.messages) :]
    return result
