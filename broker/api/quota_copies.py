"""Quotas of a replica group that was added to the cluster: it takes those of the others once, before it ever had one.

Owns the look at the others.  ``Admin`` sets a quota in all groups that it knows, so one that was registered has to be given only what
was set before.  Each look asks the leader of one other group: all have the same, and a cluster without quotas costs a call in ``LOOK_S``.
"""

from __future__ import annotations

import asyncio
import logging

from broker.api.quotas import TIMEOUT_S, quota_of
from broker.context import ServiceContext
from broker.routes.known_groups import KnownGroups
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Network, connect_to
from dledger_wire.security import principal
from dledger_wire.tasks import BackgroundTasks
from store.commands.quotas import CopyQuotas, Quota

LOOK_S = 5.0
ANSWER_S = 2.0

_logger = logging.getLogger(__name__)


class QuotaCopies:
    """Implements ``broker.context.MasterService``."""

    name = "quota copies"

    def __init__(self, context: ServiceContext, groups: KnownGroups, network: Network) -> None:
        self._context, self._groups, self._network = context, groups, network

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        tasks.spawn(self._copy(), "copy")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _copy(self) -> None:
        looks, own = 0, self._context.settings.group.name
        while not self._context.store.quotas.was_set:
            others = [name for name in self._groups if name != own]
            found = await self._of_group(others[looks % len(others)]) if others else ()
            looks += 1
            if found:
                try:
                    if await self._context.command(CopyQuotas(quotas=found), TIMEOUT_S):
                        _logger.info("took over %d quotas of the other replica groups", len(found), extra={"event": "quotas_copied"})
                except DledgerError as error:
                    _logger.info("the quotas of the other replica groups were not taken over: %s", error.message)
            await asyncio.sleep(LOOK_S)

    async def _of_group(self, name: str) -> tuple[Quota, ...]:
        """As its leader has them; none when it cannot be asked now."""
        cluster = self._context.settings.cluster.cluster
        for node in self._groups.members_of(name):
            channel = connect_to(self._network, node.address, principal.node(cluster, name, node.id))
            try:
                answer = await methods.LIST_QUOTAS.call(channel, admin_pb2.ListQuotasRequest(), timeout_s=ANSWER_S)
                return tuple(quota_of(rule) for rule in answer.rules)
            except DledgerError:
                continue  # not the leader, or away
            finally:
                await channel.close()
        return ()
