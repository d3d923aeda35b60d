"""A simulated group whose majority is lost goes on with one survivor, and its new members are of the survivor's lineage."""

from __future__ import annotations

import asyncio

from dledger.membership.lineage import PATH
from dledger_client.aio import Message
from tests.sim import operators
from tests.sim.cluster import are_equal
from tests.sim.recovery import recover_alone
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until

__all__ = ["quiet"]


def test_a_survivor_goes_on_alone_and_takes_empty_nodes_in() -> None:
    async def scenario(rig: Rig) -> None:
        cluster, nodes = rig.cluster, list(rig.cluster.hosts)
        await rig.topic("t")
        async with rig.producer() as producer:
            await producer.send(Message("t", b"before"))
        await until(lambda: are_equal([host.node for host in cluster.hosts.values() if host.node is not None]))
        survivor, *lost = nodes
        cluster.kill(survivor)
        for node_id in lost:
            cluster.wipe(node_id)
        recovered = await recover_alone(cluster, survivor)
        for node_id in nodes:
            cluster.start(node_id)
        await until(lambda: cluster.master() == survivor)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"after"))
        for node_id in lost:
            await operators.bring_back(cluster, node_id, cluster.loop.now_s + 60)
            assert operators.is_voter(cluster, node_id)
        await rig.restart(survivor)
        await until(lambda: cluster.master() is not None and cluster.is_up(cluster.hosts[survivor]))
        await until(lambda: are_equal([host.node for host in cluster.hosts.values() if host.node is not None]))
        raft = cluster.hosts[lost[0]].node.raft  # type: ignore[union-attr]
        assert raft.log.entry_id(recovered.index) == recovered
        assert all(PATH in host.disk.names for host in cluster.hosts.values())
        await asyncio.sleep(1)
        assert not cluster.problems()

    Rig(5).run(scenario)
