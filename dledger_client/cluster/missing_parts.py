"""All queues of a topic, or which replica groups may have more of them.

Owns the difference between a whole and a part.  Each part of a topic knows the replica groups that may have queues of it.  One that is
named and not known is asked; it may lack the topic, after a change that was broken off.  One that was removed has nothing any more,
although those that are left may name it for a while.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotReadyError
from dledger_wire.rpc import methods
from dledger_wire.status import REMOVED

TIMEOUT_MS = 500


@dataclass(frozen=True, slots=True)
class TopicParts:
    """``queues``: what is known, by replica group; ``missing``: replica groups that may have more, by name."""

    queues: list[TopicQueues]
    missing: list[str]

    def all_of(self, topic: str) -> list[TopicQueues]:
        """The queues.  NotReadyError when some may be missing: a part is not to be taken for the whole."""
        if self.missing:
            raise NotReadyError(f"topic {topic}: {', '.join(self.missing)} did not answer, so not all its queues are known")
        return self.queues


async def find_parts(router: Router, topic: str, deadline_ms: int, *, fresh: bool = True) -> TopicParts:
    """Look a topic up.  Raises what ``Router.topic`` does.

    A replica group that answers only now, with queues that the look-up has missed, is looked up again.
    """
    found = await router.topic(topic, deadline_ms, fresh=fresh)
    missing, came_back = await _missing(router, topic, found)
    if came_back:
        found = await router.topic(topic, deadline_ms, fresh=True)
        missing, came_back = await _missing(router, topic, found)
    return TopicParts(found, sorted([*missing, *came_back]))


async def _missing(router: Router, topic: str, found: list[TopicQueues]) -> tuple[list[str], list[str]]:
    """The replica groups beside those of ``found`` that do not answer, and those whose leaders have queues of the topic."""
    named = {group for each in found for group in each.replica_groups} - {each.replica_group for each in found}
    if named:
        named -= await router.removed(named)
    silent, with_queues = [], []

    async def ask(group: str) -> None:
        request, deadline_ms = broker_pb2.MetadataRequest(topics=[topic]), router.clock.monotonic_ms() + TIMEOUT_MS
        try:
            answer = await router.call_leader(group, methods.METADATA, request, deadline_ms=deadline_ms)
        except DledgerError:
            silent.append(group)
        else:
            if answer.state != REMOVED and any(each.found and each.name == topic for each in answer.topics):
                with_queues.append(group)

    await asyncio.gather(*(ask(group) for group in sorted(named)))
    return silent, with_queues
