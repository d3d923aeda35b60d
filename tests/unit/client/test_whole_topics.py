"""A client that has just begun, and meets a name server that knows little: it never takes a part of a topic's queues for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_client.aio import Message, Producer, PullConsumer
from dledger_client.cluster.missing_parts import TopicParts, find_parts
from dledger_client.cluster.node_metadata import NodeAnswer
from dledger_client.cluster.routes import ReplicaGroup, RouteCache
from dledger_client.cluster.topic_lookup import TopicLookup
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotLeaderError, NotReadyError, NotSentError
from tests.unit.client.sim_rig import CLIENT_IP, Rig
from tests.unit.client.test_topics_over_groups import kill_group, start_group

ALL = {("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)}
Question = Callable[[PullConsumer], Awaitable[Any]]


async def places(consumer: PullConsumer) -> set[tuple[str, int]]:
    return {(part.replica_group, number) for part in await consumer.topic("t") for number in range(part.read_queues)}


async def offsets(consumer: PullConsumer) -> set[tuple[str, int]]:
    return set(await consumer.offsets("t"))


async def until_sent(producer: Producer) -> None:
    """Send until a message is stored."""
    while True:
        try:
            assert (await producer.send(Message("t", b"x"))).replica_group == "g1"
        except (NotSentError, NotReadyError, NotLeaderError):
            await asyncio.sleep(0.1)
        else:
            return


async def forget(rig: Rig) -> None:
    """A replica group is away, and no name server remembers it."""
    kill_group(rig, "g1")
    await asyncio.sleep(3)  # a registration that was on its way reaches a name server that is to forget it
    servers = rig.cluster.name_servers
    for name in servers.hosts:
        servers.wipe(name)
        servers.ensure_running(name, rig.cluster.config)
    if not servers.hosts:
        kill_group(rig, "g0")
        await start_group(rig, "g0")
    await asyncio.sleep(3)


@pytest.mark.parametrize("ask", [places, offsets])
@pytest.mark.parametrize("name_servers", [0, 3])
def test_a_consumer_is_told_of_all_queues_or_of_none(ask: Question, name_servers: int) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 4)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
        await forget(rig)
        async with rig.consumer(timeout_ms=2000) as consumer:
            with pytest.raises(NotReadyError, match="g1 did not answer"):
                await ask(consumer)
            await start_group(rig, "g1")
            assert await ask(consumer) == ALL

    Rig(groups=2, name_servers=name_servers).run(scenario)


def test_a_producer_sends_no_key_to_a_queue_chosen_from_a_part() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 4)
        await forget(rig)
        async with rig.producer(send_timeout_ms=2000) as producer:
            with pytest.raises(NotSentError, match="g1 did not answer"):
                await producer.send(Message("t", b"x"), queue_key="k")
            await producer.send(Message("t", b"free"))

    Rig(groups=2, name_servers=3).run(scenario)


def test_a_topic_is_not_closed_while_a_replica_group_that_may_take_messages_is_away() -> None:
    """Scenario groups-drained, seed 2010: who began while the other group was away was told that writing is not permitted."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 4)
            await admin.drain_replica_group("g0")
        await forget(rig)
        async with rig.producer(send_timeout_ms=2000) as producer:
            with pytest.raises(NotSentError, match="g1 did not answer, and no queue elsewhere takes messages"):
                await producer.send(Message("t", b"x"))
            await start_group(rig, "g1")
            await until_sent(producer)

    Rig(groups=2, name_servers=3).run(scenario)


def test_a_replica_group_that_comes_back_during_the_look_up_is_not_left_out() -> None:
    async def look_up(rig: Rig) -> TopicParts:
        router = rig.router()
        try:
            return await find_parts(router, "t", router.clock.monotonic_ms() + 5000)
        finally:
            await router.close()

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 4)
        await forget(rig)
        starting = asyncio.ensure_future(start_group(rig, "g1"))
        looking = []
        while not starting.done():
            looking.append(asyncio.ensure_future(look_up(rig)))
            await asyncio.sleep(0.01)
        found = [await each for each in looking]
        wholes = [{(part.replica_group, part.read_queues) for part in each.queues} for each in found if not each.missing]
        assert wholes
        assert all(whole == {("g0", 2), ("g1", 2)} for whole in wholes)
        assert any(each.missing == ["g1"] for each in found)

    Rig(groups=2, name_servers=3).run(scenario)


def test_offsets_are_those_of_the_leader_whoever_was_named_as_the_leader() -> None:
    """Scenario groups-drained, seed 2: a node that had just begun was taken for the leader, and knew no topic yet."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
        lags = rig.followers_of("g0")[0]
        async with rig.consumer(timeout_ms=5000) as consumer:
            assert (await consumer.offsets("t"))["g0", 0].max_offset == 1
            rig.isolate(lags)
            async with rig.producer() as producer:
                await producer.send(Message("t", b"y"))
            for machine in rig.cluster.machines():
                rig.cluster.net.heal(CLIENT_IP, machine.ip)
                rig.cluster.net.heal(machine.ip, CLIENT_IP)
            consumer._router.cache.leader_is("g0", rig.cluster.hosts[lags].address)
            assert (await consumer.offsets("t"))["g0", 0].max_offset == 2

    Rig().run(scenario)


def test_what_a_name_server_tells_of_all_replica_groups_counts_for_each_by_itself() -> None:
    """Queues of one group were taken for those of another one too, so keys went to other queues (``groups-added``, seed 41)."""
    cache, asked = RouteCache(), "10.0.9.1:9876"
    told = broker_pb2.MetadataResponse(cluster="c", version=3)
    for name in ("g0", "g1", "g2"):
        cache.set_group(ReplicaGroup(name, 2, "", "", ()))
        told.groups.add(name=name, term=2)
    for name in ("g0", "g1"):
        told.topics.add(name="t", group=name, read_queues=2, write_queues=2, perm=6, found=True)

    async def survey(*_args: object) -> list[NodeAnswer]:
        return []

    nodes: Any = SimpleNamespace(survey=survey)
    nobody: Any = None
    lookup = TopicLookup(nobody, nobody, nodes, cache, nobody)
    found = asyncio.run(lookup._of_groups("t", cache.groups, [asked], [(asked, told)]))
    assert sorted(each.replica_group for each in found) == ["g0", "g1"]
