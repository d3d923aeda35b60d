"""Replica groups as a whole: whether one takes messages, how many replicas it is to have, and what is left in one that is drained."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.admin.calls import ClusterCalls
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods

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
