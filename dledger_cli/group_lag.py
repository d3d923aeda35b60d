"""How long the oldest unread message of each queue has been waiting for a consumer group.

Owns how many queues are asked, and for how long: what is not known by then stays unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from dledger_wire.errors import DledgerError

if TYPE_CHECKING:
    from dledger_client.admin.consumer_groups import ConsumerGroupDescription, QueueLag
    from dledger_client.admin.group_answers import QueueId
    from dledger_client.aio import Admin

MAX_QUEUES = 256  # those with the largest lag
LIMIT_S = 2.0


async def waiting_ms(admin: Admin, described: ConsumerGroupDescription) -> dict[QueueId, int]:
    """Milliseconds since the oldest unread message of a queue was stored, by queue; without those where it is not known."""
    found: dict[QueueId, int] = {}
    behind = sorted((queue for queue in described.queues if queue.lag), key=lambda queue: -queue.lag)[:MAX_QUEUES]

    async def look(queue: QueueLag) -> None:
        # A caller may see the group and not the topic's messages; of others' answers nothing is kept back for it.
        with contextlib.suppress(DledgerError):
            offset = max(queue.offset or 0, queue.min_offset)
            message = await admin.query_by_offset(queue.topic, queue.queue_id, offset, replica_group=queue.replica_group)
            if message is not None:
                found[queue.key] = max(0, int(time.time() * 1000) - message.store_timestamp)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number, queue in enumerate(behind):
                group.create_task(look(queue), name=f"lag of a queue {number}")
    return found
