"""Leadership comes back to the preferred node, when it is caught up and not before, and costs no write."""

from __future__ import annotations

import asyncio

from dledger_client.aio import Message
from tests.unit.client.sim_rig import Rig, until


def test_the_preferred_node_leads_again_after_it_was_away() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.cluster.master() == "n2")
        await rig.topic()
        async with rig.producer() as producer:
            rig.cluster.kill("n2")
            await until(lambda: rig.cluster.master() in ("n0", "n1"))
            for number in range(50):
                await producer.send(Message("t", b"%d" % number))
            rig.cluster.start("n2")
            number = 50
            while rig.cluster.master() != "n2":
                await producer.send(Message("t", b"%d" % number))
                number += 1
                await asyncio.sleep(0.02)
        async with rig.consumer() as consumer:
            found = await consumer.fetch("t", 0, 0, 10_000, wait_ms=1000)
            assert [message.body for message in found] == [b"%d" % each for each in range(number)]

    Rig(3, priorities={"n2": 10}).run(scenario)


def test_a_node_that_cannot_be_reached_by_the_leader_gets_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.cluster.master() == "n0")
        rig.isolate("n0")
        await until(lambda: rig.cluster.master() in ("n1", "n2"))
        leader = rig.master
        await asyncio.sleep(20)
        assert rig.master == leader
        rig.cluster.net.heal_all()
        await until(lambda: rig.cluster.master() == "n0")

    Rig(4, priorities={"n0": 1}).run(scenario)


def test_a_node_of_the_lowest_priority_gives_leadership_away() -> None:
    async def scenario(rig: Rig) -> None:
        for node_id in ("n0", "n1"):
            rig.cluster.kill(node_id)
        await asyncio.sleep(1)
        rig.cluster.start("n0")
        await until(lambda: rig.cluster.master() is not None)
        await asyncio.sleep(20)
        assert rig.master == "n0"

    Rig(5, priorities={"n2": -1}).run(scenario)
