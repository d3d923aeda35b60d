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
from dledger_wire.status import DRAINING
from tests.sim.faults import carry_out
from tests.sim.result import LivenessError
from tests.sim.spread.account import stored_in
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
        self.before: dict[str, set[bytes]] = {}  # what had been sent when the group was drained: some of it may have been on its way

    async def during(self) -> None:
        await asyncio.sleep(self.world.draw.random() * 2)
        await self.repeated(f"drain {DRAINED}", lambda admin: admin.drain_replica_group(DRAINED))
        self.before = {topic: set(sent) for topic, sent in self.world.sent.items()}

    def last_queues(self, topic: str, _masters: Mapping[str, BrokerNode]) -> set[Place]:
        return {(group, number) for group, number in self.world.first_queues(topic) if group != DRAINED}

    async def afterwards(self) -> None:
        (node, *_) = self.world.settled_nodes(DRAINED) or ()
        drained_ms = node.store.replica_group.settings.since_ms
        stored = [(topic, each) for topic in self.world.acknowledged for each in await stored_in(node, topic)]
        late = [each for topic, each in stored if each.stored_ms > drained_ms and each.body not in self.before[topic]]
        assert node.store.replica_group.state == DRAINING, "drained, and active again"
        assert late == [], f"{DRAINED} was drained at {drained_ms}, and took messages after that"
        await self.repeated(f"remove {DRAINED}", lambda admin: admin.remove_replica_group(DRAINED))


OPERATIONS: dict[str, type[Operation]] = {"": Operation, "add": AddGroup, "drain": DrainGroup}
