"""Another replica group becomes the first one, where users are changed: the next when the first was removed, or one put before it."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import AccessRule
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.rpc import methods
from tests.sim.security import APPLICATION
from tests.sim.spread.users import EVERYWHERE_S, create_users
from tests.unit.client.sim_rig import Rig, until
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


def test_a_group_put_first_in_the_cluster_file_takes_the_users() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig, ["guest"])
        old, new = rig.cluster.groups["g0"], rig.cluster.add_group(first=True)
        for node_id in new.node_ids:
            rig.cluster.start(node_id)
        await until(lambda: rig.cluster.master("g1") is not None)
        await asyncio.sleep(EVERYWHERE_S)
        for node_id in old.node_ids:  # with the new file
            await rig.restart(node_id)
            await asyncio.sleep(EVERYWHERE_S)
        async with rig.admin() as admin:
            for _ in range(8):  # more changes than there were
                await admin.change_rules(added=[AccessRule("guest", "allow", "topic", "t", "read")])
                await admin.change_rules(removed=[AccessRule("guest", "allow", "topic", "t", "read")])
            await admin.delete_user("guest")
        await asyncio.sleep(EVERYWHERE_S)
        for node_id in (*old.node_ids, *new.node_ids):
            await ask(rig, APPLICATION, node_id)
            with pytest.raises(AuthenticationFailedError):
                await ask(rig, "guest", node_id)

    Rig(name_servers=3, secured=True).run(scenario)
