"""Handing leadership over, for a caller that waits for the outcome.

Owns the one transfer that may be under way.  Payloads that were proposed before it go into the log first; those proposed during it wait.
"""

from __future__ import annotations

import asyncio

from dledger.core.causes import Cause
from dledger.core.events import TransferRequested
from dledger.core.types import NodeId
from dledger.measures import RaftMeasures
from dledger.replica.proposer import Proposer, ProposerOwner
from dledger_wire.errors import BusyError, DeadlineExceededError, NotReadyError


class LeadershipTransfer:
    """Transfers of one replica."""

    def __init__(self, owner: ProposerOwner, proposer: Proposer, measures: RaftMeasures) -> None:
        self._measures = measures
        self._owner = owner
        self._proposer = proposer
        self._outcome: asyncio.Future[tuple[NodeId, bool]] | None = None

    @property
    def running(self) -> bool:
        return self._outcome is not None

    async def run(self, target: NodeId | None, timeout_s: float, cause: Cause = Cause.TRANSFER) -> NodeId:
        """Hand leadership to ``target`` (None: the core chooses); returns the node that took it."""
        if self._outcome is not None:
            raise BusyError("a leadership transfer is already under way")
        proposer = self._proposer
        while proposer.offer_one():
            pass  # what was proposed before the transfer is appended before it
        outcome: asyncio.Future[tuple[NodeId, bool]] = asyncio.get_running_loop().create_future()
        self._outcome = outcome
        try:
            proposer.held = True
            proposer.raise_refused(self._owner.step(TransferRequested(target, cause)))
            async with asyncio.timeout(timeout_s):
                successor, done = await outcome
        except TimeoutError:
            self._measures.transfers["failed"] += 1
            raise DeadlineExceededError(f"leadership was not taken over within {timeout_s} s") from None
        finally:
            self._outcome = None
            proposer.held = False
            proposer.schedule()
        self._measures.transfers["done" if done else "failed"] += 1
        if not done:
            leader = self._owner.leader or "unknown"
            raise NotReadyError(f"leadership transfer to {successor} aborted; the leader is {leader}")
        return successor

    def ended(self, target: NodeId, *, done: bool) -> None:
        """The core reports how the transfer ended."""
        self._proposer.held = False
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result((target, done))
        if self._owner.running:
            self._proposer.schedule()
