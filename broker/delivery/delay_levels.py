"""Delay levels: delivers delayed messages when they are due.  Runs on the master only.

Delayed messages wait in ``SCHEDULE_TOPIC_XXXX``, queue LEVEL-1, in the order they were stored, so only the first of each level is checked.
Owns one task a level and no durable state: the offset up to which a level is delivered is replicated, and advanced in the log entry of the
delivered messages.  When the master loses its term the tasks are cancelled first; what it proposed and did not commit is delivered by the
next master.

Store times never go back along the log, so everything in front of a message that is due is due.  They have no checksum of their own: one
that is to come, or by which a message should have been delivered before, is verified with its log entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from broker.config.units import parse_duration_ms
from broker.context import ServiceContext
from broker.delivery.backoff import RETRY_S, Backoff
from broker.delivery.delivery_entry import batch_bytes, log_routed, route_verified, store_with
from broker.delivery.verified_reads import StoredMessages, unreadable_offset
from dledger_wire.errors import DledgerError, StorageDamagedError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import SCHEDULE_TOPIC
from dledger_wire.tasks import BackgroundTasks
from store.commands.redelivery import AdvanceDelayLevel
from store.commands.topics import CreateTopic
from store.state.delays import LEVELS

BATCH_MESSAGES = 500
MAX_SLEEP_S = 60.0
PUNCTUAL_MS = 1000

_logger = logging.getLogger(__name__)


class DelayLevelService:
    """Implements ``broker.context.MasterService``."""

    name = "schedule"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        configured = [parse_duration_ms(text) for text in context.settings.cluster.broker.messageDelayLevel.split()]
        self._batch_bytes = batch_bytes(context)
        # A level beyond the configured ones is the last of them, as upstream.
        self._delays_ms = {level: configured[min(level, len(configured)) - 1] for level in range(1, LEVELS + 1)}

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        """Start in the background: creating the topic may take long, for example while the disk is full."""
        tasks.spawn(self._start(tasks), "begin")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _start(self, tasks: BackgroundTasks) -> None:
        """Create the topic unless it exists, then serve every level."""
        while self._context.store.topics.get(SCHEDULE_TOPIC) is None:
            command = CreateTopic(name=SCHEDULE_TOPIC, read_queues=LEVELS, write_queues=LEVELS, if_not_exists=True)
            try:
                await self._context.raft.propose(self._context.store.command(command))
            except DledgerError as error:
                _logger.info("cannot create %s yet: %s", SCHEDULE_TOPIC, error.message)
                await asyncio.sleep(RETRY_S)
        for level, delay_ms in self._delays_ms.items():
            tasks.spawn(self._serve(level, delay_ms), f"level {level}")

    async def _serve(self, level: int, delay_ms: int) -> None:
        stored, backoff = StoredMessages(self._context, SCHEDULE_TOPIC, level - 1), Backoff(_logger, f"delay level {level}")
        while True:
            try:
                await self._next(level, delay_ms, stored)
                backoff.reset()
            except DledgerError as error:
                await asyncio.sleep(backoff.delay_s(error))

    async def _next(self, level: int, delay_ms: int, stored: StoredMessages) -> None:
        """Deliver what is due of a level, or wait for it."""
        store = self._context.store
        low, _ = store.reader.bounds(SCHEDULE_TOPIC, level - 1)
        offset = max(low, store.delays.of(level))
        waiting = await stored.run(offset, max_messages=BATCH_MESSAGES, max_bytes=self._batch_bytes)
        if not waiting:
            await store.wait_for_messages(SCHEDULE_TOPIC, level - 1, offset, MAX_SLEEP_S)
            return
        now_ms = store.time.now_ms()
        waiting = await _with_sound_times(stored, waiting, now_ms, delay_ms)
        if not waiting:
            return
        due = waiting[: _due_count(waiting, now_ms - delay_ms)]
        if not due:
            await asyncio.sleep(min(MAX_SLEEP_S, (min(frame.store_timestamp for frame in waiting) + delay_ms - now_ms) / 1000))
            return
        routed = await route_verified(self._context, stored, due)
        if routed is not None:
            command = store.command(AdvanceDelayLevel(level=level, offset=offset + len(due)))
            await store_with(self._context, [*routed.messages, *routed.restaged], command)
            log_routed(_logger, f"delay level {level}", (SCHEDULE_TOPIC, level - 1), routed)


def _due_count(waiting: Sequence[Frame], stored_ms: int) -> int:
    """How many are due: all up to the last one that was stored by then."""
    return max((number for number, frame in enumerate(waiting, 1) if frame.store_timestamp <= stored_ms), default=0)


async def _with_sound_times(stored: StoredMessages, waiting: list[Frame], now_ms: int, delay_ms: int) -> list[Frame]:
    """The messages in front of the first whose store time is damaged now, at least one; none when one was repaired: they are read again."""
    while doubtful := _doubtful(waiting, now_ms, delay_ms):
        try:
            return waiting if await stored.verify(doubtful) else []
        except StorageDamagedError as error:
            bad = unreadable_offset(error)
            if not waiting[0].queue_offset < bad <= waiting[-1].queue_offset:
                raise
            waiting = [frame for frame in waiting if frame.queue_offset < bad]
    return waiting


def _doubtful(waiting: Sequence[Frame], now_ms: int, delay_ms: int) -> list[int]:
    """Offsets of the messages whose store time decides what is due, or when, and is not as it is expected to be."""
    found = {frame.queue_offset for frame in waiting if frame.store_timestamp > now_ms}
    last = _due_count(waiting, now_ms - delay_ms) - 1
    if last >= 0 and waiting[last].store_timestamp + delay_ms < now_ms - PUNCTUAL_MS:
        found.add(waiting[last].queue_offset)
    return sorted(found)
