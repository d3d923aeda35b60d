"""Where push consumers begin and go on, against real nodes in virtual time: new groups, new queues, topics made anew, resets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.groups import group_offsets as group_offsets_api
from broker.groups.group_offsets import GroupOffsetsService
from broker.node import BrokerNode
from broker.support.limits import in_slices
from dledger_client.aio import Message
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.group_offsets import BrokerOffsetStore
from dledger_client.consumer.group_session import MemberInfo
from dledger_client.consumer.initial_offsets import InitialOffsets
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.settings import PushOptions
from dledger_wire._pb import broker_pb2, sessions_pb2
from dledger_wire.rpc import methods
from store.commands.topics import EMPTY, DeleteTopicIf
from tests.unit.client.push_rig import Group, numbers, send
from tests.unit.client.sim_rig import Rig, until


def calls_of(work: Callable[[], object]) -> int:
    """How many calls ``work`` takes; a step of a generator counts as one."""
    found = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_each_of_many_queues_is_begun_for_the_same_price() -> None:
    """Where to begin, and whether another member still has the queue, is asked for every queue."""

    def price(queues: int) -> int:
        rows = [broker_pb2.GroupOffset(topic=f"t{number}", queue_id=0, offset=1) for number in range(queues)]
        places = [sessions_pb2.QueuePlace(topic=f"t{number}", queue_id=0) for number in range(queues)]
        others = [sessions_pb2.GroupMember(client_id="other", queues=places[: queues // 2])]

        async def answer(*_: object, **__: object) -> broker_pb2.GroupOffsetsResponse:
            return broker_pb2.GroupOffsetsResponse(groups=[broker_pb2.GroupPositions(group="g", offsets=rows)])

        router = cast(Any, SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0), call_leader=answer))
        store, member = BrokerOffsetStore(router, "g", PushOptions()), MemberInfo("g", "me", "s", {}, False, False, "")

        async def begin() -> None:
            consumer = Rebalancer(router, cast(Any, None), member, PushOptions(), {}, store, cast(Any, None))
            consumer._sessions["g0"] = cast(Any, SimpleNamespace(members=others))
            wanted = [MessageQueue(f"t{number}", "g0", 0) for number in range(queues)]
            found = await asyncio.gather(*(store.find(queue, 0) for queue in wanted))
            assert [each.offset for each in found] == [1] * queues
            assert sum(consumer.is_held_by_another(queue) for queue in wanted) == queues // 2

        return calls_of(lambda: asyncio.run(begin()))

    assert price(800) < 2.5 * price(400)


def test_running_consumers_follow_a_reset() -> None:
    """docs/reference/semantics, row G4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        await send(rig, 200, 2)
        await group.start("a")
        await until(lambda: len(group.seen) == 200)
        async with rig.consumer("g") as operator:
            await operator.commit({("t", 0): 90, ("t", 1): 95}, reset=True)
        reset_s = rig.cluster.loop.now_s
        await until(lambda: len(group.seen) == 215)
        assert rig.cluster.loop.now_s - reset_s < 1.0
        await asyncio.sleep(2)
        assert sorted(group.bodies()[200:]) == sorted(numbers(20, 180)[0::2] + numbers(10, 190)[1::2])
        await group.stop()

    Rig().run(scenario)


def test_a_late_commit_does_not_undo_a_reset() -> None:
    """docs/reference/semantics, row G4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, persist_offset_interval_ms=5000)
        await send(rig, 100)
        await group.start("a")
        await until(lambda: len(group.seen) == 100)
        for host in rig.cluster.hosts.values():  # it hears nothing of the reset
            rig.cluster.net.cut(host.ip, group.members["a"].process.host)
        async with rig.consumer("g") as operator:
            await operator.commit({("t", 0): 40}, reset=True)
            rig.cluster.net.heal_all()
            await until(lambda: len(group.seen) == 160)
            await group.stop()
            assert (await operator.committed("t"))["g0", 0] == 100

    Rig().run(scenario)


def test_where_a_new_group_begins() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 10)
        await asyncio.sleep(1)
        middle_ms = rig.cluster.hosts[rig.master].clock.wall_ms()
        await asyncio.sleep(1)
        await send(rig, 10, first=10)
        last = Group(rig, consume_from_where="last")
        await last.start("a")
        await until(lambda: last.share("a") == [0])
        await asyncio.sleep(0.5)
        await send(rig, 10, first=20)
        await until(lambda: len(last.seen) == 10)
        assert last.bodies() == numbers(10, 20)
        await last.stop()
        async with rig.consumer("g") as operator:
            assert (await operator.committed("t"))["g0", 0] == 30
        since = Group(rig, consume_from_where="timestamp", consume_timestamp=middle_ms)
        since.members["b"] = since.add("b")
        since.members["b"].consumer.group = "other"
        await since.start("b")
        await until(lambda: len(since.seen) == 20)
        assert sorted(since.bodies()) == sorted(numbers(20, 10))
        await since.stop()

    Rig().run(scenario)


def test_all_members_begin_all_queues_of_a_topic_at_the_same_place_and_added_ones_at_their_start() -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, 40, 4)
        options = PushOptions(consume_from_where="last")
        members = [BrokerOffsetStore(rig.router(), "g", options) for _ in range(2)]
        queues = [MessageQueue("t", "g0", number) for number in range(6)]
        assert (await members[0].find(queues[0], 0)).offset == 10
        await send(rig, 40, 4)
        for number in (1, 2, 3):  # found by the other one later: they are no new queues
            assert (await members[number % 2].find(queues[number], 0)).offset == 10
        async with rig.admin() as admin:
            await admin.update_topic("t", read_queues=6, write_queues=6)
        await asyncio.sleep(0.2)  # every replica has heard of it
        await send(rig, 6, 6)
        found = await asyncio.gather(*(member.find(queue, 0) for member in members for queue in queues))
        assert [place.offset for place in found] == [10, 10, 10, 10, 0, 0] * 2
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await send(rig, 5)
        assert (await members[0].find(queues[0], 0)).offset == 0

    Rig().run(scenario)


def test_a_topic_made_while_a_consumer_was_there_is_read_from_its_start() -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        await asyncio.sleep(2.5)  # it has looked, and looks again in 1.5 s
        await rig.topic(queues=2)
        await send(rig, 10, 2)
        await until(lambda: len(group.seen) == 10)
        await group.stop()

    Rig().run(scenario, limit_s=30)


def test_what_was_sent_back_before_a_consumer_saw_the_retry_topic_is_not_skipped() -> None:
    """docs/reference/semantics, row G1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        await until(lambda: group.share("a") == [0])
        await group.stop()
        await send(rig, 5)
        async with rig.consumer("g") as operator:
            await operator.send_back("t", 0, range(5), delay_level=1)
        await asyncio.sleep(3)
        await group.start("b")
        await until(lambda: len(group.seen) == 10)
        assert sorted(group.bodies()) == sorted(numbers(5) * 2)
        await group.stop()

    Rig().run(scenario, limit_s=30)


def test_queues_added_later_are_read_from_their_start() -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        await until(lambda: group.share("a") == [0])
        async with rig.admin() as admin:
            await admin.update_topic("t", read_queues=2, write_queues=2)
        await asyncio.sleep(0.2)  # every replica has heard of it
        await send(rig, 10, 2)
        await until(lambda: len(group.seen) == 10)
        assert group.share("a") == [0, 1]
        await group.stop()

    Rig().run(scenario)


def test_a_topic_made_anew_is_read_from_its_start() -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig)
        await send(rig, 50)
        await group.start("a")
        await until(lambda: len(group.seen) == 50)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await send(rig, 10, first=100)
        await until(lambda: len(group.seen) == 60)
        assert sorted(group.bodies()[50:]) == numbers(10, 100)
        await group.stop()

    Rig().run(scenario)


def ends(node: BrokerNode) -> list[int]:
    """Where the queues of the topic end on this replica."""
    return [queue.max_offset for queue in node.store.queues if queue.key[0] == "t"]


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_replica_that_lags_gives_no_messages_of_the_topic_before(seed: int) -> None:
    """docs/reference/semantics, row G5.  They would be consumed in place of those that have their offsets now."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        lags = rig.cluster.hosts[rig.followers[0]]
        await until(lambda: lags.node is not None and ends(lags.node) == [50])
        for other in rig.cluster.hosts.values():
            if other is not lags:
                rig.cluster.net.cut(other.ip, lags.ip)
                rig.cluster.net.cut(lags.ip, other.ip)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await send(rig, 60, first=100)
        group = Group(rig, read_from="follower")
        await group.start("a")
        await until(lambda: numbers(10, 150)[-1] in group.bodies())
        assert group.bodies() == numbers(60, 100)
        await group.stop()

    Rig(seed).run(scenario)


def test_a_group_does_not_begin_in_a_topic_where_it_would_have_begun_in_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row G5.  The topic is made anew between the question where its queues end and the position there."""
    looked_up = InitialOffsets._look_up

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 50, 2)
        remade = asyncio.Event()

        async def and_made_anew(self: InitialOffsets, queues: list[MessageQueue], where: str) -> object:
            found = await looked_up(self, queues, where)
            if not remade.is_set():
                remade.set()
                async with rig.admin() as admin:
                    await admin.delete_topic("t")
                    await admin.create_topic("t", queues=2)
                await send(rig, 10, 2, first=100)
            return found

        monkeypatch.setattr(InitialOffsets, "_look_up", and_made_anew)
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        await until(lambda: set(group.bodies()) == set(numbers(10, 100)))
        await group.stop()

    Rig().run(scenario, limit_s=60)


def test_a_group_begins_at_the_end_also_when_a_deletion_of_the_topic_was_refused_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = GroupOffsetsService._check_topics

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        deletions: list[asyncio.Future[Any]] = []

        def and_deleted(self: GroupOffsetsService, request: broker_pb2.CommitOffsetsRequest) -> None:
            checked(self, request)
            if not deletions and request.offsets[0].topic == "t":
                deletions.append(self._context.raft.propose(self._context.store.command(DeleteTopicIf(name="t", only_if=EMPTY))))

        monkeypatch.setattr(GroupOffsetsService, "_check_topics", and_deleted)
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        known = node.store.consumer_offsets
        await until(lambda: known.known_position("g", "t", 0) is not None)
        assert (known.position("g", "t", 0), len(deletions)) == (50, 1)
        await group.stop()

    Rig().run(scenario)


def test_positions_of_a_topic_are_not_told_as_those_of_the_one_made_anew_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's queues are listed in slices, between which the log is applied."""
    topics = ["t0", "t1", "t2"]

    async def scenario(rig: Rig) -> None:
        for name in topics:
            await rig.topic(name)
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("g") as consumer:
            for name in topics:
                await producer.send(Message(name, b"1"))
            await consumer.commit({(name, 0): 1 for name in topics})

            async def and_made_anew(items: Iterable[object], every: int = 1) -> AsyncIterator[object]:
                async for item in in_slices(items, every):
                    if item == (topics[-2], 0):
                        await admin.delete_topic(topics[-1])
                        await admin.create_topic(topics[-1])
                    yield item

            monkeypatch.setattr(group_offsets_api, "in_slices", and_made_anew)
            answer = await consumer._router.call_leader(
                "g0", methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=["g"]), deadline_ms=10_000_000
            )
            assert [each.topic for each in answer.groups[0].offsets] == topics[:-1]

    Rig().run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_with_routes_of_the_topic_before_reads_what_its_leader_has(monkeypatch: pytest.MonkeyPatch, *, orderly: bool) -> None:
    """A name server that the leader cannot reach tells them for long.  The lock of an orderly consumer is one of this very topic."""
    look_up = Router.topic

    async def of_before(self: Router, name: str, deadline_ms: int, *, fresh: bool = False) -> list[TopicQueues]:
        return [replace(queues, topic_epoch=f"{1:016X}") for queues in await look_up(self, name, deadline_ms, fresh=fresh)]

    monkeypatch.setattr(Router, "topic", of_before)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = Group(rig, orderly=orderly)
        for part in range(2):
            await group.start("a")
            await send(rig, 50, first=100 * part)
            await until(lambda part=part: len(group.seen) == 50 * (part + 1))
            await group.stop()
        assert group.bodies() == numbers(50) + numbers(50, 100)

    Rig().run(scenario)
