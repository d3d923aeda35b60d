"""Consumer groups on topics over several replica groups: where they begin in one that was added, and one that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dledger_client.admin.group_answers import collect_answers
from dledger_client.aio import Message, consumer_group_admin
from dledger_client.consumer.group_session import GroupSession
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError, NotLeaderError, UnreachableError
from tests.unit.client.push_rig import Group
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_topics_over_groups import kill_group, start_group


async def send_to(rig: Rig, group: str, count: int, first: int = 0) -> list[bytes]:
    """Numbered messages to the queues of one replica group; their bodies."""
    bodies = [b"%s:%d" % (group.encode(), number) for number in range(first, first + count)]
    async with rig.producer() as producer:
        await producer._core.resolve("t", producer._core.router.clock.monotonic_ms() + 5000)
        places = [place for place, (owner, _) in enumerate(producer._core.accumulator.queues("t")) if owner == group]
        for number, body in enumerate(bodies):
            place = places[number % len(places)]
            result = await producer.send(Message("t", body), queue_key=lambda _count, place=place: place)
            assert result.replica_group == group
    return bodies


async def grow(rig: Rig) -> None:
    async with rig.admin() as admin:
        await admin.update_topic("t", replica_groups=["g0", "g1"])


@pytest.mark.parametrize("running", [True, False])
def test_a_group_that_began_at_the_end_reads_all_of_a_replica_group_that_was_added(running: bool) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2, replica_group="g0")
        old = await send_to(rig, "g0", 4)
        group = Group(rig, consume_from_where="last")
        await group.start("a")
        await until(lambda: len(group.share("a")) == 2)
        began = await send_to(rig, "g0", 4, 10)
        await until(lambda: sorted(group.bodies()) == sorted(began))
        if not running:
            await group.stop()
        await grow(rig)
        added = await send_to(rig, "g1", 6)
        if not running:
            await group.start("b")
        await until(lambda: len(group.seen) >= 10)
        assert sorted(group.bodies()) == sorted(began + added)
        assert not set(group.bodies()) & set(old)
        await group.stop()

    Rig(groups=2).run(scenario)


def test_a_new_group_that_begins_at_the_end_gets_nothing_old_from_a_replica_group_that_was_added() -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1, replica_group="g0")
        before = Group(rig, name="before", subnet="10.0.3", consume_from_where="last")
        await before.start("x")
        await until(lambda: before.share("x") == [0])
        await grow(rig)
        old = await send_to(rig, "g1", 5)
        await until(lambda: sorted(before.bodies()) == sorted(old))
        group = Group(rig, name="new", consume_from_where="last")
        await group.start("a")
        await until(lambda: len(group.share("a")) == 2)
        await asyncio.sleep(2)  # the positions are chosen when it has found that there are none
        fresh = await send_to(rig, "g1", 3, 100) + await send_to(rig, "g0", 3, 100)
        await until(lambda: len(group.seen) >= 6)
        assert sorted(group.bodies()) == sorted(fresh)
        await group.stop()
        await before.stop()

    Rig(groups=2).run(scenario)


def test_a_broadcast_reads_all_of_a_replica_group_that_was_added(tmp_path: Path) -> None:
    """docs/reference/semantics, row G5."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1, replica_group="g0")
        await send_to(rig, "g0", 3)
        options: dict[str, Any] = {"broadcast": True, "offset_folder": str(tmp_path), "consume_from_where": "last"}
        group = Group(rig, **options)
        await group.start("a")
        await until(lambda: group.share("a") == [0])
        await asyncio.sleep(1)
        await group.stop()
        await grow(rig)
        added = await send_to(rig, "g1", 4)
        await group.start("a")
        await until(lambda: len(group.seen) >= 4)
        assert sorted(group.bodies()) == sorted(added)
        await group.stop()

    Rig(groups=2).run(scenario)


def test_nothing_is_reset_when_a_group_fails_while_offsets_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send_to(rig, "g0", 3)
        await send_to(rig, "g1", 3)

        async def told(*given: Any, **how: Any) -> Any:
            found = await collect_answers(*given, **how)
            kill_group(rig, "g1")
            return found

        monkeypatch.setattr(consumer_group_admin, "collect_answers", told)
        async with rig.admin() as admin, rig.consumer("g") as consumer:
            with pytest.raises((NotLeaderError, UnreachableError)):
                await admin.reset_offsets("g", "t", "last", create=True)
            assert await consumer.committed("t", partial=True) == {}

    Rig(groups=2).run(scenario)


def test_a_dead_replica_group_stops_neither_the_queues_of_others_nor_their_offsets() -> None:
    """docs/reference/semantics, row G8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        first = await send_to(rig, "g0", 4) + await send_to(rig, "g1", 4)
        group = Group(rig)
        await group.start("a", "b")
        await until(lambda: sorted(group.bodies()) == sorted(first))
        unanswered = await send_to(rig, "g1", 2, 50)  # not committed yet when the replica group dies, perhaps
        kill_group(rig, "g1")
        await until(lambda: len(group.seen) >= 10 or rig.cluster.loop.now_s > 20)
        more = await send_to(rig, "g0", 6, 10)
        await until(lambda: set(more) <= set(group.bodies()))
        async with rig.admin() as admin:

            async def lag() -> int:
                described = await admin.describe_group("g", partial=True)
                assert list(described.unanswered) == ["g1"]
                assert {row.replica_group for row in described.queues} == {"g0"}
                return described.lag

            begun_s = rig.cluster.loop.now_s
            while await lag():  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.2)
            assert rig.cluster.loop.now_s - begun_s < 10  # commits do not wait for g1
            listed = await admin.list_groups(partial=True)
            assert ([each.name for each in listed], list(listed.unanswered)) == (["g"], ["g1"])
            with pytest.raises(NotLeaderError, match=r"replica group g1 has no leader .*: nothing was reset"):
                await admin.reset_offsets("g", "t", "first")
            with pytest.raises(DledgerError):
                await admin.delete_group("g")
            moves = await admin.reset_offsets("g", "t", "last", replica_groups=["g0"])
            assert {move.replica_group for move in moves} == {"g0"}
        await start_group(rig, "g1")
        last = await send_to(rig, "g1", 3, 90)
        await until(lambda: set(last + unanswered) <= set(group.bodies()))
        await group.stop()

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("orderly", [True, False])
def test_queues_of_two_replica_groups_are_shared_and_what_is_sent_back_comes_again(orderly: bool) -> None:
    """docs/reference/semantics, rows B1, K1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        sent = await send_to(rig, "g0", 6) + await send_to(rig, "g1", 6)
        group = Group(rig, orderly=orderly, suspend_current_queue_time_ms=10)
        group.answers = [None] * 2  # the first two calls fail
        await group.start("a", "b")
        await until(lambda: len(group.seen) >= 14)
        assert set(group.bodies()) == set(sent)
        assert all(len(group.members[name].consumer.assigned()) >= 2 for name in ("a", "b"))
        owned = [queue for name in ("a", "b") for queue in group.members[name].consumer.assigned() if queue.topic == "t"]
        assert sorted((queue.replica_group, queue.queue_id) for queue in owned) == [("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)]
        await group.stop()

    Rig(groups=2).run(scenario)


def test_a_planned_handover_gives_no_message_twice_in_a_replica_group_that_is_joined_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row G2."""
    join = GroupSession._join

    async def joined(session: GroupSession) -> None:
        if session.replica_group == "g1":
            await asyncio.sleep(0.05)
        await join(session)

    async def scenario(rig: Rig) -> None:
        monkeypatch.setattr(GroupSession, "_join", joined)
        await rig.topic(queues=4)
        sent = await send_to(rig, "g1", 400)
        group = Group(rig, persist_offset_interval_ms=60_000)
        group.pause_s = 0.1
        await group.start("a")
        await until(lambda: len(group.seen) > 50)
        await group.start("b")
        await until(lambda: len(group.seen) >= 400)
        await asyncio.sleep(1)
        assert sorted(group.bodies()) == sorted(sent)
        assert {each.replica_group for each in group.members["b"].seen} == {"g1"}
        await group.stop()

    Rig(groups=2).run(scenario)


def test_a_queue_given_up_while_a_leader_answers_a_join_is_told_to_that_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    read, answered = GroupSession._read, asyncio.Event()

    async def slow(session: GroupSession) -> sessions_pb2.MasterMessage:
        message = await read(session)
        if message.WhichOneof("body") == "welcome" and (session.replica_group, session._member.client_id) == ("g1", "a"):
            answered.set()
            await asyncio.sleep(0.8)
        return message

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        group = Group(rig)
        await group.start("a")
        await until(lambda: len(group.share("a")) == 2)
        monkeypatch.setattr(GroupSession, "_read", slow)
        rig.cluster.kill(rig.master_of("g1"))
        await answered.wait()
        await group.start("b")  # it has g1/0 then, as g0 tells both
        await until(lambda: len(group.share("b")) == 1)
        await asyncio.sleep(5)
        async with rig.admin() as admin:
            described = await admin.describe_group("g")
        assert {each.client_id: list(each.queues) for each in described.members} == {"a": [("t", "g0", 0)], "b": [("t", "g1", 0)]}
        await group.stop()

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_topic_grows_under_load_while_leaders_die_and_nothing_is_missed(seed: int) -> None:
    """docs/reference/semantics, rows G5, T3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2, replica_group="g0")
        group = Group(rig, consume_from_where="last")
        await group.start("a", "b")
        await until(lambda: sorted(group.share("a") + group.share("b")) == [0, 1])
        await asyncio.sleep(2)  # both have their positions
        acknowledged: set[bytes] = set()
        grown = asyncio.Event()

        async def produce() -> None:
            async with rig.producer(send_timeout_ms=60_000, sticky_messages=3) as producer:
                number = 0
                while not grown.is_set() or number % 200:
                    body = b"%d" % number
                    await producer.send(Message("t", body))
                    acknowledged.add(body)
                    number += 1
                    await asyncio.sleep(0.01)

        async def strike() -> None:
            for name in ("g1", "g0") if seed % 2 else ("g0", "g1"):
                await asyncio.sleep(rig.cluster.random.random() * 0.3)
                await rig.restart(rig.master_of(name))

        producing = asyncio.ensure_future(produce())
        await asyncio.sleep(0.5)
        striking = asyncio.ensure_future(strike())
        async with rig.admin() as admin:
            while True:
                try:
                    await admin.update_topic("t", replica_groups=["g0", "g1"])
                    break
                except DledgerError:
                    await asyncio.sleep(0.2)
            parts = {part.replica_group: part.perm for part in await admin.describe_topic("t")}
            if parts != {"g0": 6, "g1": 6}:  # broken off between the steps: what the error says completes it
                await admin.update_topic("t", perm=6)
            await striking
            await asyncio.sleep(3)
            grown.set()
            await producing
            held = {place: each.messages for each in await admin.topic_offsets("t") for place in [(each.replica_group, each.queue_id)]}
        assert sum(count for (name, _), count in held.items() if name == "g1") > 0
        await until(lambda: acknowledged <= set(group.bodies()))
        await group.stop()

    Rig(seed, groups=2).run(scenario)


@pytest.mark.parametrize("away_s", [0.5, 2.0, 4.0])
def test_what_was_consumed_is_committed_at_shutdown_though_a_replica_group_is_away_at_that_moment(away_s: float) -> None:
    """The other one does not wait for it."""

    def committed(rig: Rig, replica_group: str) -> list[int]:
        node = rig.cluster.hosts[rig.master_of(replica_group)].node
        assert node is not None
        return [node.store.consumer_offsets.position("g", "t", number) for number in (0, 1)]

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", 4)
        group = Group(rig, persist_offset_interval_ms=60_000)
        await group.start("a")
        await until(lambda: len(group.share("a")) == 4)
        sent = await send_to(rig, "g0", 4) + await send_to(rig, "g1", 6)
        await until(lambda: sorted(group.bodies()) == sorted(sent))
        kill_group(rig, "g1")
        stopping = asyncio.ensure_future(group.stop())
        await asyncio.sleep(away_s)
        assert committed(rig, "g0") == [2, 2]
        await start_group(rig, "g1")
        await stopping
        assert committed(rig, "g1") == [3, 3]

    Rig(groups=2).run(scenario)
