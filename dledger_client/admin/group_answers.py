"""What all replica groups return of consumer groups: committed positions and connected members, joined.

Each replica group knows the positions in its own queues, and the members that consume them.  Positions are replicated, members are known
to the leader alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from dledger_client.admin.calls import ClusterCalls, Sources
from dledger_wire._pb import broker_pb2, sessions_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods

QueueId: TypeAlias = tuple[str, str, int]  # topic, replica group, queue id
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a consumer group.

    Attributes:
        client_id: The member's id.
        address: Where it connects from.
        kind: concurrent, orderly or broadcast.
        strategy: How it shares queues with the other members.
        subscriptions: Topic -> filter expression.
        joined_ms: When it joined, milliseconds since 1970.
        queues: What it consumes, (topic, replica group, queue id) -> epoch of its lock; 0 without a lock.
        oldest_call_ms: How long the oldest call of its listener ran at its last heartbeat, in milliseconds; 0 without one.
    """

    client_id: str
    address: str
    kind: str
    strategy: str
    subscriptions: Mapping[str, str]
    joined_ms: int
    queues: Mapping[QueueId, int]
    oldest_call_ms: int = 0


@dataclass(frozen=True, slots=True)
class QueueLeases:
    """Messages of a queue that consumers of a group received one by one, as with ``SimpleConsumer``, and that are not done.

    Attributes:
        in_flight: How many are leased now: neither acknowledged nor free again.
        again: How many are free, to be delivered again.
        oldest_ms: How long ago the first of all these was delivered first, in milliseconds, to the second; 0 when there are none.
        attempts: Deliveries of the one that was delivered most often.
    """

    in_flight: int
    again: int
    oldest_ms: int
    attempts: int


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """What the replica groups returned of consumer groups: positions by consumer group and queue, members by consumer group.

    A replica group whose positions are known and whose members are not is ``unanswered``, too."""

    positions: dict[str, dict[QueueId, int]]
    moved_at_ms: dict[str, dict[QueueId, int]]  # when a position changed last; 0 when that is not known
    leases: dict[str, dict[QueueId, QueueLeases | None]]
    members: dict[str, list[GroupMember]]
    unanswered: dict[str, DledgerError]
    sources: Sources

    def knows(self, name: str) -> bool:
        """Whether a consumer group of this name has positions or members."""
        return bool(self.positions.get(name) or self.members.get(name))


async def collect_answers(calls: ClusterCalls, names: Sequence[str], *, partial: bool) -> GroupAnswers:
    """Of all consumer groups when none is named.  Raises when a replica group does not answer, unless ``partial``."""
    offsets = broker_pb2.GroupOffsetsRequest(groups=names, any_replica=calls.spares_leader, leases=True)
    sessions, sources = sessions_pb2.DescribeMembersRequest(groups=names), Sources()
    without_members: dict[str, DledgerError] = {}

    async def ask(group: str) -> tuple[broker_pb2.GroupOffsetsResponse, sessions_pb2.DescribeMembersResponse]:
        positions = await calls.read(group, methods.GROUP_OFFSETS, offsets, sources)
        no_members = sessions_pb2.DescribeMembersResponse()
        members = await calls.leader_only_or(group, methods.DESCRIBE_MEMBERS, sessions, no_members, without_members, partial=partial)
        return positions, members

    answers = await calls.of_all(ask)
    found = answers.some() if partial else answers.complete()
    offsets_of = {group: answer for group, (answer, _) in found.items()}
    positions = _of_queues(offsets_of, lambda each: each.offset)
    moved = _of_queues(offsets_of, lambda each: each.moved_at_ms)
    leases = _of_queues(offsets_of, _leases)
    members = _members({group: answer for group, (_, answer) in found.items()})
    return GroupAnswers(positions, moved, leases, members, answers.unanswered | without_members, sources)


def _of_queues(
    answers: Mapping[str, broker_pb2.GroupOffsetsResponse], value: Callable[[broker_pb2.GroupOffset], ValueT]
) -> dict[str, dict[QueueId, ValueT]]:
    """Consumer group -> queue -> a value of its position."""
    found: dict[str, dict[QueueId, ValueT]] = {}
    for replica_group, answer in answers.items():
        for positions in answer.groups:
            rows = found.setdefault(positions.group, {})
            rows.update({(each.topic, replica_group, each.queue_id): value(each) for each in positions.offsets})
    return {name: rows for name, rows in found.items() if rows}


def _leases(row: broker_pb2.GroupOffset) -> QueueLeases | None:
    if not row.HasField("leases"):
        return None
    return QueueLeases(row.leases.in_flight, row.leases.again, row.leases.oldest_ms, row.leases.attempts)


def _members(answers: Mapping[str, sessions_pb2.DescribeMembersResponse]) -> dict[str, list[GroupMember]]:
    """Consumer group -> its members by client id."""
    found: dict[tuple[str, str], GroupMember] = {}
    queues: dict[tuple[str, str], dict[QueueId, int]] = {}
    for replica_group, answer in answers.items():
        for described in answer.groups:
            for member in described.members:
                key = described.group, member.client_id
                consumed = queues.setdefault(key, {})
                consumed.update({(each.topic, replica_group, each.queue_id): each.epoch for each in member.queues})
                found.setdefault(key, _member(member, consumed))
    groups: dict[str, list[GroupMember]] = {}
    for (name, _), row in sorted(found.items(), key=lambda item: item[0]):
        groups.setdefault(name, []).append(row)
    return groups


def _member(member: sessions_pb2.GroupMember, queues: Mapping[QueueId, int]) -> GroupMember:
    kind = "broadcast" if member.broadcast else "orderly" if member.orderly else "concurrent"
    subscriptions = {each.topic: each.expression for each in member.subscriptions}
    fields = (member.client_id, member.address, kind, member.strategy, subscriptions, member.joined_ms)
    return GroupMember(*fields, queues, member.oldest_call_ms)
