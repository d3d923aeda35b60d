"""Topics: created, changed, listed and deleted through the leader of their replica group.

A change that was interrupted is repeated in a form that does no harm when it was carried out already.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_client.cluster.routes import TopicQueues
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_wire._pb import admin_pb2, broker_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class ChangedTopic(TopicQueues):
    """A topic as a change left it.

    Attributes:
        topic: The topic.
        replica_group: The replica group.
        read_queues: Number of queues consumers read.
        write_queues: Number of queues producers write to.
        perm: Permission bits: 4 read, 2 write (see ``Perm``).
        topic_epoch: Identifies the topic; another value when it was deleted and created again.
        version: Version of the replica group's table of topics; 0: unknown.
        max_message_bytes: Largest message body that the brokers accept; 0: unknown.
        created: Whether this call created it; False when it existed before.
    """

    created: bool = False


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of one queue.

    Attributes:
        replica_group: The replica group that stores the queue.
        queue_id: The queue's number in its topic.
        min_offset: Offset of the oldest message that is still stored.
        max_offset: Offset of the next message; the newest stored one is before it.
        at_time: Offset of the first message stored at or after the time asked for; ``max_offset`` without one.
    """

    replica_group: str
    queue_id: int
    min_offset: int
    max_offset: int
    at_time: int

    @property
    def messages(self) -> int:
        """How many messages are stored."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic is to be; a zero keeps what is there, or stands for the cluster's default."""

    name: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0

    def request(self, replica_group: str, *, if_not_exists: bool = False, force: bool = False) -> admin_pb2.TopicSpec:
        within(0, MAX_U32, read_queues=self.read_queues, write_queues=self.write_queues, perm=self.perm)
        return admin_pb2.TopicSpec(
            name=self.name,
            read_queues=self.read_queues,
            write_queues=self.write_queues,
            perm=self.perm,
            if_not_exists=if_not_exists,
            group=replica_group,
            force=force,
        )


async def create_topic(calls: ClusterCalls, spec: TopicSpec, replica_group: str, *, if_not_exists: bool) -> ChangedTopic:
    spec.request("")  # checked before a node is asked
    group = await calls.replica_group(replica_group)
    again = spec.request(group.name, if_not_exists=True)
    return await _change(calls, methods.CREATE_TOPIC, spec.request(group.name, if_not_exists=if_not_exists), again)


async def update_topic(calls: ClusterCalls, spec: TopicSpec, replica_group: str, *, force: bool) -> ChangedTopic:
    request = spec.request(replica_group, force=force)
    request.group = replica_group or await replica_group_with(calls, spec.name)
    return await _change(calls, methods.UPDATE_TOPIC, request, request)


async def delete_topic(calls: ClusterCalls, name: str, replica_group: str) -> None:
    request = admin_pb2.TopicSpec(name=name, group=replica_group or await replica_group_with(calls, name))
    await _change(calls, methods.DELETE_TOPIC, request, None)


async def _change(
    calls: ClusterCalls,
    method: methods.UnaryMethod[admin_pb2.TopicSpec, admin_pb2.TopicReply],
    spec: admin_pb2.TopicSpec,
    again: admin_pb2.TopicSpec | None,
) -> ChangedTopic:
    reply = await calls.ask_leader(spec.group, method, spec, again=again)
    calls.router.forget_topic(spec.name)
    return ChangedTopic(reply.name, reply.group, reply.read_queues, reply.write_queues, reply.perm, "", created=reply.created)


async def list_topics(calls: ClusterCalls, *, or_followers: bool) -> list[TopicQueues]:
    """The leaders answer, since other replicas may lag behind a topic just created."""
    request = broker_pb2.MetadataRequest(all_topics=True)
    found: list[TopicQueues] = []
    for group in await calls.replica_groups():
        if or_followers:
            answer = await calls.committed_state.ask(
                group, methods.METADATA, request, lambda answer: int(answer.version), calls.deadline_ms()
            )
        else:
            answer = await calls.ask_leader(group, methods.METADATA, request)
        found += [TopicQueues(topic.name, topic.group, topic.read_queues, topic.write_queues, topic.perm, "") for topic in answer.topics]
    return sorted(found, key=lambda topic: (topic.topic, topic.replica_group))


async def describe_topic(calls: ClusterCalls, name: str) -> list[TopicQueues]:
    return await calls.router.topic(name, calls.deadline_ms(), fresh=True)


async def replica_group_with(calls: ClusterCalls, topic: str) -> str:
    """The one replica group that has ``topic``.  InvalidArgumentError when several have it."""
    found = [queues.replica_group for queues in await describe_topic(calls, topic)]
    if len(found) > 1:
        raise InvalidArgumentError(f"topic {topic} is in several replica groups; expected replica_group, one of {', '.join(found)}")
    return found[0]


async def queue_ranges(calls: ClusterCalls, topic: str, timestamp_ms: int = NO_TIME, *, only_readable: bool = False) -> list[QueueRange]:
    """The queues of ``topic``, by replica group and number; without ``only_readable`` those that are only written, too."""
    within(NO_TIME, MAX_OFFSET, timestamp_ms=timestamp_ms)
    found: list[QueueRange] = []
    for queues in await describe_topic(calls, topic):
        count = queues.read_queues if only_readable else max(queues.read_queues, queues.write_queues)
        refs = [broker_pb2.QueueRef(topic=topic, queue_id=number, timestamp_ms=timestamp_ms) for number in range(count)]
        answer = await calls.ask_leader(queues.replica_group, methods.QUEUE_OFFSETS, broker_pb2.OffsetsRequest(queues=refs))
        found += [
            QueueRange(queues.replica_group, each.queue_id, each.min_offset, each.max_offset, each.offset_for_time)
            for each in answer.queues
        ]
    return found
