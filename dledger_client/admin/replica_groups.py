"""Replica groups as a whole: drained and taken back, how many replicas one is to have, old messages deleted now.

A replica group is drained and removed in steps: its topics get queues elsewhere, then it takes no more messages; then topics name it no
more.  Each step may be repeated, so that what was broken off goes on.  Old messages are deleted by every node from its own log, by its own
disk and clock, so each gives an answer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_client.admin.topic_changes import create_topic, forget_group
from dledger_client.admin.topics import TopicSpec, list_topics
from dledger_client.cluster.routes import Node, TopicQueues
from dledger_client.runtime.argument_ranges import MAX_OFFSET, texts, within
from dledger_wire._pb import admin_pb2, retention_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX
from dledger_wire.rpc import methods
from dledger_wire.status import ACTIVE, DRAINING, REMOVED

NOT_REGISTERED = "not registered"


async def drain(calls: ClusterCalls, replica_group: str, *, undo: bool) -> ReplicaGroupState:
    if undo:
        return await set_state(calls, replica_group, ACTIVE)
    now = await describe(calls, replica_group)
    if now.state == REMOVED:
        return now
    name = now.replica_group
    others = await active_groups(calls, without=name)
    if not others:
        raise InvalidArgumentError(f"{name} is the only replica group that takes messages; a cluster needs one")
    for queues in await list_topics(calls.at_leaders(), or_followers=False, partial=False):
        if queues.replica_group == name and not _belongs_to_a_group(queues.topic):
            await _add_elsewhere(calls, queues, others)
    return await set_state(calls, name, DRAINING)


async def remove(calls: ClusterCalls, replica_group: str, *, discard: bool) -> ReplicaGroupState:
    """The group, then what topics of the others say of it; the latter also when its nodes are gone since an earlier attempt."""
    try:
        state = await set_state(calls, replica_group, REMOVED, discard=discard)
    except DledgerError:
        known = await _registered_state(calls, replica_group)
        if known not in (REMOVED, NOT_REGISTERED) or not (await forget_group(calls, replica_group) or known == REMOVED):
            raise
        return ReplicaGroupState(replica_group, REMOVED, since_ms=0, voters=0, learners=0, replace_after_ms=0)
    await forget_group(calls, state.replica_group)
    return state


async def _registered_state(calls: ClusterCalls, name: str) -> str:
    """The state of a replica group as a name server knows it; empty when none answers that knows all groups."""
    try:
        directory = await calls.router.directory()
    except DledgerError:
        return ""
    states: dict[str, str] = {group.name: group.state for group in directory.groups}
    return states.get(name, NOT_REGISTERED if directory.complete else "")


async def active_groups(calls: ClusterCalls, *, without: str) -> list[str]:
    """The replica groups that take messages, by name."""
    names = [name for name in await calls.replica_groups() if name != without]
    answers = await calls.of_all(lambda name: calls.ask_leader(name, methods.DESCRIBE_REPLICA_GROUP, admin_pb2.Empty()), names)
    return [name for name, answer in answers.complete().items() if answer.state == ACTIVE]


def _belongs_to_a_group(topic: str) -> bool:
    """Topics of a consumer group are made where they are needed."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


async def _add_elsewhere(calls: ClusterCalls, queues: TopicQueues, others: list[str]) -> None:
    """Give a topic that can be written only in the group to be drained as many queues in the other groups."""
    found = await calls.router.topic(queues.topic, calls.deadline_ms(), fresh=True)
    if any(each.replica_group in others for each in found):
        return
    # What was drained before may be draining still: its permission as users are told lacks the bit for writing.
    count = max(queues.write_queues, 1)
    await create_topic(calls, TopicSpec(queues.topic, read_queues=count, write_queues=count), others, if_not_exists=True)


@dataclass(frozen=True, slots=True)
class NodeExpiry:
    """What one node deleted.

    Attributes:
        node_id: The node.
        segments: How many segments of the log it deleted.
        size_bytes: Their size in bytes.
        first_index: Index of the first entry that is left.
        first_pos: Byte position in the log where that entry begins.
        held_by: Why the next segment stays; empty when it is young enough, or the one being written.
        error: Why the node deleted nothing; None when it answered.
    """

    node_id: str
    segments: int = 0
    size_bytes: int = 0
    first_index: int = 0
    first_pos: int = 0
    held_by: str = ""
    error: DledgerError | None = None


async def expire(calls: ClusterCalls, older_than_ms: int | None, replica_group: str, node_ids: Collection[str]) -> list[NodeExpiry]:
    nodes = await nodes_to_expire(calls, replica_group, node_ids)
    within(0, MAX_OFFSET, older_than_ms=older_than_ms or 0)
    request = retention_pb2.ExpireRequest(has_reserved=older_than_ms is not None, reserved_ms=older_than_ms or 0)
    return list(await asyncio.gather(*(_expire_node(calls, node, request) for node in nodes)))


async def nodes_to_expire(calls: ClusterCalls, replica_group: str, node_ids: Collection[str]) -> list[Node]:
    """The named nodes of the replica group, all when none is named.  InvalidArgumentError for a node it does not have."""
    group = await calls.replica_group(replica_group)
    ids = [node.id for node in group.nodes]
    for node_id in texts("node_ids", node_ids):
        if node_id not in ids:
            raise InvalidArgumentError(f"no node {node_id!r} in replica group {group.name}; expected one of {', '.join(ids)}")
    return [node for node in group.nodes if not node_ids or node.id in node_ids]


async def _expire_node(calls: ClusterCalls, node: Node, request: retention_pb2.ExpireRequest) -> NodeExpiry:
    try:
        reply = await methods.EXPIRE.call(calls.router.channel(node.address), request, timeout_s=calls.timeout_ms / 1000)
    except DledgerError as error:
        return NodeExpiry(node.id, error=error)
    return NodeExpiry(reply.id, reply.segments, reply.size_bytes, reply.first_index, reply.first_pos, reply.held_by)


_DISCARDABLE = ("abandoned", "dead_letter", "parked")


@dataclass(frozen=True, slots=True)
class LeftMessages:
    """Messages that keep a replica group from being removed.

    Attributes:
        kind: unread, retry, delayed, timer or transaction: these are waited for. abandoned (no consumer group reads the topic),
            dead_letter or parked: these may be discarded.
        topic: The topic that stores them.
        consumer_group: The consumer group that waits for them; empty when it is none.
        messages: How many.
    """

    kind: str
    topic: str
    consumer_group: str
    messages: int

    @property
    def discardable(self) -> bool:
        """Whether ``remove_replica_group`` with ``discard`` gives them up."""
        return self.kind in _DISCARDABLE

    @property
    def text(self) -> str:
        """What is left, in words."""
        words = {
            "unread": f"consumer group {self.consumer_group}: {self.messages} unread in topic {self.topic}",
            "retry": f"consumer group {self.consumer_group}: {self.messages} to be retried",
            "delayed": f"{self.messages} delayed messages",
            "timer": f"{self.messages} messages with a delivery time",
            "transaction": f"{self.messages} open transactions",
            "abandoned": f"topic {self.topic}: {self.messages} messages that no consumer group reads",
            "dead_letter": f"consumer group {self.consumer_group}: {self.messages} dead letters",
            "parked": f"{self.messages} parked transactions",
        }
        return words.get(self.kind, f"{self.messages} of kind {self.kind} in topic {self.topic}")


@dataclass(frozen=True, slots=True)
class ReplicaGroupState:
    """The state of a replica group and its mirroring policy.

    Attributes:
        replica_group: The group of nodes.
        state: active, draining or removed.
        since_ms: When the state was set, milliseconds since 1970; 0: it was active from the beginning.
        voters: How many voters the group is to have.
        learners: How many learners the group is to have.
        replace_after_ms: A member away for that many milliseconds is replaced by a spare node; 0: never.
        left: What keeps the group from being removed.
    """

    replica_group: str
    state: str
    since_ms: int
    voters: int
    learners: int
    replace_after_ms: int
    left: tuple[LeftMessages, ...] = ()


async def describe(calls: ClusterCalls, replica_group: str) -> ReplicaGroupState:
    group = await calls.replica_group(replica_group)
    return _state(await calls.ask_leader(group.name, methods.DESCRIBE_REPLICA_GROUP, admin_pb2.Empty()))


async def set_state(calls: ClusterCalls, replica_group: str, state: str, *, discard: bool = False) -> ReplicaGroupState:
    group = await calls.replica_group(replica_group)
    request = admin_pb2.ReplicaGroupRequest(state=state, discard=discard)
    return _state(await calls.ask_leader(group.name, methods.SET_REPLICA_GROUP, request))


async def set_policy(
    calls: ClusterCalls, replica_group: str, voters: int | None, learners: int | None, replace_after_ms: int | None
) -> ReplicaGroupState:
    for name, value in (("voters", voters), ("learners", learners), ("replace_after_ms", replace_after_ms)):
        if value is not None and not 0 <= value < 1 << 40:
            raise InvalidArgumentError(f"{name} {value!r}: expected 0 or more")
    group = await calls.replica_group(replica_group)
    request = admin_pb2.ReplicaGroupRequest(voters=voters or 0, learners=learners, replace_after_ms=replace_after_ms)
    return _state(await calls.ask_leader(group.name, methods.SET_REPLICA_GROUP, request))


def _state(reply: admin_pb2.ReplicaGroupReply) -> ReplicaGroupState:
    left = tuple(LeftMessages(row.kind, row.topic, row.consumer_group, row.messages) for row in reply.left)
    return ReplicaGroupState(reply.group, reply.state, reply.since_ms, reply.voters, reply.learners, reply.replace_after_ms, left)
