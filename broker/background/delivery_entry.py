"""Storing parked messages where they belong, with the command that says so, in one log entry: the last step of delays and timers.

Owns the rule that nothing is passed over: a message is either in the entry that moves the position on, or the position stays.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker.context import ServiceContext
from broker.verified_reads import StoredMessages
from dledger_wire.frames.frame import Frame
from store.append.message_log import PreparedCommand
from store.append.redelivery import AtomicPayload, Routed, batches_of, route

BATCH_BYTES = 1 << 20


def batch_bytes(context: ServiceContext) -> int:
    """How much goes into one entry; more than one message only if it fits a small segment too."""
    return min(BATCH_BYTES, context.settings.cluster.store.mappedFileSizeCommitLog // 4)


async def route_all(context: ServiceContext, stored: StoredMessages, waiting: Sequence[Frame]) -> Routed | None:
    """What becomes of parked messages; None when they are to be read again.

    Those that seem to have no topic are dropped, so it is made sure first that it is not damage what makes them say so.
    """
    routed = route(context.store.topics, waiting)
    if not routed.dropped:
        return routed
    if not await stored.put_right(sorted(routed.dropped)):
        return None
    return route(context.store.topics, waiting)  # topics may have changed meanwhile


def log_dropped(logger: logging.Logger, what: str, routed: Routed) -> None:
    if routed.dropped:
        text = "%s: %d messages were dropped: the topic they were sent to was deleted (offsets %d to %d of where they waited)"
        logger.warning(text, what, len(routed.dropped), min(routed.dropped), max(routed.dropped))


async def store_with(context: ServiceContext, messages: Sequence[Frame], command: PreparedCommand[None]) -> None:
    """Store messages and a command, all or nothing.  Raises what one of them is refused with."""
    batches = context.store.prepare(batches_of(messages), for_service=True) if messages else None
    for outcome in batches.outcomes if batches is not None else ():
        if outcome.error is not None:
            raise outcome.error
    await context.raft.propose(AtomicPayload(batches, command))
