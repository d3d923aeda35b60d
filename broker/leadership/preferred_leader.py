"""Transfers leadership to the node that the cluster file prefers (``priority``), once it has caught up.  Runs on the master only.

Owns the delay: the preferred node must be healthy for some seconds first, since a transfer to a node that falls behind or restarts costs
more than it gains.
"""

from __future__ import annotations

import asyncio
import logging

from broker.context import ServiceContext
from broker.leadership.transfer import unfit_voters
from dledger.core.causes import Cause
from dledger.settings import PeerStatus
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
HEALTHY_CHECKS = 3
RETRY_S = 10.0  # after a transfer that failed
MAX_LAG_ENTRIES = 64
TRANSFER_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class PreferredLeader:
    """Implements ``broker.context.MasterService``."""

    name = "preferred leader"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        own = context.settings.node
        above = [node for node in context.settings.group.nodes if node.priority > own.priority]
        self._wanted = [node.id for node in sorted(above, key=lambda node: -node.priority)]

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        if self._wanted:
            tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _watch(self) -> None:
        candidate: str | None = None
        checks = 0
        while True:
            await asyncio.sleep(CHECK_S)
            best = self._best()
            checks = checks + 1 if best == candidate else 1
            candidate = best
            if best is None or checks < HEALTHY_CHECKS:
                continue
            try:
                _logger.info("transferring leadership to %s, which has a higher priority", best)
                await self._context.raft.transfer(best, TRANSFER_TIMEOUT_S, Cause.PREFERRED)
            except DledgerError as error:
                _logger.info("leadership transfer to %s failed: %s", best, error.message)
            await asyncio.sleep(RETRY_S)

    def _best(self) -> str | None:
        """The most preferred node that could take over now."""
        able = healthy_members(self._context)
        return next((node_id for node_id in self._wanted if node_id in able), None)


def healthy_members(context: ServiceContext) -> set[str]:
    """The voters that could take over leadership now."""
    contact_ms = context.settings.cluster.raft.election_timeout_ms
    status, unfit = context.raft.status(), unfit_voters(context)
    return {peer.node_id for peer in status.peers if unfit.get(peer.node_id) == "" and _is_near(peer, status.commit_index, contact_ms)}


def _is_near(peer: PeerStatus, commit_index: int, contact_ms: int) -> bool:
    return peer.match_index >= commit_index - MAX_LAG_ENTRIES and peer.answers(contact_ms)
