"""Topics as the leaders of their replica groups know them, or their followers: listed, described, with the offsets of their queues.

Owns what a topic looks like to ``Admin`` (``topic_changes`` changes it), and what is known of one when a replica group does not answer: the
parts that answer name every group that may have queues of the topic, so that a group that has nothing to do with it is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Self

from dledger_client.admin.calls import Answers, ClusterCalls, Listed, Sources
from dledger_client.cluster.node_metadata import queues_of
from dledger_client.cluster.routes import ReplicaGroup, TopicQueues, place_of_key, queues_for_keys, queues_for_writes, queues_in
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_wire._pb import admin_pb2, broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotLeaderError, TopicNotFoundError, TopicPermissionError
from dledger_wire.names import MAX_TOPIC_QUEUES, check_topic
from dledger_wire.rpc import methods
from dledger_wire.status import ACTIVE, Perm

DEFAULT_QUEUES = 4  # while no replica group answers


@dataclass(frozen=True, slots=True)
class TopicParts:
    """What is known of a topic.

    ``parts``: by replica group.  ``load``: how many queues each replica group that answered has, of all topics.  ``closed``: the replica
    groups that take no new topics.  ``unanswered``: the replica groups that did not answer, and why.
    """

    name: str
    parts: dict[str, TopicQueues] = field(default_factory=dict)
    load: dict[str, int] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    default_queues: int = DEFAULT_QUEUES
    unanswered: dict[str, DledgerError] = field(default_factory=dict)

    @property
    def groups(self) -> list[str]:
        """All replica groups that were asked, by name."""
        return sorted({*self.load, *self.unanswered})

    @property
    def missing(self) -> dict[str, DledgerError]:
        """The replica groups without an answer that may have queues of the topic."""
        named = [part.replica_groups for part in self.parts.values()]
        if not named or not all(named):
            return self.unanswered  # the topic's replica groups are unknown: it may be in any
        may_have = {group for groups in named for group in groups}
        return {group: error for group, error in self.unanswered.items() if group in may_have}

    @property
    def lacking(self) -> list[str]:
        """The replica groups that parts name, and that have answered without one: a creation or deletion was broken off."""
        named = {group for part in self.parts.values() for group in part.replica_groups}
        return sorted(group for group in named if group in self.load and group not in self.parts)

    def require_all(self, what: str) -> None:
        """Raise unless every replica group that may have queues of the topic has answered; ``what`` was not done."""
        for group, error in sorted(self.missing.items()):
            text = f"{_no_leader(group, error)} and may have queues of topic {self.name}: {what}"
            raise NotLeaderError(text, leader_address="")
        if not self.parts:
            raise TopicNotFoundError(f"topic {self.name!r} does not exist", topic=self.name)

    def require(self, groups: Iterable[str], what: str) -> None:
        """Raise unless all ``groups`` have a leader; ``what`` was not done."""
        for group in groups:
            if group in self.unanswered:
                raise NotLeaderError(f"{_no_leader(group, self.unanswered[group])}: {what}", leader_address="")

    def by_load(self, groups: Iterable[str]) -> list[str]:
        """``groups``, the one with the fewest queues first."""
        return sorted(groups, key=lambda group: (self.load.get(group, 0), group))


def _no_leader(group: str, error: DledgerError) -> str:
    return f"replica group {group} has no leader ({error.message})"


async def look_at(calls: ClusterCalls, name: str) -> TopicParts:
    """Ask the leaders of all replica groups for a topic, which need not exist."""
    return await _seen_by(calls.at_leaders(), name)


async def look_aside(calls: ClusterCalls, name: str) -> TopicParts:
    """``look_at`` for a read: followers are asked where the client spares leaders, which then say only that there is no such topic."""
    if calls.spares_leader:
        seen = await _seen_by(calls, name)
        if seen.parts:
            return seen
    return await look_at(calls, name)


async def _seen_by(calls: ClusterCalls, name: str) -> TopicParts:
    check_topic(name)
    request, sources = broker_pb2.MetadataRequest(topics=[name]), Sources()
    answers = await calls.of_all(lambda group: calls.read(group, methods.METADATA, request, sources))
    found = answers.some()
    parts = {group: queues for group, answer in found.items() for queues in queues_of(name, answer) if queues.replica_group == group}
    load = {group: answer.queues for group, answer in found.items()}
    defaults = [answer.default_topic_queues for answer in found.values()]
    closed = frozenset(group for group, answer in found.items() if answer.state != ACTIVE)
    return TopicParts(name, parts, load, closed, min(defaults, default=DEFAULT_QUEUES), answers.unanswered)


def queue_of_key(topic: TopicParts, key: str) -> tuple[str, int]:
    """The queue that a producer chooses for a key, as (replica group, queue id).  NotLeaderError while not all queues are known."""
    topic.require_all("the queue of a key is not known")
    queues = queues_for_writes(topic.parts.values())
    if not queues:
        raise TopicPermissionError(f"topic {topic.name}: writing is not permitted", topic=topic.name)
    queues = queues_for_keys(queues, itemgetter(0), priorities=any(part.priorities for part in topic.parts.values()))
    return queues[place_of_key(key, len(queues))]


NO_TIME = -1
GIVEN_PERMISSIONS = (None, int(Perm.WRITE), int(Perm.READ), int(Perm.READ_WRITE))  # None: none is given


@dataclass(frozen=True, slots=True)
class ChangedTopic(TopicQueues):
    """A topic as a change left it.

    Attributes:
        topic: The topic.
        replica_group: The replica group; several with commas between them.
        read_queues: Number of queues consumers read, in all these replica groups.
        write_queues: Number of queues producers write to, in all these replica groups.
        perm: Permission bits: 4 read, 2 write (see ``Perm``), those of any of the replica groups.
        topic_epoch: Empty here; see ``describe_topic``.
        version: Version of the replica group's table of topics; 0: unknown.
        max_message_bytes: Largest message body that the brokers accept; 0: unknown.
        replica_groups: Every replica group that may have queues of the topic; empty: unknown.
        priorities: Whether the number of a queue is the priority of its messages, the highest the most urgent.
        created: Whether this call created it; False when it existed before.
        parts: The topic in each replica group.
    """

    created: bool = False
    parts: tuple[TopicQueues, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of one queue.

    Attributes:
        replica_group: The replica group that stores the queue.
        queue_id: The queue's number in its topic.
        min_offset: Offset of the oldest message that is still stored.
        max_offset: Offset of the next message; the newest stored one is before it.
        at_time: Offset of the first message stored at or after the time asked for; ``max_offset`` without one.
        readable: Whether consumers read the queue; False for one that is only written to.
    """

    replica_group: str
    queue_id: int
    min_offset: int
    max_offset: int
    at_time: int
    readable: bool = True

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
    priorities: bool = False

    @classmethod
    def of(cls, name: str, queues: int | None, read_queues: int | None, write_queues: int | None, perm: int | None) -> Self:
        """``queues`` stands for both numbers of queues, where they are not given (None)."""
        counts = {"queues": queues, "read_queues": read_queues, "write_queues": write_queues}
        within(1, MAX_TOPIC_QUEUES, **{given: count for given, count in counts.items() if count is not None})
        if perm not in GIVEN_PERMISSIONS:
            raise InvalidArgumentError(f"perm {perm!r}: expected 2 (write), 4 (read) or 6 (both)")
        return cls(name, read_queues or queues or 0, write_queues or queues or 0, perm or 0)

    def request(
        self, replica_group: str, *, if_not_exists: bool = False, force: bool = False, groups: Sequence[str] = ()
    ) -> admin_pb2.TopicSpec:
        """What the leader of ``replica_group`` is asked; ``groups``: every replica group that has queues of the topic."""
        within(0, MAX_U32, read_queues=self.read_queues, write_queues=self.write_queues, perm=self.perm)
        return admin_pb2.TopicSpec(
            name=self.name,
            read_queues=self.read_queues,
            write_queues=self.write_queues,
            perm=self.perm,
            if_not_exists=if_not_exists,
            group=replica_group,
            force=force,
            groups=groups,
            priorities=self.priorities,
        )


def named_groups(replica_group: str, replica_groups: Sequence[str]) -> Sequence[str]:
    """The replica groups that a call names, by one of two arguments."""
    if replica_group and replica_groups:
        raise InvalidArgumentError("replica_group and replica_groups are mutually exclusive")
    return [replica_group] if replica_group else replica_groups


def joined(parts: Iterable[TopicQueues], *, created: bool) -> ChangedTopic:
    """A topic over the replica groups of ``parts``: counts of all together."""
    found = tuple(sorted(parts, key=lambda part: part.replica_group))
    if not found:
        raise TopicNotFoundError("the topic is in no replica group: it was deleted meanwhile, or all replica groups are draining")
    groups = ",".join(part.replica_group for part in found)
    perm = 0
    for part in found:
        perm |= part.perm
    read, write = sum(part.read_queues for part in found), sum(part.write_queues for part in found)
    has_priorities = any(part.priorities for part in found)
    return ChangedTopic(found[0].topic, groups, read, write, perm, "", priorities=has_priorities, created=created, parts=found)


async def list_topics(
    calls: ClusterCalls, *, or_followers: bool, partial: bool, replica_groups: Iterable[str] | None = None
) -> Listed[TopicQueues]:
    """The leaders answer, since other replicas may lag behind a topic just created; unless the client spares them."""
    request, sources = broker_pb2.MetadataRequest(all_topics=True), Sources()

    async def ask(group: str) -> broker_pb2.MetadataResponse:
        return await calls.read(group, methods.METADATA, request, sources, applied=version_of if or_followers else None)

    answers = await calls.of_all(ask, replica_groups)
    found = (answers.some() if partial else answers.complete()).values()
    topics = [queues_in(topic.name, topic, "", 0, 0) for answer in found for topic in answer.topics]
    return Listed(sorted(topics, key=lambda topic: (topic.topic, topic.replica_group)), answers.unanswered, sources)


def version_of(answer: broker_pb2.MetadataResponse) -> int:
    """Of the topics that a replica knows: the higher, the newer."""
    return answer.version


async def queue_ranges(
    calls: ClusterCalls, topic: str, timestamp_ms: int = NO_TIME, *, only_readable: bool = False, partial: bool = False
) -> Listed[QueueRange]:
    """The queues of ``topic``, by replica group and number; without ``only_readable`` those that are only written, too."""
    within(NO_TIME, MAX_OFFSET, timestamp_ms=timestamp_ms)
    seen, sources = await look_aside(calls, topic), Sources()
    if not partial or not (seen.parts or seen.missing):
        seen.require_all("its offsets are not known")
    answers = await ranges_of(calls, seen.parts, timestamp_ms, sources, only_readable=only_readable)
    found = answers.of_group if partial else answers.complete()
    return Listed((each for ranges in found.values() for each in ranges), seen.missing | answers.unanswered, sources)


async def ranges_of(
    calls: ClusterCalls, parts: Mapping[str, TopicQueues], timestamp_ms: int, sources: Sources, *, only_readable: bool
) -> Answers[list[QueueRange]]:
    """The queues of these parts of a topic, by replica group."""

    async def ask(group: str) -> list[QueueRange]:
        part = parts[group]
        count = part.read_queues if only_readable else max(part.read_queues, part.write_queues)
        refs = [broker_pb2.QueueRef(topic=part.topic, queue_id=number, timestamp_ms=timestamp_ms) for number in range(count)]
        request = broker_pb2.OffsetsRequest(queues=refs)
        answer = await calls.read(group, methods.QUEUE_OFFSETS, request, sources)
        return [
            QueueRange(
                group, each.queue_id, each.min_offset, each.max_offset, each.offset_for_time, readable=each.queue_id < part.read_queues
            )
            for each in answer.queues
        ]

    return await calls.of_all(ask, parts)


@dataclass(frozen=True, slots=True)
class RoutePart:
    """A topic's route in one replica group.

    Attributes:
        group: The replica group: its nodes and their leader.
        queues: The topic's queues in it.
        state: ``active`` or ``draining``; empty: unknown.
        version: Version of what is known of the replica group; 0: a node answered.
    """

    group: ReplicaGroup
    queues: TopicQueues
    state: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic.

    Attributes:
        topic: The topic.
        parts: Its replica groups, by name.
        answered_by: Address of the process that answered.
        by_name_server: Whether a name server answered; False: a node.
        complete: Whether it knows every replica group.
        version: Version of what is known of the topic; 0: a node answered.
    """

    topic: str
    parts: tuple[RoutePart, ...]
    answered_by: str
    by_name_server: bool
    complete: bool = False
    version: int = 0
