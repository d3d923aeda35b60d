"""What ``Admin`` returns of replica groups: members, leadership transfers, state and mirroring policy, what keeps one from being
removed, and what its nodes deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_wire.errors import DledgerError


@dataclass(frozen=True, slots=True)
class LeaderTransfer:
    """A leadership transfer that is complete.

    Attributes:
        replica_group: The group of nodes.
        old_leader: Id of the node that led before.
        new_leader: Id of the node that leads now; ``old_leader`` when that node led already.
        term: The new leader's term.
        took_ms: From the request to the new leader's confirmation, in milliseconds.
    """

    replica_group: str
    old_leader: str
    new_leader: str
    term: int
    took_ms: float


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a replica group, as the log has them committed.

    Attributes:
        replica_group: The group of nodes.
        voters: Ids of the nodes that vote and whose acknowledgements count.
        learners: Ids of the nodes that only copy the log.
        changed: False when the members were as asked before the call.
    """

    replica_group: str
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    changed: bool = True


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
class ReplicaGroupDescription:
    """The state of a replica group and its mirroring policy.

    Attributes:
        replica_group: The group of nodes.
        state: active, draining or removed.
        since_ms: When the state was set, milliseconds since 1970; 0: it was active from the beginning.
        voters: How many voters the group is to have.
        learners: How many learners the group is to have.
        replace_after_ms: A member away for that many milliseconds is replaced by a spare node; 0: never.
        left: What keeps the group from being removed.
        limits: Of alarms, as they are in force: ``diskFreeLimit`` and ``memoryHighWatermark``.
        limits_set: Those of them that were set for the group, and are not the cluster file's.
    """

    replica_group: str
    state: str
    since_ms: int
    voters: int
    learners: int
    replace_after_ms: int
    left: tuple[LeftMessages, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    limits_set: tuple[str, ...] = ()
