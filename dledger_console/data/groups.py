"""Consumer groups: who lags and by how much, who owns which queue, and moving a group with a look at what that means first."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dledger_client.admin.stored_times import next_stored_ms
from dledger_client.aio import Admin, ConsumerGroupDescription, DledgerError, OffsetReset, QueueLag, ReadAt
from dledger_console.data.topics import ASKED_AT_ONCE

ResetTarget: TypeAlias = Literal["first", "last"] | int

BEHIND_QUEUES = 32  # queues whose next message is looked up, those with the largest lag


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group in a list.

    Attributes:
        name: The consumer group.
        lag: Messages that it has not passed.
        members: How many members it has now.
        queues: How many queues it reads or has read.
        unread_queues: How many queues with messages for it no member reads.
        topics: What it reads.
        kind: ``concurrent``, ``orderly``, ``broadcast``, or empty without members.
    """

    name: str
    lag: int
    members: int
    queues: int
    unread_queues: int
    topics: tuple[str, ...]
    kind: str

    @property
    def state(self) -> str:
        """Whether the group is read, in words."""
        if not self.lag:
            return "has read everything"
        if not self.members:
            return "no member reads it"
        return f"{self.unread_queues} queues have no reader" if self.unread_queues else "is reading"


@dataclass(frozen=True, slots=True)
class GroupList:
    """All consumer groups, the one with the largest lag first.

    ``unanswered``: the replica groups that did not answer; ``read_at``: who answered for the others.
    """

    rows: Sequence[GroupRow]
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)
    read_at: Mapping[str, ReadAt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of a consumer group.

    Attributes:
        lag: The group's position in the queue.
        owner: The id of the member that reads it; empty for none.
        epoch: Of the owner's lock; 0 without a lock.
        behind_ms: The age of the next message that the group reads, in milliseconds; None when it is not known, 0 without lag.
    """

    lag: QueueLag
    owner: str
    epoch: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset changes, or has changed.

    Attributes:
        moves: The move in each queue.
    """

    moves: Sequence[OffsetReset]

    @property
    def repeated(self) -> int:
        """Messages that the group reads again."""
        return sum(move.repeated for move in self.moves)

    @property
    def skipped(self) -> int:
        """Stored messages that the group does not read any more."""
        return sum(move.skipped for move in self.moves)

    @property
    def text(self) -> str:
        """The consequences in one sentence."""
        parts = []
        if self.repeated:
            parts.append(f"{self.repeated:,} messages are read again")
        if self.skipped:
            parts.append(f"{self.skipped:,} stored messages are skipped")
        return " and ".join(parts) or "no message is read again or skipped"


async def list_groups(admin: Admin) -> GroupList:
    """All consumer groups, the one with the largest lag first."""
    found = await admin.describe_groups(partial=True)
    rows = sorted(map(row_of, found), key=lambda row: (-row.lag, row.name))
    return GroupList(rows, found.unanswered, found.read_at)


def row_of(group: ConsumerGroupDescription) -> GroupRow:
    """A row for a consumer group."""
    owned = {queue for member in group.members for queue in member.queues}
    return GroupRow(
        name=group.name,
        lag=group.lag,
        members=len(group.members),
        queues=len(group.queues),
        unread_queues=sum(1 for queue in group.queues if queue.lag and queue.key not in owned),
        topics=tuple(sorted({queue.topic for queue in group.queues})),
        kind=next((member.kind for member in group.members), ""),
    )


async def queue_rows(admin: Admin, group: ConsumerGroupDescription, now_ms: int | None = None) -> list[QueueRow]:
    """Every queue of a consumer group, with its owner and the age of the next message."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    stored = await next_stored_ms(admin, group, queues=BEHIND_QUEUES, at_once=ASKED_AT_ONCE)
    owners = group.owners()
    rows = []
    for queue in group.queues:
        member, epoch = owners.get(queue.key, (None, 0))
        at_ms = stored.get(queue.key)
        behind = None if queue.lag and at_ms is None else max(0, now_ms - at_ms) if at_ms is not None else 0
        rows.append(QueueRow(queue, "" if member is None else member.client_id, epoch, behind))
    return rows


def lag_by_topic(group: ConsumerGroupDescription) -> dict[str, int]:
    """Lag by topic, for a curve of each."""
    found: dict[str, int] = {}
    for queue in group.queues:
        found[queue.topic] = found.get(queue.topic, 0) + queue.lag
    return found


async def plan_reset(admin: Admin, name: str, topic: str, to: ResetTarget) -> ResetPlan:
    """What a reset to ``first``, ``last`` or a time (milliseconds since 1970) would change.  Changes nothing."""
    return ResetPlan(await admin.reset_offsets(name, topic, to, dry_run=True))


async def reset(admin: Admin, name: str, topic: str, to: ResetTarget) -> ResetPlan:
    """Do it.  Returns what was changed, which may be more than was planned: messages have come since."""
    return ResetPlan(await admin.reset_offsets(name, topic, to))
