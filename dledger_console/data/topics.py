"""Topics in a list: their queues over replica groups, how much they hold, the age of their oldest message.

Owns which part of thousands of topics is asked for more than its name: the page that is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger_client.admin.calls import Listed
from dledger_client.admin.topics import ChangedTopic, joined
from dledger_client.aio import Admin, Perm, QueueRange, TopicQueues
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX

NORMAL, RETRY, DEAD_LETTERS = "topic", "retries", "dead letters"
OLDEST_QUEUES = 32  # of one topic that are asked for their oldest message


def perm_text(perm: int) -> str:
    """``read, write``, ``read``, ``write`` or ``none``."""
    words = [word for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "write")) if perm & bit]
    return ", ".join(words) or "none"


async def list_topics(admin: Admin) -> Listed[ChangedTopic]:
    """All topics of applications, with the retries and dead letters of consumer groups."""
    found = await admin.list_topics(or_followers=True, partial=True)
    parts: dict[str, list[TopicQueues]] = {}
    for part in found:
        parts.setdefault(part.topic, []).append(part)
    return Listed([joined(parts[name], created=False) for name in sorted(parts)], found.unanswered, found.read_at)


def kind_of(name: str) -> str:
    """What a topic is for, by its name."""
    return RETRY if name.startswith(RETRY_PREFIX) else DEAD_LETTERS if name.startswith(DLQ_PREFIX) else NORMAL


async def ranges(admin: Admin, names: Iterable[str]) -> Mapping[str, Listed[QueueRange]]:
    """What the queues of topics hold."""
    return await admin.offsets_of_topics(names, or_followers=True, partial=True)


def messages_in(queues: Iterable[QueueRange]) -> int:
    return sum(queue.messages for queue in queues)


async def oldest_ms(admin: Admin, topic: str, queues: Iterable[QueueRange]) -> dict[tuple[str, int], int]:
    """When the oldest message of each queue was stored, milliseconds since 1970; queues that are empty or do not answer are left out."""
    filled = [queue for queue in queues if queue.messages][:OLDEST_QUEUES]
    places = [(topic, queue.replica_group, queue.queue_id, queue.min_offset) for queue in filled]
    found = await admin.stored_times(places)
    return {(group, number): at_ms for (_, group, number, _), at_ms in found.items()}
