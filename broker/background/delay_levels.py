"""Delay levels: delivers delayed messages when they are due.  Runs on the master only.

Delayed messages wait in ``SCHEDULE_TOPIC_XXXX``, queue LEVEL-1, in the order they were stored, so only the first of each level is checked.
Owns one task a level and no durable state: the offset up to which a level is delivered is replicated, and advanced in the log entry of the
delivered messages.  When the master loses its term the tasks are cancelled first; what it proposed and did not commit is delivered by the
next master.
"""

from __future__ import annotations

import asyncio
import logging

from broker.background.delivery_entry import batch_bytes, log_dropped, route_verified, store_with
from broker.backoff import RETRY_S, Backoff
from broker.config.units import parse_duration_ms
from broker.context import ServiceContext
from broker.verified_reads import StoredMessages
from dledger_wire.errors import DledgerError
from dledger_wire.names import SCHEDULE_TOPIC
from dledger_wire.tasks import BackgroundTasks
from store.commands.redelivery import AdvanceDelayLevel
from store.commands.topics import CreateTopic
from store.state.delays import LEVELS

BATCH_MESSAGES = 500
MAX_SLEEP_S = 60.0

_logger = logging.getLogger(__name__)


class DelayLevelService:
    """Implements ``broker.leadership.role_manager.MasterService``."""

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
        due = [frame for frame in waiting if frame.store_timestamp + delay_ms <= now_ms]
        if not due:
            await asyncio.sleep(min(MAX_SLEEP_S, (waiting[0].store_timestamp + delay_ms - now_ms) / 1000))
            return
        routed = await route_verified(self._context, stored, due)
        if routed is not None:
            command = store.command(AdvanceDelayLevel(level=level, offset=offset + len(due)))
            await store_with(self._context, [*routed.messages, *routed.restaged], command)
            log_dropped(_logger, f"delay level {level}", routed)
