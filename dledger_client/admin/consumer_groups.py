"""What ``Admin`` returns of consumer groups, and the steps of describing and resetting one.

A group's positions and settings are kept by each replica group for its own queues; what is returned here joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dledger_client.admin.calls import ClusterCalls, Listed
from dledger_client.admin.group_answers import GroupAnswers, GroupMember, QueueId, QueueLeases
from dledger_client.admin.topics import QueueRange
from dledger_client.cluster.followers_first import ReadAt
from dledger_client.producer.partitioner import QueueNumber
from dledger_client.runtime.argument_ranges import FIRST_TIME_MS, MAX_OFFSET, within
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, OffsetOutOfRangeError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail

COMMIT_MAX = 1000  # offsets in one call

ResetTarget: TypeAlias = Literal["first", "last"] | int | Mapping[QueueNumber, int]  # queue -> offset


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group that has members or positions.

    Attributes:
        name: The consumer group.
        topics: Topics that its members subscribe to, or that it has positions in.
        members: How many members it has now.
    """

    name: str
    topics: tuple[str, ...]
    members: int


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The position of a consumer group in one queue.

    Attributes:
        topic: The topic.
        replica_group: The replica group that stores the queue.
        queue_id: The queue's number in its topic.
        offset: The next offset that the group reads; None when it has committed nothing there.
        min_offset: Offset of the oldest message that is still stored.
        max_offset: Offset of the next message to be stored.
        readable: Whether the group can read the queue; False for one that producers write to and consumers do not read.
        moved_at_ms: When the position changed last, milliseconds since 1970; 0 when that is not known.
        leases: What consumers have of the queue whose messages are acknowledged one by one; None when there were none.
    """

    topic: str
    replica_group: str
    queue_id: int
    offset: int | None
    min_offset: int
    max_offset: int
    readable: bool = True
    moved_at_ms: int = 0
    leases: QueueLeases | None = None

    @property
    def key(self) -> QueueId:
        """(topic, replica group, queue id)."""
        return self.topic, self.replica_group, self.queue_id

    @property
    def next_offset(self) -> int:
        """Offset of the message that the group reads next: the oldest one that is still stored if it has committed nothing behind that."""
        return max(self.offset or 0, self.min_offset)

    @property
    def lag(self) -> int:
        """Stored messages that the group has not passed; expired ones do not count."""
        return max(0, self.max_offset - self.next_offset)


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """The members of a consumer group and every queue that it reads or has read.

    Attributes:
        name: The consumer group.
        members: Its members, by client id.
        queues: Its queues, by topic, replica group and queue id.
        unanswered: The replica groups that did not answer, and why: their queues are not included.  One that is in ``read_at``, too,
            has no leader, which alone knows the members: their queues are included, its members are not.
        read_at: By replica group the replica that returned the positions, and how old they may be.
    """

    name: str
    members: tuple[GroupMember, ...]
    queues: tuple[QueueLag, ...]
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)
    read_at: Mapping[str, ReadAt] = field(default_factory=dict, compare=False)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its members subscribe to, or that it has positions in."""
        subscribed = {topic for member in self.members for topic in member.subscriptions}
        return tuple(sorted(subscribed | {queue.topic for queue in self.queues}))

    @property
    def lag(self) -> int:
        """Messages that the group has not passed, of all queues."""
        return sum(queue.lag for queue in self.queues)

    @property
    def leased_topics(self) -> frozenset[str]:
        """The topics whose messages its consumers acknowledge one by one, as ``SimpleConsumer`` does; these are no members."""
        return frozenset(queue.topic for queue in self.queues if queue.leases is not None)

    @property
    def leases(self) -> QueueLeases | None:
        """What its consumers have of all these queues together; None when there are none."""
        found = [queue.leases for queue in self.queues if queue.leases is not None]
        if not found:
            return None
        in_flight, again = sum(each.in_flight for each in found), sum(each.again for each in found)
        return QueueLeases(in_flight, again, max(each.oldest_ms for each in found), max(each.attempts for each in found))

    def owners(self) -> dict[QueueId, tuple[GroupMember, int]]:
        """The member that consumes each queue, and the epoch of its lock.

        Returns:
            (member, epoch) by queue.

        Examples:
            >>> for queue, (member, epoch) in description.owners().items():
            ...     print(queue, member.client_id, epoch)
        """
        sharing = [member for member in self.members if member.kind != "broadcast"]
        return {queue: (member, epoch) for member in sharing for queue, epoch in member.queues.items()}


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One queue of a reset.

    Attributes:
        replica_group: The replica group that stores the queue.
        queue_id: The queue's number in its topic.
        before: The group's offset before the reset; None when it had none.
        after: The group's offset after the reset.
        min_offset: Offset of the oldest message that is still stored.
    """

    replica_group: str
    queue_id: int
    before: int | None
    after: int
    min_offset: int

    @property
    def repeated(self) -> int:
        """How many messages the group reads again."""
        return 0 if self.before is None else max(0, self.before - self.after)

    @property
    def skipped(self) -> int:
        """How many stored messages the group does not read any more; without an offset before, all in front of ``after``."""
        return max(0, self.after - max(self.before or 0, self.min_offset))


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Settings of a consumer group.

    Attributes:
        name: The consumer group.
        retry_max_times: How often a message is delivered again before it is a dead letter.
        retry_queue_nums: Queues of the group's retry topic.
        consume_enable: Whether the group may read.
        consume_in_order: Whether messages that are acknowledged one by one come in order, as with ``orderly`` of ``SimpleConsumer``.
    """

    name: str
    retry_max_times: int
    retry_queue_nums: int
    consume_enable: bool
    consume_in_order: bool


def topics_of(name: str, answers: GroupAnswers) -> set[str]:
    """The topics that the group has positions in, or that its members subscribe to."""
    subscribed = {topic for member in answers.members.get(name, ()) for topic in member.subscriptions}
    return subscribed | {topic for topic, _, _ in answers.positions.get(name, ())}


def described(name: str, answers: GroupAnswers, ranges: Mapping[str, Listed[QueueRange]]) -> ConsumerGroupDescription:
    positions, unanswered = answers.positions.get(name, {}), dict(answers.unanswered)
    moved, leases = answers.moved_at_ms.get(name, {}), answers.leases.get(name, {})
    rows: dict[QueueId, QueueLag] = {}
    for topic in topics_of(name, answers) & ranges.keys():
        for held in ranges[topic]:
            row = (topic, held.replica_group, held.queue_id)
            bounds = (held.min_offset, held.max_offset, held.readable)
            rows[row] = QueueLag(*row, positions.get(row), *bounds, moved.get(row, 0), leases.get(row))
        unanswered |= ranges[topic].unanswered
    for key, offset in positions.items():  # also of queues that were deleted
        if key[1] not in unanswered:
            rows.setdefault(key, QueueLag(*key, offset, offset, offset, moved_at_ms=moved.get(key, 0)))
    queues = tuple(rows[key] for key in sorted(rows))
    return ConsumerGroupDescription(name, tuple(answers.members.get(name, ())), queues, unanswered, answers.sources)


def reset_time(to: ResetTarget) -> int:
    """The time to look up offsets by; -1 for none."""
    if isinstance(to, int):
        within(0, MAX_OFFSET, to=to)
        if 0 < to < FIRST_TIME_MS:
            raise InvalidArgumentError(f"to {to}: expected a time in milliseconds since 1970, of 13 digits, or {{queue: offset}}")
        return to
    if to not in ("first", "last") and not (isinstance(to, Mapping) and to):
        raise InvalidArgumentError(f"to {to!r}: expected first, last, milliseconds since 1970, or {{queue: offset}}")
    return -1


def reset_targets(topic: str, to: ResetTarget, queues: Mapping[tuple[str, int], QueueRange]) -> dict[tuple[str, int], int]:
    """The new offset of each queue that is reset."""
    if not isinstance(to, Mapping):
        return {queue: {"first": held.min_offset, "last": held.max_offset}.get(str(to), held.at_time) for queue, held in queues.items()}
    found: dict[tuple[str, int], int] = {}
    for number, offset in to.items():
        same = [queue for queue in queues if number in (queue, queue[1])]
        if not same:
            known = ", ".join(f"{group}/{queue_id}" for group, queue_id in sorted(queues))
            raise InvalidArgumentError(f"topic {topic}: no queue {number}; expected one of {known}")
        if len(same) > 1:
            groups = ", ".join(sorted(group for group, _ in same))
            raise InvalidArgumentError(f"topic {topic}: queue {number} is in the replica groups {groups}: name one of them")
        held = queues[same[0]]
        if not held.min_offset <= offset <= held.max_offset:
            expected = f"{held.min_offset} (its first message) to {held.max_offset} (its end)"
            text = f"{topic}/{held.queue_id}: offset {offset}; expected {expected}"
            raise OffsetOutOfRangeError(text, min_offset=held.min_offset, max_offset=held.max_offset)
        found[same[0]] = offset
    return found


async def commit_reset(calls: ClusterCalls, name: str, topic: str, moves: Sequence[OffsetReset], made: Mapping[str, int]) -> None:
    """``made``: by replica group, which topic is meant: one recreated since is left alone."""
    groups = list(dict.fromkeys(move.replica_group for move in moves))
    for place, replica_group in enumerate(groups):
        offsets = [
            broker_pb2.GroupOffset(topic=topic, queue_id=move.queue_id, offset=move.after, generation=made[replica_group])
            for move in moves
            if move.replica_group == replica_group
        ]
        try:
            for first in range(0, len(offsets), COMMIT_MAX):
                request = broker_pb2.CommitOffsetsRequest(group=name, offsets=offsets[first : first + COMMIT_MAX], reset=True)
                answer = await calls.ask_leader(replica_group, methods.COMMIT_OFFSETS, request)
                for refused in answer.refused:
                    raise from_detail(refused.error)
        except DledgerError as error:
            if not place:
                raise
            done = f"{name} was reset in {', '.join(groups[:place])}, not in {', '.join(groups[place:])}: repeat the command"
            raise type(error)(f"{error.message}; {done}", **error.details) from None
