"""When single messages were stored: how long the oldest unread message of a queue waits, how old the oldest one is.

Owns how many are looked up at once, and for how long: what is not known by then stays unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Protocol

from dledger_client.admin.consumer_groups import ConsumerGroupDescription
from dledger_client.admin.group_answers import QueueId
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import DledgerError

Place = tuple[str, str, int, int]  # topic, replica group, queue, offset


class Queries(Protocol):
    """What is needed of an admin client."""

    async def query_by_offset(
        self, topic: str, queue_id: int, offset: int, *, replica_group: str | None = ...
    ) -> ReceivedMessage | None: ...


async def stored_ms(admin: Queries, places: Iterable[Place], *, at_once: int, limit_s: float | None = None) -> dict[Place, int]:
    """Milliseconds since 1970 at which messages were stored; those that cannot be read, or not within ``limit_s``, are left out."""
    turns = asyncio.Semaphore(at_once)
    found: dict[Place, int] = {}

    async def look(place: Place) -> None:
        topic, group, number, offset = place
        # A caller may see a queue and not its messages; of others' answers nothing is kept back for it.
        async with turns:
            with contextlib.suppress(DledgerError):
                message = await admin.query_by_offset(topic, number, offset, replica_group=group)
                if message is not None:
                    found[place] = message.store_timestamp

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*map(look, places))
    return found


async def next_stored_ms(
    admin: Queries, described: ConsumerGroupDescription, *, queues: int, at_once: int, limit_s: float | None = None
) -> dict[QueueId, int]:
    """When the next message of a consumer group was stored, in the ``queues`` with the largest lag."""
    behind = sorted((queue for queue in described.queues if queue.lag), key=lambda queue: -queue.lag)[:queues]
    place_of = {queue.key: (*queue.key, max(queue.offset or 0, queue.min_offset)) for queue in behind}
    stored = await stored_ms(admin, place_of.values(), at_once=at_once, limit_s=limit_s)
    return {key: stored[place] for key, place in place_of.items() if place in stored}
