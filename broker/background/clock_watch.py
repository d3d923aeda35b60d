"""A master whose clock is wrong transfers leadership to a node whose clock is right.  Runs on the master only.

The group's time does not depend on it (``dledger/clock/group_time.py``).  But the times that a wrong clock writes into logs and status
mislead, and a node that is cut off later has only its own clock to start from.
"""

from __future__ import annotations

import asyncio
import logging

from broker.config.units import format_duration_ms
from broker.context import ServiceContext
from dledger.core.causes import Cause
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
RETRY_S = 10.0  # after a transfer that failed
TRANSFER_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


def span(ms: int) -> str:
    """A signed duration: how far a clock is ahead or behind."""
    return f"{'+' if ms >= 0 else '-'}{format_duration_ms(abs(ms))}"


class ClockWatch:
    """Implements ``broker.leadership.role_manager.MasterService``."""

    name = "clock watch"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._jumped = False

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _watch(self) -> None:
        raft, clocks = self._context.raft, self._context.raft.clocks
        while True:
            await asyncio.sleep(CHECK_S)
            skew_ms = clocks.update()
            self._log_jump(clocks.time.lag_ms())
            if abs(skew_ms) <= clocks.time.max_skew_ms or len(raft.membership.voters) == 1:
                continue
            try:
                _logger.error(
                    "this node's clock is off by %s from the group's majority; transferring leadership",
                    span(skew_ms),
                    extra={"event": "clock_off"},
                )
                await raft.transfer(None, TRANSFER_TIMEOUT_S, Cause.CLOCK)
            except DledgerError as error:
                _logger.warning("leadership transfer failed: %s", error.message, extra={"event": "transfer_failed"})
            await asyncio.sleep(RETRY_S)

    def _log_jump(self, lag_ms: int) -> None:
        jumped = abs(lag_ms) > self._context.raft.clocks.time.max_skew_ms
        if jumped != self._jumped:
            self._jumped = jumped
            if jumped:
                text = "the clocks of the group jumped by %s; the group's time follows them at 1 %% only"
                _logger.error(text, span(lag_ms), extra={"event": "group_time_lags"})
            else:
                _logger.warning("the clocks of the group agree with its time again", extra={"event": "group_time_agrees"})
