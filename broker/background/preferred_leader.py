"""Giving leadership back to the node that the cluster file prefers (``priority``), once it has caught up.  Runs on the master only.

Owns the patience: the preferred node must have looked well for some seconds, since a transfer to one that is about to fall behind or
to go again costs more than it brings.
"""

from __future__ import annotations

import asyncio
import logging

from broker.context import ServiceContext
from dledger.settings import PeerStatus, RaftStatus
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

CHECK_S = 1.0
CHECKS_WELL = 3
REST_S = 10.0  # after a transfer that was given up
MAX_LAG_ENTRIES = 64
TRANSFER_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class PreferredLeader:
    """Implements ``broker.leadership.role_manager.MasterService``."""

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
        """Nothing is left when the tasks are gone."""

    async def _watch(self) -> None:
        seen_well: str | None = None
        times = 0
        while True:
            await asyncio.sleep(CHECK_S)
            best = self._best(self._context.raft.status())
            times = times + 1 if best == seen_well else 1
            seen_well = best
            if best is None or times < CHECKS_WELL:
                continue
            try:
                _logger.info("leadership goes to %s, which has the higher priority", best)
                await self._context.raft.transfer(best, TRANSFER_TIMEOUT_S)
            except DledgerError as error:
                _logger.info("leadership was not given to %s: %s", best, error.message)
            await asyncio.sleep(REST_S)

    def _best(self, status: RaftStatus) -> str | None:
        """The most preferred node that could take over now."""
        patience_ms = self._context.settings.cluster.raft.election_timeout_ms
        off = self._context.raft.clocks.off()
        able = {peer.node_id for peer in status.peers if peer.node_id not in off and _is_well(peer, status.commit_index, patience_ms)}
        return next((node_id for node_id in self._wanted if node_id in able), None)


def _is_well(peer: PeerStatus, commit_index: int, patience_ms: int) -> bool:
    near = peer.match_index >= commit_index - MAX_LAG_ENTRIES
    return peer.voter and peer.connected and near and 0 <= peer.silent_ms < patience_ms
