"""A master whose clock is off from the majority's gives leadership to one whose clock is right.  Runs on the master only.

The group's time does not depend on it (``dledger/clock/group_time.py``); but what a wrong clock writes into logs and status misleads, and
whoever loses sight of the others later has only its own clock to start from.
"""

from __future__ import annotations

import asyncio
import logging

from broker.config.units import format_duration_ms
from broker.context import ServiceContext
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
REST_S = 10.0  # after a transfer that was given up
TRANSFER_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


def span(ms: int) -> str:
    """How far a clock is ahead, or behind."""
    return f"{'+' if ms >= 0 else '-'}{format_duration_ms(abs(ms))}"


class ClockWatch:
    """Implements ``broker.leadership.role_manager.MasterService``."""

    name = "clock watch"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._leapt = False

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Nothing is left when the tasks are gone."""

    async def _watch(self) -> None:
        raft, clocks = self._context.raft, self._context.raft.clocks
        while True:
            await asyncio.sleep(CHECK_S)
            skew_ms = clocks.update()
            self._tell_leap(clocks.time.lag_ms())
            if abs(skew_ms) <= clocks.time.max_skew_ms or len(raft.membership.voters) == 1:
                continue
            try:
                _logger.error("this node's clock is off by %s from the group's majority: leadership goes to another one", span(skew_ms))
                await raft.transfer(None, TRANSFER_TIMEOUT_S)
            except DledgerError as error:
                _logger.warning("leadership was not given away: %s", error.message)
            await asyncio.sleep(REST_S)

    def _tell_leap(self, lag_ms: int) -> None:
        leapt = abs(lag_ms) > self._context.raft.clocks.time.max_skew_ms
        if leapt != self._leapt:
            self._leapt = leapt
            if leapt:
                text = "the clocks of the group have leapt by %s: its time, and every age, follows them by 1 %% only"
                _logger.error(text, span(lag_ms))
            else:
                _logger.warning("the clocks of the group show its time again")
