"""What RocketMQ's tools ask about topics: create, change, delete, list, how far their queues are, which groups read them.

A tool asks each broker, and that is the replica group of this node: what is asked goes to its leader.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping, Sequence

from broker.node import BrokerNode
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import MessageQueue, answer
from broker.remoting.leader import Leader
from broker.support.limits import MAX_ITEMS, in_slices
from dledger_wire._pb import admin_pb2, broker_pb2, sessions_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import SYSTEM_TOPICS, TRACE_TOPIC, is_system_topic
from dledger_wire.rpc import methods
from store.state.topics import PRIORITIES

MAX_QUEUES = 1 << 16
MAX_TOPICS = 1_000  # of one request


class AdminTopics:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self._node, self._leader = node, leader
        self._group = node.settings.group.name

    def handlers(self) -> Handlers:
        return {
            Request.UPDATE_AND_CREATE_TOPIC: self.put,
            Request.UPDATE_AND_CREATE_TOPIC_LIST: self.put_list,
            Request.DELETE_TOPIC_IN_BROKER: self.delete,
            Request.GET_ALL_TOPIC_CONFIG: self.all_configs,
            Request.GET_TOPIC_CONFIG: self.config,
            Request.GET_TOPIC_STATS_INFO: self.stats,
            Request.QUERY_TOPIC_CONSUME_BY_WHO: self.groups,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    # Changes

    async def put(self, request: Command, _client: RemotingConnection) -> Command:
        await self._put(request.text("topic"), {**request.fields, "attributes": _attributes(request.text("attributes", ""))})
        return Command(Answer.SUCCESS)

    async def put_list(self, request: Command, _client: RemotingConnection) -> Command:
        rows = request.content().get("topicConfigList")
        if not isinstance(rows, list) or len(rows) > MAX_TOPICS or not all(isinstance(row, dict) for row in rows):
            raise InvalidArgumentError(f"topicConfigList: expected a list of at most {MAX_TOPICS} objects")
        for row in rows:
            await self._put(str(row.get("topicName", "")), row)
        return Command(Answer.SUCCESS)

    async def _put(self, name: str, wanted: Mapping[str, object]) -> None:
        """Change a topic, or create it; repeated, it changes nothing more."""
        spec = spec_of(name, wanted)
        try:
            await self._leader.call(methods.UPDATE_TOPIC, spec)
        except TopicNotFoundError:
            spec.if_not_exists = True
            await self._leader.call(methods.CREATE_TOPIC, spec)

    async def delete(self, request: Command, _client: RemotingConnection) -> Command:
        with contextlib.suppress(TopicNotFoundError):  # a tool deletes it in each replica group, and topics of groups that may not be there
            await self._leader.call(methods.DELETE_TOPIC, admin_pb2.TopicSpec(name=request.text("topic")))
        return Command(Answer.SUCCESS)

    # Lists

    async def all_configs(self, _request: Command, _client: RemotingConnection) -> Command:
        listed = await self._leader.call(methods.LIST_TOPICS, admin_pb2.Empty())
        rows = {topic.name: _config(topic) async for topic in in_slices(listed.topics)}
        version = {"counter": self._node.store.applied_index, "stateVersion": self._leader.term[1], "timestamp": 0}
        return await answer({"dataVersion": version, "topicConfigTable": rows})

    async def config(self, request: Command, _client: RemotingConnection) -> Command:
        name = request.text("topic")
        reply = await self._leader.call(methods.METADATA, broker_pb2.MetadataRequest(topics=[name]))
        found = next((topic for topic in reply.topics if topic.found), None)
        if found is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist", topic=name)
        return await answer(_config(found))

    async def system_topics(self, _request: Command, _client: RemotingConnection) -> Command:
        stored = {topic.name for topic in self._node.store.topics if is_system_topic(topic.name)}
        return await answer({"topicList": sorted({*SYSTEM_TOPICS, TRACE_TOPIC, *stored})})

    # Queues and groups

    async def stats(self, request: Command, _client: RemotingConnection) -> Command:
        name = request.text("topic")
        bounds = (await topic_bounds(self._leader, [name]))[name]
        last = [(name, queue_id, high - 1) async for queue_id, (low, high) in in_slices(enumerate(bounds)) if high > low]
        newest = await times_of(self._leader, last)
        rows: dict[MessageQueue, object] = {}
        async for queue_id, (low, high) in in_slices(enumerate(bounds)):
            stored_ms = newest.get((name, queue_id), 0)
            rows[MessageQueue(self._group, queue_id, name)] = {"lastUpdateTimestamp": stored_ms, "maxOffset": high, "minOffset": low}
        return await answer({"offsetTable": rows, "topicPutTps": 0.0})

    async def groups(self, request: Command, _client: RemotingConnection) -> Command:
        """Those that have a position in the topic, and those with a member that wants it."""
        name = request.text("topic")
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest())
        pairs = ((each.group, row.topic) for each in positions.groups for row in each.offsets)
        found = {group async for group, topic in in_slices(pairs) if topic == name}
        members = await self._leader.call(methods.DESCRIBE_MEMBERS, sessions_pb2.DescribeMembersRequest())
        wanted = ((each.group, row.topic) for each in members.groups for member in each.members for row in member.subscriptions)
        found |= {group async for group, topic in in_slices(wanted) if topic == name}
        return await answer({"groupList": sorted(found)})


async def topic_bounds(leader: Leader, topics: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """(First offset, next one) of each queue of these topics."""
    reply = await leader.call(methods.QUEUE_OFFSETS, broker_pb2.OffsetsRequest(topics=topics))
    return {each.topic: list(zip(_numbers(each.min_offsets), _numbers(each.max_offsets), strict=True)) for each in reply.topics}


async def times_of(leader: Leader, places: Sequence[tuple[str, int, int]]) -> dict[tuple[str, int], int]:
    """When the messages at these places (topic, queue id, offset) were stored, as far as one request may ask."""
    wanted = broker_pb2.OffsetsRequest()
    async for topic, queue_id, offset in in_slices(places[:MAX_ITEMS]):
        wanted.queues.add(topic=topic, queue_id=queue_id, timestamp_ms=-1, at_offset=max(0, offset))
    reply = await leader.call(methods.QUEUE_OFFSETS, wanted)
    return {(queue.topic, queue.queue_id): queue.stored_ms async for queue in in_slices(reply.queues)}


def _numbers(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def spec_of(name: str, wanted: Mapping[str, object]) -> admin_pb2.TopicSpec:
    """What a request wants of a topic, as text or as numbers.  InvalidArgumentError for what topics do not have."""
    kept = wanted.get("attributes") or {}
    kept = {str(key).lstrip("+-"): value for key, value in kept.items()} if isinstance(kept, dict) else {"attributes": ""}
    other = sorted(kept.keys() - PRIORITIES.keys())  # other kinds of messages limit nothing here: each topic takes every kind
    if other:
        raise InvalidArgumentError(f"topic {name}: topics have no attribute {', '.join(other)[:200]}", topic=name)
    reads, writes = _count(wanted, "readQueueNums", MAX_QUEUES), _count(wanted, "writeQueueNums", MAX_QUEUES)
    spec = admin_pb2.TopicSpec(name=name, read_queues=reads, write_queues=writes, perm=_count(wanted, "perm", 6))
    spec.priorities = kept == PRIORITIES
    return spec


def _count(wanted: Mapping[str, object], name: str, most: int) -> int:
    text = str(wanted.get(name, 0))
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) > most:
        raise InvalidArgumentError(f"{name} {text[:40]!r}: expected a number of at most {most}")
    return int(text)


def _attributes(text: str) -> dict[str, str]:
    """Of ``+name=value,-name``."""
    return dict(row.partition("=")[::2] for row in text.split(",") if row)


def _config(topic: admin_pb2.TopicReply | broker_pb2.TopicInfo) -> dict[str, object]:
    return {
        "attributes": PRIORITIES if topic.priorities else {},
        "order": False,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }
