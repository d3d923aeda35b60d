"""Spreads the leaders of all replica groups evenly over the hosts.  Runs on every master; the cluster file gives no node a priority.

A master looks at the directory from time to time.  It transfers leadership to a healthy member only if its own host leads at least two
groups more than that member's host, so every transfer makes the hosts more even, and nothing moves once they differ by one.  Masters of one
host would see the same and move at once: each waits a random time first, and looks again.  A directory that is wrong costs a transfer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.leadership.preferred_leader import TRANSFER_TIMEOUT_S, healthy_members
from dledger.core.causes import Cause
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.tasks import BackgroundTasks

LOOK_S = 10.0
JITTER_S = 4.0  # for each group that the own host leads: the more there are, the longer each waits
MIN_DIFFERENCE = 2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leader:
    """A replica group with a leader, and on which host that is."""

    group: str
    host: str


def better_place(group: str, own_host: str, members: Iterable[tuple[str, str]], leaders: Collection[Leader]) -> str | None:
    """The member (id, host) that should lead ``group`` in place of the one on ``own_host``; None: it is well where it is."""
    counts = Counter(leader.host for leader in leaders if leader.group != group)
    counts[own_host] += 1
    able = sorted((counts[host], node_id) for node_id, host in members if host and host != own_host)
    if not own_host or not able or counts[own_host] - able[0][0] < MIN_DIFFERENCE:
        return None
    return able[0][1]


class LeaderSpread:
    """Implements ``broker.context.MasterService``.  ``directory``: what a name server says, None when none answers."""

    name = "leader spread"

    def __init__(self, context: ServiceContext, directory: Callable[[], Awaitable[routes_pb2.DirectoryReply | None]]) -> None:
        self._context, self._directory = context, directory
        self._own = context.settings.node
        self._applies = not any(node.priority for node in context.settings.group.nodes)

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        if self._applies:
            tasks.spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _watch(self) -> None:
        random = self._context.env.random
        while True:
            await asyncio.sleep(LOOK_S)
            leaders, target = await self._look()
            if target is None:
                continue
            own = sum(leader.host == self._own.host_label for leader in leaders)
            await asyncio.sleep(JITTER_S * own * random.randrange(0, 1000) / 1000)
            _, again = await self._look()
            if again != target:
                continue
            _logger.info("transferring leadership to %s: this host leads %d replica groups, its host at least two less", target, own)
            try:
                await self._context.raft.transfer(target, TRANSFER_TIMEOUT_S, Cause.SPREAD)
            except DledgerError as error:
                _logger.info("leadership transfer to %s failed: %s", target, error.message)

    async def _look(self) -> tuple[list[Leader], str | None]:
        """The leaders of the cluster now, and the one that should lead here."""
        found = await self._directory()
        if found is None:
            return [], None
        leaders = [Leader(group.name, node.host) for group in found.groups for node in group.nodes if node.id == group.leader_id]
        group = self._context.settings.group.name
        hosts = {node.id: node.host for each in found.groups if each.name == group for node in each.nodes}
        able = healthy_members(self._context)
        return leaders, better_place(group, self._own.host_label, [(node_id, hosts.get(node_id, "")) for node_id in able], leaders)
