"""The members of consumer groups as the command line shows them: who is there, what each consumes, with which lock, how far it lags.

Owns the call and the joining of what the masters of several replica groups tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dledger_cli.calls import call_leader
from dledger_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

Queue = tuple[str, str, int]  # topic, replica group, queue


@dataclass(slots=True)
class MemberRow:
    """One member; ``queues``: what it consumes -> the epoch of its lock (0: none)."""

    client_id: str
    address: str
    kind: str
    strategy: str
    subscriptions: dict[str, str]
    joined_ms: int
    queues: dict[Queue, int] = field(default_factory=dict)

    def as_json(self, lags: dict[Queue, int]) -> dict[str, Any]:
        rows = [
            {"topic": topic, "group": group, "queue_id": queue_id, "epoch": epoch, "lag": lags.get((topic, group, queue_id))}
            for (topic, group, queue_id), epoch in sorted(self.queues.items())
        ]
        return {
            "client_id": self.client_id,
            "address": self.address,
            "kind": self.kind,
            "strategy": self.strategy,
            "subscriptions": self.subscriptions,
            "joined_at": self.joined_ms,
            "queues": rows,
        }

    def as_row(self, lags: dict[Queue, int]) -> tuple[Any, ...]:
        """MEMBER, ADDRESS, KIND, QUEUES, LAG, SUBSCRIPTIONS."""
        wanted = ", ".join(f"{topic} ({expression})" for topic, expression in sorted(self.subscriptions.items()))
        return (self.client_id, self.address, self.kind, len(self.queues), sum(lags.get(queue, 0) for queue in self.queues), wanted)


async def members_of(cluster: ClusterConfig, name: str, timeout_s: float) -> list[MemberRow]:
    """The members of a consumer group, by name."""
    return (await _members(cluster, [name], timeout_s)).get(name, [])


async def all_members(cluster: ClusterConfig, timeout_s: float) -> dict[str, list[MemberRow]]:
    """The members of every consumer group that has some."""
    return await _members(cluster, [], timeout_s)


async def positions_of(cluster: ClusterConfig, names: list[str], timeout_s: float) -> list[tuple[str, str, str, int, int]]:
    """(consumer group, topic, replica group, queue, offset) of everything committed."""
    from dledger_wire._pb import broker_pb2
    from dledger_wire.rpc import methods

    found = []
    request = broker_pb2.GroupOffsetsRequest(groups=names).SerializeToString()
    for group in cluster.groups:
        answer = await call_leader(group, methods.GROUP_OFFSETS.path, request, timeout_s)
        for positions in broker_pb2.GroupOffsetsResponse.FromString(answer).groups:
            found += [(positions.group, each.topic, group.name, each.queue_id, each.offset) for each in positions.offsets]
    return found


async def check_known(cluster: ClusterConfig, name: str, timeout_s: float, hint: str) -> None:
    """Raise InvalidArgumentError, with ``hint``, for a consumer group that has no members and has committed nothing."""
    if not await positions_of(cluster, [name], timeout_s) and not await members_of(cluster, name, timeout_s):
        raise InvalidArgumentError(f"no consumer group {name!r} has members or has committed anything ({hint})")


async def _members(cluster: ClusterConfig, names: list[str], timeout_s: float) -> dict[str, list[MemberRow]]:
    """What members consume is joined from all replica groups."""
    from dledger_wire._pb import sessions_pb2
    from dledger_wire.rpc import methods

    found: dict[tuple[str, str], MemberRow] = {}
    request = sessions_pb2.DescribeMembersRequest(groups=names).SerializeToString()
    for group in cluster.groups:
        answer = await call_leader(group, methods.DESCRIBE_MEMBERS.path, request, timeout_s)
        for told in sessions_pb2.DescribeMembersResponse.FromString(answer).groups:
            for member in told.members:
                kind = "broadcast" if member.broadcast else "orderly" if member.orderly else "concurrent"
                subscriptions = {each.topic: each.expression for each in member.subscriptions}
                row = MemberRow(member.client_id, member.address, kind, member.strategy, subscriptions, member.joined_ms)
                row = found.setdefault((told.group, member.client_id), row)
                row.queues |= {(place.topic, group.name, place.queue_id): place.epoch for place in member.queues}
    groups: dict[str, list[MemberRow]] = {}
    for (name, _), row in sorted(found.items(), key=lambda item: item[0]):
        groups.setdefault(name, []).append(row)
    return groups
