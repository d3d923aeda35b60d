"""The schedule service: delivers delayed messages when they are due.  Runs on the master only.

Delayed messages wait in ``SCHEDULE_TOPIC_XXXX``, queue LEVEL-1, in the order they were stored, so only the first of each level has to be
looked at.  Owns one task a level and nothing that must survive: how far a level is delivered is replicated state, moved on in the same log
entry as the delivered messages.  A master that loses its term stops here before anything else happens; whatever it had proposed and what
is not committed is delivered by the next one.
"""

from __future__ import annotations

import asyncio
import logging

from broker.background.delivery_entry import batch_bytes, log_dropped, route_all, store_with
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
LONGEST_SLEEP_S = 60.0

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
        """Begin; what the service needs of the log (a full disk may refuse it for a while) is not waited for here."""
        tasks.spawn(self._begin(tasks), "begin")

    async def stop(self) -> None:
        """Nothing is left when the tasks are gone."""

    async def _begin(self, tasks: BackgroundTasks) -> None:
        """See to it that the topic is there, then serve every level."""
        while self._context.store.topics.get(SCHEDULE_TOPIC) is None:
            command = CreateTopic(name=SCHEDULE_TOPIC, read_queues=LEVELS, write_queues=LEVELS, if_not_exists=True)
            try:
                await self._context.raft.propose(self._context.store.command(command))
            except DledgerError as error:
                _logger.info("the schedule topic waits: %s", error.message)
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
            await store.wait_for_messages(SCHEDULE_TOPIC, level - 1, offset, LONGEST_SLEEP_S)
            return
        now_ms = store.time.now_ms()
        due = [frame for frame in waiting if frame.store_timestamp + delay_ms <= now_ms]
        if not due:
            await asyncio.sleep(min(LONGEST_SLEEP_S, (waiting[0].store_timestamp + delay_ms - now_ms) / 1000))
            return
        routed = await route_all(self._context, stored, due)
        if routed is not None:
            command = store.command(AdvanceDelayLevel(level=level, offset=offset + len(due)))
            await store_with(self._context, [*routed.messages, *routed.restaged], command)
            log_dropped(_logger, f"delay level {level}", routed)
