"""Users and rules are changed at the first replica group of the cluster file, whatever its name is and whatever becomes of the others."""

from __future__ import annotations

import asyncio

from broker.config.cluster_file import ClusterConfig
from dledger_client.aio import AccessRule
from tests.sim.groups import cluster_file
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_topics_over_groups import kill_group

RULE = AccessRule("*", "deny", "topic", "secrets", "describe")


def test_a_right_is_taken_away_while_a_group_is_down_whose_name_comes_first() -> None:
    async def scenario(rig: Rig) -> None:
        kill_group(rig, "g0")
        await asyncio.sleep(5)
        async with rig.admin(timeout_ms=10_000) as admin:
            change = await admin.change_rules(added=[RULE])
            assert change.waiting == ("g0",)
            assert await admin.list_rules() == [RULE]

    rig = Rig(groups=2, name_servers=3, secured=True)
    cluster = rig.cluster
    cluster._group_nodes.reverse()
    cluster.config = ClusterConfig.parse(cluster_file(cluster._group_nodes, cluster._shape), "sim.yaml")
    rig.run(scenario)
