"""Whether consumer groups move: how long their next messages wait, which queues stand still, and the state of a group in words.

Owns the one answer to "is it slow, stuck or stopped?", which ``group list``, ``status --check`` and the console all give.  What is not
known, because a replica group has no leader or does not answer, is never said of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_client.admin.consumer_groups import ConsumerGroupDescription, QueueLag
from dledger_client.admin.group_answers import GroupMember, QueueId
from dledger_client.admin.status_text import span
from dledger_client.admin.stored_times import Place

STUCK_MS = 300_000  # as the alert DledgerConsumerLagSeconds
QUEUES_OF_A_GROUP = 64  # whose next messages are looked up, those with the largest lag
MAX_QUEUES = 4000  # of all groups together

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StandingQueue:
    """A queue that a member consumes, that has messages for it, and whose position does not change.

    Attributes:
        queue: The group's position in the queue: the message that it stands at.
        member: The member.
        for_ms: For how long, in milliseconds: since the position changed, the message was stored and the member joined.
    """

    queue: QueueLag
    member: GroupMember
    for_ms: int

    @property
    def offset(self) -> int:
        """Of the message that it stands at."""
        return self.queue.next_offset


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a consumer group does, in words.

    Attributes:
        text: Such as ``is reading`` or ``no member reads it``; ``unknown`` when a replica group does not say.
        kind: good, warn or bad; empty for what is not known.
    """

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A consumer group as it moves.

    Attributes:
        group: Its members and positions.
        at_ms: When this was looked up, milliseconds since 1970.
        stored_ms: When the next message of a queue was stored, milliseconds since 1970, for queues that it has messages to read in; of
            those with the largest lag, as far as it is known.
    """

    group: ConsumerGroupDescription
    at_ms: int
    stored_ms: Mapping[QueueId, int] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """The consumer group."""
        return self.group.name

    @property
    def lag(self) -> int | None:
        """Messages that the group has not passed; None when no replica group says."""
        return None if self.group.unanswered and not self.group.queues else self.group.lag

    @property
    def members(self) -> int | None:
        """How many members it has; None when a replica group has no leader, which alone knows them, and no other one knows any."""
        return len(self.group.members) or (None if self.group.unanswered else 0)

    @property
    def is_broadcast(self) -> bool:
        """Whether each member reads everything and keeps its own positions, so that those of the group say nothing."""
        return bool(self.group.members) and all(member.kind == "broadcast" for member in self.group.members)

    @property
    def moved_at_ms(self) -> int:
        """When a position of it changed last, milliseconds since 1970; 0 when that is not known."""
        return max((queue.moved_at_ms for queue in self.group.queues), default=0)

    def waiting_ms(self, queue: QueueId) -> int | None:
        """For how long the next message of a queue waits.

        Args:
            queue: (topic, replica group, queue) as ``group.queues`` has them in ``key``.

        Returns:
            Milliseconds; None when nothing waits there, or it is not known.

        Examples:
            >>> waits = {queue.key: progress.waiting_ms(queue.key) for queue in progress.group.queues}
        """
        return max(0, self.at_ms - self.stored_ms[queue]) if queue in self.stored_ms else None

    @property
    def longest_waiting_ms(self) -> int | None:
        """For how long the oldest message waits that the group has not passed; None when none waits, or it is not known."""
        return max((max(0, self.at_ms - at_ms) for at_ms in self.stored_ms.values()), default=None)

    def standing(self, least_ms: int = STUCK_MS) -> list[StandingQueue]:
        """The queues that stand still although a member consumes them.

        Args:
            least_ms: For at least so many milliseconds.

        Returns:
            The longest first.

        Examples:
            >>> for queue in progress.standing(60_000):
            ...     print(queue)
        """
        rows = {queue.key: queue for queue in self.group.queues if queue.lag}
        found = []
        for key, (member, _) in self.group.owners().items():
            if key in rows and key in self.stored_ms:
                since_ms = max(rows[key].moved_at_ms, self.stored_ms[key], member.joined_ms)
                found.append(StandingQueue(rows[key], member, max(0, self.at_ms - since_ms)))
        return sorted((each for each in found if each.for_ms >= least_ms), key=lambda each: (-each.for_ms, each.queue.key))

    @property
    def unread(self) -> list[QueueLag]:
        """The queues with messages for the group that no member consumes, as far as members are known, and that are not leased."""
        if self.is_broadcast:
            return []
        owned, silent, leased = self.group.owners(), self.group.unanswered, self.group.leased_topics
        behind = [queue for queue in self.group.queues if queue.lag and queue.key not in owned]
        return [queue for queue in behind if queue.replica_group not in silent and queue.topic not in leased]

    def state(self, stuck_ms: int = STUCK_MS) -> GroupState:
        """What the group does, in words.

        Args:
            stuck_ms: The group is stuck when a queue stands still for so many milliseconds.

        Returns:
            A text and whether it is good.

        Examples:
            >>> print(progress.state().text)
        """
        if standing := self.standing(stuck_ms):
            owned = len(self.group.owners())
            where = "" if len(standing) == owned else f" in {len(standing)} of {owned} queues"
            return GroupState(f"stuck{where}: no progress for {span(standing[0].for_ms)}, members connected", "bad")
        if self.members is None or self.lag is None or (not self.lag and self.group.unanswered):
            return GroupState(UNKNOWN, "")
        if not self.lag:
            return GroupState("has read everything", "good")
        if self.group.leases is not None and not self.group.owners():
            return self._leasing(stuck_ms)
        if not self.members:
            return GroupState("no member reads it", "warn")
        unread = len(self.unread)
        return GroupState(f"{unread} queues have no reader", "warn") if unread else GroupState("is reading", "good")

    def _leasing(self, stuck_ms: int) -> GroupState:
        """Of a group whose consumers are no members: what they have, or that its position moved lately, shows that there are some."""
        in_flight = self.group.leases.in_flight if self.group.leases is not None else 0
        if in_flight:
            return GroupState(f"is reading: {in_flight} in flight", "good")
        if self.at_ms - self.moved_at_ms < stuck_ms:
            return GroupState("is reading", "good")
        return GroupState("no consumer receives messages", "warn")


def next_places(group: ConsumerGroupDescription, queues: int) -> dict[QueueId, Place]:
    """Of the queues with the largest lag the place of the next message."""
    behind = sorted((queue for queue in group.queues if queue.lag), key=lambda queue: -queue.lag)[:queues]
    return {queue.key: (*queue.key, queue.next_offset) for queue in behind}
