"""The first replica group is removed: users are changed in the next one, which has nobody to ask any more."""

from __future__ import annotations

import asyncio

import pytest

from dledger_wire._pb import broker_pb2
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.rpc import methods
from tests.sim.security import APPLICATION
from tests.sim.spread.users import EVERYWHERE_S, create_users
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_topics_over_groups import kill_group


async def ask(rig: Rig, user: str, node_id: str) -> None:
    network = rig.cluster.net.of(rig.process, rig.cluster.security.of_user(user))
    await methods.METADATA.call(network.connect(rig.cluster.hosts[node_id].address), broker_pb2.MetadataRequest(), timeout_s=5)


def test_who_is_no_user_is_told_so() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await asyncio.sleep(EVERYWHERE_S)
        async with rig.admin() as admin:
            await admin.drain_replica_group("g0")
            await admin.remove_replica_group("g0")
        kill_group(rig, "g0")
        await asyncio.sleep(10)
        for node_id in rig.cluster.groups["g1"].node_ids:
            await ask(rig, APPLICATION, node_id)
            with pytest.raises(AuthenticationFailedError):
                await ask(rig, "nobody", node_id)
        async with rig.admin() as admin:
            await admin.delete_user(APPLICATION)
        await asyncio.sleep(EVERYWHERE_S)
        for node_id in rig.cluster.groups["g1"].node_ids:
            with pytest.raises(AuthenticationFailedError):
                await ask(rig, APPLICATION, node_id)

    Rig(groups=2, name_servers=3, secured=True).run(scenario)
