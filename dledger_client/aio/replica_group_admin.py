"""Replica groups as a whole: drained and taken back, how many replicas one is to have, old messages deleted now.

A replica group is drained and removed in steps: its topics get queues elsewhere, then it takes no more messages; then topics name it no
more.  Each step may be repeated, so that what was broken off goes on.  Old messages are deleted by every node from its own log, by its own
disk and clock, so each gives an answer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from dledger_client.admin.calls import ClusterCalls, Subject
from dledger_client.admin.replica_groups import LeftMessages, NodeExpiry, ReplicaGroupDescription
from dledger_client.admin.topic_changes import forget_group
from dledger_client.admin.topics import list_topics
from dledger_client.aio.topic_admin import TopicAdmin
from dledger_client.cluster.routes import Node, TopicQueues
from dledger_client.runtime.argument_ranges import MAX_OFFSET, texts, within
from dledger_wire._pb import admin_pb2, retention_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX
from dledger_wire.rpc import methods
from dledger_wire.status import ACTIVE, DRAINING, REMOVED

NOT_REGISTERED = "not registered"
NO_LIMITS: Mapping[str, str] = {}


class ReplicaGroupAdmin(Subject):
    """Replica groups as a whole; use ``Admin``."""

    async def describe_replica_group(self, replica_group: str = "") -> ReplicaGroupDescription:
        """State and mirroring policy of a replica group, and what keeps it from being removed.

        Args:
            replica_group: The group of nodes; needed when the cluster has several.

        Examples:
            >>> print([left.text for left in (await admin.describe_replica_group("g1")).left])
        """
        group = await self._calls.replica_group(replica_group)
        return _state(await self._calls.ask_leader(group.name, methods.DESCRIBE_REPLICA_GROUP, admin_pb2.Empty()))

    async def update_replica_group(
        self,
        replica_group: str = "",
        *,
        voters: int | None = None,
        learners: int | None = None,
        replace_after_ms: int | None = None,
        limits: Mapping[str, str] = NO_LIMITS,
    ) -> ReplicaGroupDescription:
        """Change the mirroring policy of a replica group and the limits of its nodes' alarms; None keeps what is there.

        Args:
            replica_group: The group of nodes; needed when the cluster has several.
            voters: How many voters the group is to have, an odd number.
            learners: How many learners the group is to have.
            replace_after_ms: Replace a member that has been away for that many milliseconds by a spare node; 0: never.
            limits: ``diskFreeLimit`` and ``memoryHighWatermark`` as in the cluster file, in whose place they count; an empty value: the
                cluster file counts again.  Others keep what is there.

        Examples:
            >>> await admin.update_replica_group("g1", learners=1, replace_after_ms=600_000)
            >>> await admin.update_replica_group("g1", limits={"diskFreeLimit": "2GB"})
        """
        for name, value in (("voters", voters), ("learners", learners), ("replace_after_ms", replace_after_ms)):
            if value is not None and not 0 <= value < 1 << 40:
                raise InvalidArgumentError(f"{name} {value!r}: expected 0 or more")
        group = await self._calls.replica_group(replica_group)
        request = admin_pb2.ReplicaGroupRequest(voters=voters or 0, learners=learners, replace_after_ms=replace_after_ms, limits=limits)
        return _state(await self._calls.ask_leader(group.name, methods.SET_REPLICA_GROUP, request))

    async def drain_replica_group(self, replica_group: str, *, undo: bool = False) -> ReplicaGroupDescription:
        """Let a replica group take no more messages and topics: producers move on to the other groups, consumers read it to the end.

        Topics that have queues in this group only get as many queues in the others first.  The call does not wait until everything is
        read: ``describe_replica_group`` says what is left.

        Args:
            replica_group: The group of nodes.
            undo: Let the group take messages again.

        Raises:
            InvalidArgumentError: It is the last group that takes messages, or its nodes serve the name service.

        Examples:
            >>> left = (await admin.drain_replica_group("g1")).left
        """
        if undo:
            return await self._set_state(replica_group, ACTIVE)
        now = await self.describe_replica_group(replica_group)
        if now.state == REMOVED:
            return now
        name = now.replica_group
        others = await _active_groups(self._calls, without=name)
        if not others:
            raise InvalidArgumentError(f"{name} is the only replica group that takes messages; a cluster needs one")
        for queues in await list_topics(self._calls.at_leaders(), or_followers=False, partial=False):
            if queues.replica_group == name and not _belongs_to_a_group(queues.topic):
                await _add_elsewhere(self._calls, queues, others)
        return await self._set_state(name, DRAINING)

    async def remove_replica_group(self, replica_group: str, *, discard: bool = False) -> ReplicaGroupDescription:
        """Remove a replica group that is drained: its nodes refuse everything from then on, and are to be stopped.

        Topics that had queues in it are updated.  The call may be repeated, also when the nodes of the group are gone.

        Args:
            replica_group: The group of nodes.
            discard: Give up messages that no consumer group reads, dead letters and parked transactions.

        Raises:
            UnsafeShrinkError: Something is left in the group; the text says what.
            InvalidArgumentError: The group is not draining.

        Examples:
            >>> await admin.remove_replica_group("g1")
        """
        try:
            state = await self._set_state(replica_group, REMOVED, discard=discard)
        except DledgerError:
            known = await _registered_state(self._calls, replica_group)
            if known not in (REMOVED, NOT_REGISTERED) or not (await forget_group(self._calls, replica_group) or known == REMOVED):
                raise
            return ReplicaGroupDescription(replica_group, REMOVED, since_ms=0, voters=0, learners=0, replace_after_ms=0)
        await forget_group(self._calls, state.replica_group)
        return state

    async def expire_messages(
        self, *, older_than_ms: int | None = None, replica_group: str = "", node_ids: Collection[str] = ()
    ) -> list[NodeExpiry]:
        """Delete old messages now: whole sealed segments of the log, with the queue files that point into them.

        Args:
            older_than_ms: Delete messages older than that many milliseconds.  Default: ``fileReservedTime`` of each node.
            replica_group: The group of nodes; needed when the cluster has several.
            node_ids: Only on these nodes.  Default: on all of the replica group.

        Examples:
            >>> for done in await admin.expire_messages(older_than_ms=24 * 3600 * 1000):
            ...     print(done.node_id, done.size_bytes)
        """
        nodes = await _nodes_to_expire(self._calls, replica_group, node_ids)
        within(0, MAX_OFFSET, older_than_ms=older_than_ms or 0)
        request = retention_pb2.ExpireRequest(has_reserved=older_than_ms is not None, reserved_ms=older_than_ms or 0)
        return list(await asyncio.gather(*(_expire_node(self._calls, node, request) for node in nodes)))

    async def _set_state(self, replica_group: str, state: str, *, discard: bool = False) -> ReplicaGroupDescription:
        group = await self._calls.replica_group(replica_group)
        request = admin_pb2.ReplicaGroupRequest(state=state, discard=discard)
        return _state(await self._calls.ask_leader(group.name, methods.SET_REPLICA_GROUP, request))


async def _registered_state(calls: ClusterCalls, name: str) -> str:
    """The state of a replica group as a name server knows it; empty when none answers that knows all groups."""
    try:
        directory = await calls.router.directory()
    except DledgerError:
        return ""
    states: dict[str, str] = {group.name: group.state for group in directory.groups}
    return states.get(name, NOT_REGISTERED if directory.complete else "")


async def _active_groups(calls: ClusterCalls, *, without: str) -> list[str]:
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
    # What was drained before may be draining still: its permission as users see it lacks the bit for writing.
    count = max(queues.write_queues, 1)
    await TopicAdmin(calls).create_topic(queues.topic, count, replica_groups=others, if_not_exists=True)


async def _nodes_to_expire(calls: ClusterCalls, replica_group: str, node_ids: Collection[str]) -> list[Node]:
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


def _state(reply: admin_pb2.ReplicaGroupReply) -> ReplicaGroupDescription:
    left = tuple(LeftMessages(row.kind, row.topic, row.consumer_group, row.messages) for row in reply.left)
    own = reply.voters, reply.learners, reply.replace_after_ms
    return ReplicaGroupDescription(reply.group, reply.state, reply.since_ms, *own, left, dict(reply.limits), tuple(reply.limits_set))
