"""Messages as rows of a table: places, times and the start of the body.

Owns what is kept of a message that a page lists: nothing of a large body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dledger_client.aio import ReceivedMessage
from dledger_console.data.bodies import preview

Queue: TypeAlias = tuple[str, int]  # (replica group, queue id)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message in a list.

    Attributes:
        topic: The topic it is stored in.
        replica_group: The replica group that stores it.
        queue_id: Its queue.
        offset: Its offset in that queue.
        msg_id: Its id.
        keys: Its keys, separated by spaces.
        tags: Its tag.
        stored_ms: When it was stored, milliseconds since 1970.
        size_bytes: The size of its body.
        preview: The start of its body on one line, control characters escaped.
        replica: The node that it was read from.
    """

    topic: str
    replica_group: str
    queue_id: int
    offset: int
    msg_id: str
    keys: str
    tags: str
    stored_ms: int
    size_bytes: int
    preview: str
    replica: str

    @property
    def queue(self) -> Queue:
        """(replica group, queue id)."""
        return self.replica_group, self.queue_id


def row_of(message: ReceivedMessage) -> MessageRow:
    """A row for a message."""
    body = bytes(message.body)
    return MessageRow(
        topic=message.topic,
        replica_group=message.replica_group,
        queue_id=message.queue_id,
        offset=message.queue_offset,
        msg_id=message.msg_id,
        keys=message.keys,
        tags=message.tags,
        stored_ms=message.store_timestamp,
        size_bytes=len(body),
        preview=preview(body),
        replica=message.replica,
    )
