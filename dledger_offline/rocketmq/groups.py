"""Consumer groups of a RocketMQ broker: their settings, and their positions translated to the new queues.

Owns what is left alone: a group that has begun to read a queue of the new cluster keeps its position there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger_client.aio import Admin
from dledger_client.producer.partitioner import QueueNumber
from dledger_offline.rocketmq.folder import SourceGroup
from dledger_offline.rocketmq.progress import Progress

DEFAULTS = (16, 1, True, False)
MAX_RETRIES, MAX_RETRY_QUEUES = 1000, 1024


@dataclass(slots=True)
class GroupsMoved:
    """How many groups were carried over, their positions, and those of them that were left as they were."""

    groups: int = 0
    offsets: int = 0
    kept: int = 0


async def move_groups(admin: Admin, groups: Sequence[SourceGroup], progress: Progress) -> GroupsMoved:
    """Set what is not set yet.  Safe to repeat."""
    moved = GroupsMoved()
    for group in groups:
        await _settings(admin, group, progress.replica_group)
        for topic in sorted({topic for topic, _ in group.offsets}):
            await _offsets(admin, group, topic, progress, moved)
        moved.groups += 1
    return moved


async def _settings(admin: Admin, group: SourceGroup, replica_group: str) -> None:
    retries, queues = min(max(group.retry_max_times, 0), MAX_RETRIES), min(max(group.retry_queues, 1), MAX_RETRY_QUEUES)
    if (retries, queues, group.consume_enable, group.consume_in_order) == DEFAULTS:
        return
    (now,) = await admin.group_settings(group.name, replica_group=replica_group)
    if (now.retry_max_times, now.retry_queue_nums, now.consume_enable, now.consume_in_order) == DEFAULTS:
        await admin.update_group(
            group.name,
            retry_max_times=retries,
            retry_queue_nums=queues,
            consume_enable=group.consume_enable,
            consume_in_order=group.consume_in_order,
        )


async def _offsets(admin: Admin, group: SourceGroup, topic: str, progress: Progress, moved: GroupsMoved) -> None:
    wanted: dict[QueueNumber, int] = {
        (progress.replica_group, queue_id): progress.queues[topic, queue_id].new_offset(offset)
        for (of_topic, queue_id), offset in group.offsets.items()
        if of_topic == topic and (topic, queue_id) in progress.queues
    }
    if not wanted:
        return
    only = [progress.replica_group]
    seen = await admin.reset_offsets(group.name, topic, wanted, replica_groups=only, create=True, dry_run=True)
    new: dict[QueueNumber, int] = {(move.replica_group, move.queue_id): move.after for move in seen if move.before is None}
    moved.kept += len(seen) - len(new)
    if new:
        await admin.reset_offsets(group.name, topic, new, replica_groups=only, create=True)
        moved.offsets += len(new)
