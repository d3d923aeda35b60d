"""A group that lost its majority: what its followers have committed is still found and read (docs/guides/operate/troubleshoot.md)."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message
from dledger_wire.errors import DledgerError, NotLeaderError, NotSentError
from tests.unit.client.sim_rig import CLIENT_IP, Rig, until


async def filled(rig: Rig) -> str:
    """A topic of two queues with 7 messages in queue 1, on one follower that is all that is left."""
    await rig.topic("t", queues=2)
    async with rig.producer() as producer:
        for number in range(7):
            await producer.send(Message("t", b"%d" % number), queue_id=1)
    survivor = rig.followers[0]
    node = rig.cluster.hosts[survivor].node
    assert node is not None
    await until(lambda: node.store.queues.max_offset(("t", 1)) == 7)
    for node_id in rig.cluster.hosts:
        if node_id != survivor:
            rig.cluster.kill(node_id)
    await asyncio.sleep(1)
    return survivor


def test_offsets_topics_and_messages_are_those_that_followers_have_committed() -> None:
    async def scenario(rig: Rig) -> None:
        survivor = await filled(rig)
        for how in ({"read_from": "follower"}, {"read_from": "any"}, {"replica": survivor}):
            async with rig.consumer(**how) as consumer:
                for _ in range(2):  # without a leader known of, and with one remembered as gone
                    found = await consumer.offsets("t")
                    assert {key: (held.min_offset, held.max_offset) for key, held in found.items()} == {
                        ("g0", 0): (0, 0),
                        ("g0", 1): (0, 7),
                    }
                assert (await consumer.offsets("t", 0))["g0", 1].at_time == 0
                assert [int(each.body) for each in await consumer.fetch("t", 1, 0)] == list(range(7))
        async with rig.admin() as admin:
            assert [topic.topic for topic in await admin.list_topics(or_followers=True)] == ["t"]

    Rig().run(scenario)


def test_whoever_reads_from_leaders_is_told_that_there_is_none() -> None:
    async def scenario(rig: Rig) -> None:
        survivor = await filled(rig)
        async with rig.consumer(timeout_ms=3000) as consumer, rig.admin() as admin:
            with pytest.raises(NotLeaderError, match=r"group g0 has no leader now \(1 of its 3 nodes answered\)"):
                await consumer.offsets("t")
            with pytest.raises(NotLeaderError):
                await admin.list_topics()
            assert (await consumer.offsets("t", or_followers=True))["g0", 1].max_offset == 7
        rig.cluster.kill(survivor)
        async with rig.consumer(read_from="follower", timeout_ms=3000) as consumer:
            with pytest.raises(DledgerError, match="no node reachable at"):
                await consumer.offsets("t")

    Rig().run(scenario)


def test_a_leader_that_this_client_does_not_reach_is_named() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        leader = rig.cluster.hosts[rig.master]
        for route in ((leader.ip, CLIENT_IP), (CLIENT_IP, leader.ip)):
            rig.cluster.net.cut(*route)
        async with rig.producer(send_timeout_ms=10_000) as producer, rig.admin() as admin:
            text = rf"replica group g0: its leader {leader.ip}:\d+ does not answer \(2 of its 3 nodes do\)"
            with pytest.raises(NotSentError, match=text):
                await producer.send(Message("t", b"1"))
            with pytest.raises(NotLeaderError, match=text):
                await admin.list_topics()

    Rig().run(scenario)


def test_the_leaders_word_counts_again_as_soon_as_there_is_one() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.consumer(read_from="follower") as consumer:
            assert (await consumer.offsets("t"))["g0", 1].max_offset == 7
            for node_id, host in rig.cluster.hosts.items():
                if host.process is None:
                    rig.cluster.start(node_id)
            async with rig.producer() as producer:
                await producer.send(Message("t", b"7"), queue_id=1)
                assert (await consumer.offsets("t"))["g0", 1].max_offset == 8

    Rig().run(scenario)
