"""What an operator does to the replica groups during a run: one is added, or drained and removed, while clients work and others fail.

An operator repeats a command until it is carried out; each is safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from broker.node import BrokerNode
from dledger_client.aio import Admin
from dledger_wire.errors import DledgerError
from tests.sim.faults import carry_out
from tests.sim.result import LivenessError
from tests.sim.spread.plans import plan_of_group
from tests.sim.spread.visitors import Place

if TYPE_CHECKING:
    from tests.sim.spread.world import SpreadWorld

OPERATION_S = 90.0
AGAIN_S = 0.2
DRAINED = "g1"


class Operation:
    """Nothing: the groups stay as they are."""

    keeps_queues = True

    def __init__(self, world: SpreadWorld) -> None:
        self.world = world

    async def during(self) -> None:
        """While faults strike."""

    async def afterwards(self) -> None:
        """After everything was repaired, and all messages are consumed."""

    def last_queues(self, topic: str, _masters: Mapping[str, BrokerNode]) -> set[Place]:
        """Of a topic, those that take messages in the end."""
        return self.world.first_queues(topic)

    async def repeated(self, what: str, work: Callable[[Admin], Awaitable[object]]) -> None:
        cluster = self.world.cluster
        limit_s = cluster.loop.now_s + OPERATION_S
        async with self.world.rig.admin() as admin:
            while True:
                try:
                    await work(admin)
                except DledgerError as error:
                    cluster.trace.note("operator", what, error.code)
                    if cluster.loop.now_s > limit_s:
                        raise LivenessError(f"{what} fails for {OPERATION_S:.0f} s: {error!r}") from error
                    await asyncio.sleep(AGAIN_S)
                else:
                    cluster.trace.note("operator", what, "done")
                    return


class AddGroup(Operation):
    """A group of three new nodes, and all topics grow to it."""

    keeps_queues = False

    async def during(self) -> None:
        world, cluster = self.world, self.world.cluster
        await asyncio.sleep(world.draw.random() * 2)
        added = cluster.add_group()
        for node_id in added.node_ids:
            cluster.start(node_id)
        await world.until(lambda: world.rig.is_group_up(added.name), "the new group has no master")
        plan = plan_of_group(added.name, added.node_ids, world.draw)
        world.faults += [f"{added.name}: {fault}" for fault in plan]
        growing = asyncio.ensure_future(self._grow())
        await cluster.loop.spawn(cluster.loop.world, carry_out(cluster, plan), f"faults of {added.name}")
        await growing

    def last_queues(self, topic: str, masters: Mapping[str, BrokerNode]) -> set[Place]:
        known = {name: node.store.topics.get(topic) for name, node in masters.items()}
        return {(name, number) for name, found in known.items() if found is not None for number in range(found.write_queues)}

    async def _grow(self) -> None:
        groups = list(self.world.cluster.groups)
        for topic in self.world.acknowledged:
            await self.repeated(f"grow {topic}", lambda admin, topic=topic: admin.update_topic(topic, replica_groups=groups))


class DrainGroup(Operation):
    """A group takes no messages any more, and is removed when all of it is read."""

    keeps_queues = False

    def __init__(self, world: SpreadWorld) -> None:
        super().__init__(world)
        self.ends: dict[tuple[str, int], int] = {}  # of queues, when the group was drained

    async def during(self) -> None:
        await asyncio.sleep(self.world.draw.random() * 2)
        await self.repeated(f"drain {DRAINED}", lambda admin: admin.drain_replica_group(DRAINED))
        self.ends = self._queue_ends()

    def _queue_ends(self) -> dict[tuple[str, int], int]:
        """As far as any of its nodes has applied."""
        found: dict[tuple[str, int], int] = {}
        for host in self.world.cluster.hosts_of(DRAINED):
            if host.node is None or not host.node.is_open:
                continue
            for topic in self.world.acknowledged:
                known = host.node.store.topics.get(topic)
                for queue_id in range(known.read_queues if known is not None else 0):
                    key = topic, queue_id
                    found[key] = max(found.get(key, 0), host.node.store.queues.max_offset(key))
        return found

    def last_queues(self, topic: str, _masters: Mapping[str, BrokerNode]) -> set[Place]:
        return {(group, number) for group, number in self.world.first_queues(topic) if group != DRAINED}

    async def afterwards(self) -> None:
        grown = {queue: (self.ends[queue], end) for queue, end in self._queue_ends().items() if self.ends.get(queue, 0) < end}
        assert not grown, f"{DRAINED} was drained, and took messages after that: {grown}"
        await self.repeated(f"remove {DRAINED}", lambda admin: admin.remove_replica_group(DRAINED))


OPERATIONS: dict[str, type[Operation]] = {"": Operation, "add": AddGroup, "drain": DrainGroup}
