"""Sectors of a follower's log that cannot be read any more: written again with a peer's bytes, by a start or when they are applied."""

from __future__ import annotations

import dataclasses

import pytest

from dledger.log.segment import log_path
from dledger_client.aio import Message
from tests.sim.cluster import SMALL_LOG
from tests.sim.disk_content import SECTOR
from tests.unit.client.sim_rig import Rig, until

MESSAGES = 60
FIRST = log_path(0)


@pytest.mark.parametrize("verify_bytes", [None, SECTOR], ids=["a start looks", "a start looks at the end only"])
@pytest.mark.parametrize("sectors", [(9,), (9, 10, 40)], ids=["one", "several"])
def test_a_follower_goes_on_and_its_sectors_are_written_again(sectors: tuple[int, ...], verify_bytes: int | None) -> None:
    rig = Rig(log=dataclasses.replace(SMALL_LOG, verify_bytes=verify_bytes))

    async def scenario(rig: Rig) -> None:
        cluster = rig.cluster
        await rig.topic()
        name = rig.followers[0]
        host, master = cluster.hosts[name], cluster.hosts[rig.master]
        async with rig.producer() as producer:
            for number in range(MESSAGES):
                await producer.send(Message("t", b"%d" % number * 500))
            await until(lambda: host.node is not None and len(host.node.raft.log.segments) > 1)
            cluster.kill(name)
            for sector in sectors:
                host.disk.break_range(FIRST, sector * SECTOR, SECTOR)
            cluster.start(name)
            await until(lambda: cluster.is_up(host))
            await producer.send(Message("t", b"after"))
        node = host.node
        assert node is not None
        await until(lambda: node.store.queues.max_offset(("t", 0)) == MESSAGES + 1)
        whole = host.disk.names[FIRST]
        assert whole.unreadable.spares(0, whole.current.size)
        assert whole.current.whole() == master.disk.names[FIRST].current.whole()
        assert not node.raft.status().damaged

    rig.run(scenario)


def test_a_sector_that_a_consumer_cannot_read_is_written_again() -> None:
    rig = Rig(log=dataclasses.replace(SMALL_LOG, cache_bytes=2 << 10))

    async def scenario(rig: Rig) -> None:
        cluster = rig.cluster
        await rig.topic()
        name = rig.followers[0]
        host, master = cluster.hosts[name], cluster.hosts[rig.master]
        async with rig.producer() as producer:
            for number in range(MESSAGES):
                await producer.send(Message("t", b"%d" % number * 500))
        node = host.node
        assert node is not None
        await until(lambda: len(node.raft.log.segments) > 2 and node.store.queues.max_offset(("t", 0)) == MESSAGES)
        host.disk.break_range(FIRST, 20 * SECTOR, SECTOR)
        async with rig.consumer(replica=name) as consumer:
            found = await consumer.fetch("t", 0, 0, MESSAGES)
        assert [message.body for message in found] == [b"%d" % number * 500 for number in range(len(found))]
        whole = host.disk.names[FIRST]
        assert whole.unreadable.spares(0, whole.current.size)
        assert whole.current.whole() == master.disk.names[FIRST].current.whole()

    rig.run(scenario)
