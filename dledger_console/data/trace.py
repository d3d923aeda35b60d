"""What became of one message: itself, every copy of it, the replicas that have them, the groups that have passed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dledger_client.aio import Admin, ConsumerState, DledgerError, ReceivedMessage, TracedCopy
from dledger_client.types import Trace
from dledger_console.data.rows import MessageRow, row_of


@dataclass(frozen=True, slots=True)
class Traced:
    """A message and its copies.

    Attributes:
        message: The message itself; None when nothing is stored of it.
        copies: Every stored copy, the oldest first.
        complete: False: there may be more copies.
        unanswered: The replica groups that did not answer, and why.
    """

    message: ReceivedMessage | None
    copies: Sequence[TracedCopy] = ()
    complete: bool = True
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)


async def at_place(admin: Admin, topic: str, replica_group: str, queue_id: int, offset: int) -> ReceivedMessage | None:
    """The message at an offset of a queue; None when there is none yet."""
    return await admin.query_by_offset(topic, queue_id, offset, replica_group=replica_group)


async def trace_of(admin: Admin, message: ReceivedMessage) -> Traced:
    """Every copy of a message that was found."""
    found = await admin.trace(msg_id=message.msg_id)
    return Traced(message, found.copies, found.complete, found.unanswered)


async def by_id(admin: Admin, msg_id: str) -> Traced:
    """The message with an id, and every copy of it."""
    found: Trace = await admin.trace(msg_id=msg_id.strip())
    message = found.copies[0].message if found.copies else None
    return Traced(message, found.copies, found.complete, found.unanswered)


def copy_row(copy: TracedCopy) -> MessageRow:
    """A row for a copy."""
    return row_of(copy.message)


def replicas_text(copy: TracedCopy) -> str:
    """``n0, n1 hold it; n2: no answer``."""
    by_state: dict[str, list[str]] = {}
    for replica in copy.replicas:
        by_state.setdefault(replica.state, []).append(replica.node_id)
    return "; ".join(f"{', '.join(nodes)}: {state}" for state, nodes in by_state.items())


def consumer_text(consumer: ConsumerState) -> str:
    """What a consumer group did with a copy, in words."""
    if consumer.state == "consumed":
        return "has passed it: processed, sent back or skipped"
    if consumer.state == "sent back":
        return "sent it back: it is delivered again"
    return f"not yet: it is at offset {consumer.committed}"
