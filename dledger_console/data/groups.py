"""Consumer groups: who lags and by how much, who owns which queue, and moving a group with a look at what that means first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dledger_client.admin.calls import Listed
from dledger_client.admin.group_progress import GroupProgress
from dledger_client.aio import Admin, OffsetReset, QueueLag
from dledger_console.history.groups import GroupRates

ResetTarget: TypeAlias = Literal["first", "last"] | int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group in a list.

    Attributes:
        progress: The group.
        rate: Messages a second that it passes; None while that is not known.
    """

    progress: GroupProgress
    rate: float | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of a consumer group.

    Attributes:
        lag: The group's position in the queue.
        owner: The id of the member that reads it; empty for none, None when that is not known.
        epoch: Of the owner's lock; 0 without a lock.
        behind_ms: The age of the next message that the group reads, in milliseconds; None when it is not known, 0 without lag.
        stands_ms: For how long it has stood still although a member reads it; 0 when it moves, or that is unknown.
    """

    lag: QueueLag
    owner: str | None
    epoch: int
    behind_ms: int | None
    stands_ms: int = 0


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


async def list_groups(admin: Admin, rates: GroupRates | None = None) -> Listed[GroupRow]:
    """All consumer groups, the one with the largest lag first; ``rates`` remembers what was seen before."""
    found = await admin.describe_groups(partial=True)
    seen = await admin.group_progress(found)
    rates = rates or GroupRates()
    if seen:
        rates.take(seen[0].at_ms, found)
    rows = sorted((GroupRow(each, rates.rate(each.name)) for each in seen), key=lambda row: (-(row.progress.lag or 0), row.progress.name))
    return Listed(rows, found.unanswered, found.read_at)


def queue_rows(progress: GroupProgress) -> list[QueueRow]:
    """Every queue of a consumer group, with its owner and the age of the next message."""
    group = progress.group
    owners, stands = group.owners(), {each.queue.key: each.for_ms for each in progress.standing()}
    rows = []
    for queue in group.queues:
        member, epoch = owners.get(queue.key, (None, 0))
        owner = member.client_id if member is not None else None if queue.replica_group in group.unanswered else ""
        behind = progress.waiting_ms(queue.key) if queue.lag else 0
        rows.append(QueueRow(queue, owner, epoch, behind, stands.get(queue.key, 0)))
    return rows


async def plan_reset(admin: Admin, name: str, topic: str, to: ResetTarget) -> ResetPlan:
    """What a reset to ``first``, ``last`` or a time (milliseconds since 1970) would change.  Changes nothing."""
    return ResetPlan(await admin.reset_offsets(name, topic, to, dry_run=True))


async def reset(admin: Admin, name: str, topic: str, to: ResetTarget) -> ResetPlan:
    """Do it.  Returns what was changed, which may be more than was planned: messages have come since."""
    return ResetPlan(await admin.reset_offsets(name, topic, to))
