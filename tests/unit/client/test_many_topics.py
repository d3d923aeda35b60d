"""Totals over many topics and consumer groups with few calls, and searches that spare the leader."""

from __future__ import annotations

import asyncio
from cProfile import Profile
from typing import Any

import pytest

from dledger_client.aio import Message
from dledger_client.cluster.router import Router
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, UnreachableError
from tests.unit.client.push_rig import Group, send
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_topics_over_groups import kill_group


def test_offsets_of_many_topics_take_two_calls_to_each_replica_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        for number in range(20):
            await rig.topic(f"t{number}", queues=4)
        async with rig.producer() as producer:
            for number in range(3):
                await producer.send(Message("t7", b"%d" % number))
        async with rig.admin() as admin:
            await admin.list_topics()  # leaders are known
            asked: list[str] = []
            call = Router.call_leader

            async def noted(router: Router, group: str, method: Any, *given: Any, **how: Any) -> Any:
                asked.append(f"{group} {method.path.rpartition('/')[2]}")
                return await call(router, group, method, *given, **how)

            monkeypatch.setattr(Router, "call_leader", noted)
            held = await admin.offsets_of_topics([f"t{number}" for number in range(20)] + ["nowhere"])
        assert sorted(asked) == ["g0 Metadata", "g0 Offsets", "g1 Metadata", "g1 Offsets"]
        assert held["nowhere"] == []
        assert {topic for topic, queues in held.items() if len(queues) == 4} == {f"t{number}" for number in range(20)}
        assert sum(queue.messages for queue in held["t7"]) == 3
        assert sum(queue.messages for queue in held["t8"]) == 0

    Rig(groups=2).run(scenario)


def test_offsets_of_many_topics_name_a_replica_group_that_does_not_answer() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        kill_group(rig, "g1")
        async with rig.admin() as admin:
            with pytest.raises((NotLeaderError, UnreachableError)):
                await admin.offsets_of_topics(["t"])
            held = await admin.offsets_of_topics(["t"], partial=True)
            assert {queue.replica_group for queue in held["t"]} == {"g0"}
            assert list(held["t"].unanswered) == ["g1"]
            assert await admin.offsets_of_topics([]) == {}

    Rig(groups=2).run(scenario)


def test_all_consumer_groups_are_described_as_each_of_them_is() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        await rig.topic("u")
        async with rig.producer() as producer:
            for number in range(6):
                await producer.send(Message("t", b"x"), queue_id=number % 2)
                await producer.send(Message("u", b"x"), queue_id=0)
        for name, position in (("slow", ("t", 0)), ("fast", ("u", 0))):
            async with rig.consumer(name) as consumer:
                await consumer.commit({position: 2})
        async with rig.admin() as admin:
            found = await admin.describe_groups()
            assert [(group.name, group.lag) for group in found] == [("fast", 4), ("slow", 4)]
            assert list(found) == [await admin.describe_group(group.name) for group in found]
            assert [group.name for group in await admin.describe_groups(["slow", "nobody"])] == ["slow"]
            await admin.delete_topic("t")
            assert [queue.lag for queue in (await admin.describe_groups(["fast"]))[0].queues] == [4]

    Rig().run(scenario)


def test_a_search_may_spare_the_leader_and_asks_it_for_what_followers_do_not_have() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.admin(read_from="follower") as admin:
            first = await producer.send(Message("t", b"first", keys="k"))
            await asyncio.sleep(1)
            for found in (await admin.query_by_key("t", "k"), await admin.query_by_id(first.msg_id), await admin.query_by_time("t", 0)):
                assert [message.body for message in found.messages] == [b"first"]
                assert found.messages[0].replica in rig.followers
            traced = await admin.trace(msg_id=first.msg_id)
            assert [copy.message.replica in rig.followers for copy in traced.copies] == [True]
            at = await admin.query_by_offset("t", 0, 0)
            assert at is not None
            assert at.replica in rig.followers
            for node_id in rig.followers:  # clients reach them, their leader does not
                rig.cluster.net.cut(rig.cluster.hosts[rig.master].ip, rig.cluster.hosts[node_id].ip)
                break
            second = await producer.send(Message("t", b"second", keys="late"))
            (late,) = (await admin.query_by_id(second.msg_id)).messages
            assert late.body == b"second"
            assert [message.body for message in (await admin.query_by_key("t", "late")).messages] == [b"second"]
        with pytest.raises(InvalidArgumentError):
            rig.admin(read_from="anybody")

    Rig().run(scenario)


async def started_s(rig: Rig, name: str, topics: list[str]) -> float:
    """How long a new consumer group takes to have read the first message of each topic."""
    group = Group(rig, topics[0], name)
    member = group.add(name)
    for topic in topics[1:]:
        member.consumer.subscribe(topic)
    began_s = rig.cluster.loop.now_s
    await group.start(name)
    await until(lambda: {each.topic for each in group.seen} == set(topics))
    took_s = rig.cluster.loop.now_s - began_s
    await group.stop()
    return took_s


def test_a_group_begins_to_read_its_topics_side_by_side() -> None:
    async def scenario(rig: Rig) -> None:
        topics = [f"t{number}" for number in range(40)]
        async with rig.producer() as producer:
            for topic in topics:
                await rig.topic(topic)
                await producer.send(Message(topic, b"x"))
        few_s = await started_s(rig, "few", topics[:10])
        assert await started_s(rig, "many", topics) < 2 * few_s

    Rig().run(scenario)


def test_queues_that_begin_together_ask_for_their_offsets_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer holds all offsets of the group, so one for each queue kept the leader busy for seconds."""
    asked: list[str] = []
    call = Router.call_leader

    async def noted(router: Router, group: str, method: Any, *given: Any, **how: Any) -> Any:
        asked.append(method.path.rpartition("/")[2])
        return await call(router, group, method, *given, **how)

    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=40)
        await send(rig, 40, queues=40)
        await started_s(rig, "g", ["t"])
        monkeypatch.setattr(Router, "call_leader", noted)
        group = Group(rig)
        await group.start("a")
        await send(rig, 40, queues=40)
        await until(lambda: {each.queue_id for each in group.seen} == set(range(40)))
        assert asked.count("GroupOffsets") < 5
        await group.stop()

    Rig().run(scenario)


async def calls_of_an_assignment(rig: Rig, count: int) -> int:
    """How many functions are called to work out what two members consume of so many topics."""
    group = Group(rig, "t0", f"g{count}")
    first, second = group.add("a"), group.add("b")
    for member in (first, second):
        for number in range(1, count):
            member.consumer.subscribe(f"t{number}")
    await group.start("a", "b")
    await until(lambda: len(first.consumer.assigned()) == count and not second.consumer.assigned())
    engine = first.consumer._engine
    assert engine is not None
    with Profile() as profile:
        engine._apply_assignment()
    await group.stop()
    return sum(each.callcount for each in profile.getstats())


def test_what_an_assignment_costs_grows_with_the_topics_and_not_with_their_square() -> None:
    async def scenario(rig: Rig) -> None:
        for number in range(160):
            await rig.topic(f"t{number}")
        few = await calls_of_an_assignment(rig, 20)
        assert await calls_of_an_assignment(rig, 160) < 12 * few

    Rig().run(scenario)
