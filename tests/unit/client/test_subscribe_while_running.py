"""Consumers in a group that begin and end to consume topics while they run, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from dledger_client.aio import Consumer, Message, PushConsumer
from dledger_wire.errors import InvalidArgumentError
from tests.unit.client.poll_rig import PolledGroup
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig, until


async def put(rig: Rig, topic: str, *bodies: bytes, queues: int = 1, **message: Any) -> None:
    async with rig.producer() as producer:
        for number, body in enumerate(bodies):
            await producer.send(Message(topic, body, **message), queue_id=number % queues)


def test_a_polled_consumer_gets_a_topic_that_it_subscribes_to_while_it_runs() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        await rig.topic("u")
        group = PolledGroup(rig)
        member = group.run("a")
        await put(rig, "t", b"t0")
        await until(lambda: group.given == [b"t0"])
        epoch = next(iter(member.consumer._polling.queues.values())).epoch
        await put(rig, "u", b"u0")
        member.consumer.subscribe("u")
        await until(lambda: group.given == [b"t0", b"u0"])
        assert member.calls == [("assigned", [0]), ("assigned", [])]  # the queue of "t" was never given up
        assert {queue.queue.topic: queue.epoch for queue in member.consumer._polling.queues.values()}["t"] == epoch
        member.consumer.unsubscribe("t")
        await until(lambda: [queue.topic for queue in member.consumer.assigned()] == ["u"])
        await put(rig, "t", b"t1")
        await put(rig, "u", b"u1")
        await until(lambda: b"u1" in group.given)
        member.consumer.subscribe("t")
        await until(lambda: group.given == [b"t0", b"u0", b"u1", b"t1"])
        with pytest.raises(InvalidArgumentError, match="not subscribed"):
            member.consumer.unsubscribe("v")
        await group.stop("a")
        with pytest.raises(InvalidArgumentError, match="shut down"):
            member.consumer.subscribe("v")

    Rig().run(scenario)


def test_the_queues_of_a_topic_go_to_the_member_that_still_wants_it_and_nothing_is_lost_or_doubled() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        await rig.topic("u", queues=4)
        group = PolledGroup(rig)
        group.pause_s = 0.01
        group.run("a", topics=["t", "u"])
        group.run("b", topics=["t", "u"])
        sent = [[b"%s%d" % (topic, number) for number in range(200)] for topic in (b"t", b"u")]
        await put(rig, "t", *sent[0], queues=4)
        await put(rig, "u", *sent[1], queues=4)
        await until(lambda: len(group.given) > 100)
        group.members["a"].consumer.unsubscribe("u")
        await until(lambda: len(group.given) >= 400)
        assert sorted(group.given) == sorted(sent[0] + sent[1])
        assert sorted(queue.queue_id for queue in group.members["b"].consumer.assigned() if queue.topic == "u") == [0, 1, 2, 3]
        await group.stop("a")
        await group.stop("b")

    Rig().run(scenario)


def test_another_filter_counts_from_where_the_group_is() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        group = PolledGroup(rig)
        member = group.add("a", topics=())
        member.consumer.subscribe("t", "red")
        group.run("a")
        for tag in ("red", "blue"):
            await put(rig, "t", tag.encode(), tags=tag)
        await until(lambda: group.given == [b"red"])
        await asyncio.sleep(2)
        member.consumer.subscribe("t", "blue")
        await asyncio.sleep(2)
        for tag in ("red", "blue"):
            await put(rig, "t", tag.encode() + b" again", tags=tag)
        await until(lambda: group.given == [b"red", b"blue again"])
        await group.stop("a")

    Rig().run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer_gets_a_topic_that_it_subscribes_to_while_it_runs(orderly: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        await rig.topic("u")
        group = Group(rig, orderly=orderly)
        await group.start("a")
        await put(rig, "t", b"t0")
        await until(lambda: group.bodies() == [b"t0"])
        await put(rig, "u", b"u0")
        consumer = group.members["a"].consumer
        consumer.subscribe("u")
        await until(lambda: group.bodies() == [b"t0", b"u0"])
        consumer.unsubscribe("t")
        await until(lambda: [queue.topic for queue in consumer.assigned()] == ["u"])
        await put(rig, "t", b"t1")
        await put(rig, "u", b"u1")
        await until(lambda: group.bodies() == [b"t0", b"u0", b"u1"])
        await group.stop()

    Rig().run(scenario)


def test_members_that_subscribe_again_and_again_under_failovers_lose_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        await rig.topic("u", queues=4)
        group = PolledGroup(rig)
        for name in ("a", "b"):
            group.run(name, topics=["t", "u"])
        sent: list[bytes] = []
        for turn in range(6):
            bodies = [b"%d-%d" % (turn, number) for number in range(40)]
            sent += bodies
            await put(rig, "u", *bodies, queues=4)
            consumer = group.members["ab"[turn % 2]].consumer
            consumer.unsubscribe("u")
            if turn in (2, 4):
                rig.cluster.kill(victim := rig.master)
                await until(lambda: rig.cluster.master("g0") is not None)
                rig.cluster.start(victim)
            consumer.subscribe("u")
        await until(lambda: set(group.given) >= set(sent))
        await group.stop("a")
        await group.stop("b")

    Rig().run(scenario)


@pytest.mark.parametrize("kind", ["polled", "push"])
def test_topics_by_a_pattern_are_consumed_also_when_they_are_created_later(kind: str) -> None:
    async def scenario(rig: Rig) -> None:
        for name in ("orders-eu", "orders", "other"):
            await rig.topic(name)
            await put(rig, name, name.encode())
        pattern = re.compile("orders(-.*)?")
        if kind == "polled":
            polled = PolledGroup(rig)
            consumer: Consumer | PushConsumer = polled.run("a", topics=pattern).consumer
            given = polled.given
        else:
            group = Group(rig, topic=pattern)  # type: ignore[arg-type]
            await group.start("a")
            consumer = group.members["a"].consumer

        def bodies() -> list[bytes]:
            return given if kind == "polled" else group.bodies()

        await until(lambda: sorted(bodies()) == [b"orders", b"orders-eu"])
        await rig.topic("orders-us")
        await put(rig, "orders-us", b"later")
        await until(lambda: b"later" in bodies())
        consumer.subscribe(re.compile("oth.*"))
        await until(lambda: b"other" in bodies())
        consumer.unsubscribe(pattern)
        await until(lambda: [queue.topic for queue in consumer.assigned()] == ["other"])
        await asyncio.sleep(10)
        assert len(bodies()) == 4
        await consumer.close()

    Rig().run(scenario)


def test_a_topic_of_a_pattern_that_is_deleted_is_given_up_and_comes_back() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("a1")
        group = PolledGroup(rig)
        member = group.run("a", topics=[re.compile("a.")])
        await put(rig, "a1", b"before")
        await until(lambda: group.given == [b"before"])
        async with rig.admin() as admin:
            await admin.delete_topic("a1")
            await until(lambda: member.consumer.assigned() == [])
            await asyncio.sleep(6)
            await rig.topic("a1")
        await put(rig, "a1", b"after")
        await until(lambda: group.given == [b"before", b"after"])
        await group.stop("a")

    Rig().run(scenario)
