"""Waiting until name servers have heard of a change of a topic, so that whoever looks it up next finds it.

Owns the wait only: the change is made and durable already, and a name server that cannot be reached is not waited for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from dledger_client.cluster.name_servers import NameServers
from dledger_client.cluster.routes import TopicQueues
from dledger_client.cluster.topic_lookup import TopicLookup
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError

SLICE_MS = 100  # of the wait at one name server: a newer table of topics with the same queues wakes nobody


class Announcement:
    """Of changes that one client made."""

    def __init__(self, names: NameServers, lookup: TopicLookup, clock: Clock) -> None:
        self._names, self._lookup, self._clock = names, lookup, clock

    async def wait(self, name: str, groups: Iterable[str], timeout_ms: int) -> None:
        """Return when every name server knows of the topic what the leaders of ``groups`` know, at the latest after ``timeout_ms``."""
        if not self._names.current:
            return
        told = await self._lookup.learn(name, groups)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        servers = dict.fromkeys([self._names.current, *self._names.known])
        await asyncio.gather(*(self._at(server, name, told, deadline_ms) for server in servers if server))

    async def _at(self, server: str, name: str, told: Mapping[str, list[TopicQueues]], deadline_ms: int) -> None:
        version = 0
        with contextlib.suppress(DledgerError):
            while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0:
                wait_ms = min(SLICE_MS, left_ms) if version else 0
                request = routes_pb2.RoutesRequest(topics=[routes_pb2.KnownRoute(name=name, version=version)], wait_ms=wait_ms)
                reply = await self._names.routes_at(server, request)
                if not reply.topics:
                    version = 0  # nothing has changed; look at the versions of the tables again
                    continue
                version = reply.topics[0].version
                if _has_heard(reply.topics[0], told):
                    return


def _has_heard(route: routes_pb2.TopicRoute, told: Mapping[str, list[TopicQueues]]) -> bool:
    """Whether a route has at least what leaders told, and nothing of what they have no more."""
    here = {queues.group: queues.topics_version for queues in route.queues}
    return all(here.get(group, -1) >= queues[0].version if queues else group not in here for group, queues in told.items())
