"""Delivery entries: delayed messages and the command that advances past them, in one log entry.  The last step of delays and timers.

Owns the rule that no message is skipped: a message is in the entry that advances the offset, or the offset stays.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker.context import ServiceContext
from broker.delivery.verified_reads import StoredMessages
from dledger_wire.errors import DledgerError, NotReadyError, TopicNotFoundError
from dledger_wire.frames.frame import Frame
from store.append.prepared import PreparedBatches, PreparedCommand
from store.append.redelivery import AtomicPayload, Routed, batches_of, route
from store.store import MessageStore

BATCH_BYTES = 1 << 20


def batch_bytes(context: ServiceContext) -> int:
    """The size limit of one entry, so that entries of several messages fit a small segment too."""
    return min(BATCH_BYTES, context.settings.cluster.store.mappedFileSizeCommitLog // 4)


async def route_verified(context: ServiceContext, stored: StoredMessages, waiting: Sequence[Frame]) -> Routed | None:
    """Where delayed messages are delivered; None when they must be read again.

    Messages whose topic does not exist are dropped, so their bytes are verified first: damage could look like a missing topic.
    """
    routed = route(context.store.topics, waiting)
    if not routed.dropped:
        return routed
    if not await stored.verify(sorted(routed.dropped)):
        return None
    return route(context.store.topics, waiting)  # topics may have changed meanwhile


def log_routed(logger: logging.Logger, service: str, queue: tuple[str, int], routed: Routed) -> None:
    """Log what was stored otherwise than its producer would expect; ``queue``: where the messages waited."""
    for offset in routed.changed:
        log_changed(logger, service, queue, offset)
    if routed.dropped:
        text = "%s: dropped %d messages whose topic was deleted (they waited at offsets %d to %d)"
        logger.warning(
            text, service, len(routed.dropped), min(routed.dropped), max(routed.dropped), extra={"event": "delayed_messages_dropped"}
        )


def log_changed(logger: logging.Logger, service: str, queue: tuple[str, int], offset: int) -> None:
    text = "%s: properties of the message at %s/%d offset %d cannot be stored again; it goes on with '?' for what is wrong in them"
    logger.warning(text, service, *queue, offset, extra={"event": "properties_changed"})


def prepared_copies(store: MessageStore, copies: Sequence[Frame]) -> tuple[PreparedBatches, DledgerError | None]:
    """Copies of messages for an entry, and why one of them is refused; NotReadyError when that may pass."""
    batches = store.prepare(batches_of(copies), for_service=True)
    problem = next((outcome.error for outcome in batches.outcomes if outcome.error is not None), None)
    if isinstance(problem, TopicNotFoundError):
        raise NotReadyError(f"{problem.message}; nothing was stored")
    return batches, problem


async def store_with(context: ServiceContext, messages: Sequence[Frame], command: PreparedCommand[None]) -> None:
    """Store messages and a command, all or nothing.  Raises what one of them is refused with."""
    batches = context.store.prepare(batches_of(messages), for_service=True) if messages else None
    for outcome in batches.outcomes if batches is not None else ():
        if outcome.error is not None:
            raise outcome.error
    await context.raft.propose(AtomicPayload(batches, command))
    command.result()
