"""A master that must not lead transfers leadership to a voter that may.  Runs on the master only.

Its clock is wrong: the group's time does not depend on it (``dledger/clock/group_time.py``), but the times that it writes into logs and
status mislead, and a node that is cut off later has only its own clock to start from.  Or its certificate has expired: no client can
connect to it any more.  Where nothing better is to be had it leads on.
"""

from __future__ import annotations

import asyncio
import logging

from broker.config.units import span
from broker.context import ServiceContext
from broker.leadership.transfer import unfit_voters
from dledger.core.causes import Cause
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
RETRY_S = 10.0  # after a transfer that failed
TRANSFER_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class StepDown:
    """Moves leadership away from a master that must not lead.  Implements ``broker.context.MasterService``."""

    name = "yielding"

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
            if not raft.yields or not any(not why for why in unfit_voters(self._context).values()):
                continue
            cause, why = next(iter(raft.yields.items()))
            try:
                if cause is Cause.CLOCK:
                    text = "this node's clock is off by %s from the group's majority; transferring leadership"
                    _logger.error(text, span(skew_ms), extra={"event": "clock_off"})
                else:
                    _logger.error("%s; transferring leadership", why, extra={"event": "certificate_expired"})
                await raft.transfer(None, TRANSFER_TIMEOUT_S, cause)
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
