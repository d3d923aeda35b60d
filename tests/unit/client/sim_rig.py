"""A cluster in virtual time with clients beside it, for tests of what clients do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from broker.context import ServiceContext
from broker.node import BrokerNode
from dledger_client.aio import Admin, Producer, PullConsumer, TransactionProducer
from dledger_client.cluster.router import Router
from dledger_client.runtime.environment import use_environment
from dledger_client.transactions.resolver import CheckListener
from store.append.message_log import MADE_BY_SERVICES
from tests.sim.clock import SimClock
from tests.sim.cluster import SimCluster
from tests.sim.security import ADMINISTRATOR

CLIENT_IP = "10.0.1.1"
LIMIT_S = 300.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time."""
    while not condition():  # noqa: ASYNC110 - virtual time costs nothing
        await asyncio.sleep(0.02)


class Rig:
    """Three nodes, or ``groups`` times three, and a client machine.  Clients are made in its environment."""

    def __init__(self, seed: int = 1, **world: Any) -> None:
        self.cluster = SimCluster(seed, **world)
        self.process, self._network = self.cluster.new_client(CLIENT_IP)
        self._clock = SimClock(self.cluster.loop)
        self._random = random.Random(seed)

    def around(self) -> dict[str, Any]:
        return {"network": self._network, "clock": self._clock, "random": self._random}

    def producer(self, **settings: Any) -> Producer:
        with use_environment(**self.around()):
            return Producer(self.cluster.bootstrap, "tests", **settings)

    def transactions(self, check_listener: CheckListener, group: str = "tests", **settings: Any) -> TransactionProducer:
        with use_environment(**self.around()):
            return TransactionProducer(self.cluster.bootstrap, group, check_listener, **settings)

    def consumer(self, group: str = "tests", **settings: Any) -> PullConsumer:
        with use_environment(**self.around()):
            return PullConsumer(self.cluster.bootstrap, group, **settings)

    def router(self) -> Router:
        """Routes of a client that has no face of its own."""
        return Router(self.cluster.bootstrap, self._network, self._clock, self._random)

    def admin(self, user: str = ADMINISTRATOR, **settings: Any) -> Admin:
        network = self.cluster.net.of(self.process, self.cluster.security.of_user(user))
        with use_environment(**self.around() | {"network": network}):
            return Admin(self.cluster.bootstrap, **settings)

    async def topic(self, name: str = "t", queues: int = 1, **spec: Any) -> None:
        async with self.admin() as admin:
            await admin.create_topic(name, queues=queues, **spec)

    async def restart(self, node_id: str) -> None:
        """Kill a node; it is back when its group has a master again."""
        self.cluster.kill(node_id)
        await until(lambda: self.cluster.master(self.cluster.hosts[node_id].group) is not None)
        self.cluster.start(node_id)

    @property
    def master(self) -> str:
        return self.master_of("g0")

    @property
    def followers(self) -> list[str]:
        return self.followers_of("g0")

    def master_of(self, group: str) -> str:
        found = self.cluster.master(group)
        assert found is not None
        return found

    def followers_of(self, group: str) -> list[str]:
        return [node_id for node_id in self.cluster.groups[group].node_ids if node_id != self.cluster.master(group)]

    def _is_up(self) -> bool:
        """Whether every group has a master whose services have made their topics."""
        return all(map(self.is_group_up, self.cluster.groups))

    def is_group_up(self, group: str) -> bool:
        master = self.cluster.master(group)
        node = self.cluster.hosts[master].node if master is not None else None
        return node is not None and all(node.store.topics.get(name) is not None for name in MADE_BY_SERVICES)

    def isolate(self, node_id: str) -> None:
        ip = self.cluster.hosts[node_id].ip
        for other in (*(machine.ip for machine in self.cluster.machines()), CLIENT_IP):
            if other != ip:
                self.cluster.net.cut(ip, other)
                self.cluster.net.cut(other, ip)

    def run(self, scenario: Callable[[Rig], Awaitable[None]], *, limit_s: float = LIMIT_S) -> None:
        """Start the nodes, then run the scenario on the client machine for at most ``limit_s`` of virtual time.

        A node that stopped by itself, or an invariant that did not hold, fails the run, also when nobody else noticed."""

        async def main() -> None:
            self.cluster.start_all()
            await until(self._is_up)
            await self.cluster.loop.spawn(self.process, _wrapped(scenario, self), "scenario")

        try:
            self.cluster.loop.run_until_complete(asyncio.wait_for(main(), limit_s))
            problems = self.cluster.problems()
            assert not problems, problems
        finally:
            self.cluster.loop.close()


class World(Protocol):
    """Actors and what strikes them, on a rig."""

    faults: list[str]

    async def run(self) -> None: ...


def run_world(rig: Rig, name: str, world: World, limit_s: float, sink: Callable[[str], None] | None) -> None:
    """One run of a scenario of that name; any violation raises, with the faults that were carried out."""
    try:
        rig.run(lambda _rig: world.run(), limit_s=limit_s)
    except BaseException as error:
        rig.cluster.note_run(error, name, world.faults)
        raise
    finally:
        rig.cluster.trace.give(sink)


async def _wrapped(scenario: Callable[[Rig], Awaitable[None]], rig: Rig) -> None:
    await scenario(rig)


def node_of(rig: Rig, node_id: str) -> BrokerNode:
    node = rig.cluster.hosts[node_id].node
    assert node is not None
    return node


def context_of(rig: Rig, node_id: str) -> ServiceContext:
    context = node_of(rig, node_id)._context
    assert context is not None
    return context
