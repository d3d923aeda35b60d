"""Polled consumers in a group against real nodes in virtual time: what is given, what counts as consumed, and the fencing of both."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dledger_client.aio import Consumer, MessageQueue
from dledger_wire.errors import ClientClosedError, InvalidArgumentError, StaleLockError
from tests.unit.client.poll_rig import PolledGroup
from tests.unit.client.push_rig import numbers, send
from tests.unit.client.sim_rig import Rig, until


async def committed(rig: Rig, group: str = "g") -> dict[tuple[str, int], int]:
    async with rig.consumer(group) as consumer:
        return await consumer.committed("t")


def _polls(rig: Rig, group: PolledGroup, member: Any) -> bool:
    """Never true: the member polls once more, to be told of its queues."""
    if member.task is None or member.task.done():
        member.task = rig.cluster.loop.spawn(member.process, member.consumer.poll(timeout_ms=0), member.name)
    return False


def test_a_loop_gives_every_message_once_and_members_share_the_queues() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, 400, 4)
        group = PolledGroup(rig)
        first = group.run("a")
        await until(lambda: len(group.given) >= 400)
        assert first.calls == [("assigned", [0, 1, 2, 3])]
        group.run("b")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3]})
        assert first.calls[1:] == [("revoked", [2, 3])]
        await send(rig, 400, 4, first=400)
        await until(lambda: len(group.given) >= 800)
        assert sorted(group.given) == sorted(numbers(800))
        await group.stop("a")
        await until(lambda: group.shares == {"b": [0, 1, 2, 3]})
        await group.stop("b")

    Rig().run(scenario)


def test_messages_of_a_queue_come_in_order_and_queues_in_turn() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 200, 2)
        group = PolledGroup(rig)
        member = group.add("a")
        found = [(message.queue_id, message.queue_offset) for message in await group.poll(member, 200, 30)]
        while len(found) < 200:
            messages = await group.on(member, member.consumer.poll(30))
            assert len(messages) <= 30
            found += [(message.queue_id, message.queue_offset) for message in messages]
        for queue_id in (0, 1):
            assert [offset for number, offset in found if number == queue_id] == list(range(100))
        assert 20 <= sum(queue_id for queue_id, _ in found[:100]) <= 80  # neither of the two waits for the other
        assert await group.on(member, member.consumer.poll(30, timeout_ms=100)) == []
        await group.stop("a")

    Rig().run(scenario)


@pytest.mark.parametrize("silent", [False, True])
def test_a_kill_and_a_join_lose_nothing_and_give_again_only_what_was_not_committed(silent: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, 600, 4)
        group = PolledGroup(rig)
        group.pause_s = 0.02
        group.run("a")
        group.run("b")
        await until(lambda: len(group.given) > 150)
        group.kill("a", silent=silent)
        await asyncio.sleep(0.5)
        group.run("c")
        await until(lambda: set(group.given) >= set(numbers(600)))
        await group.stop("b")
        await group.stop("c")
        again = [body for body, count in Counter(group.given).items() if count > 1]
        assert len(again) <= 75  # what one member works on in a second and some, which is how old a commit may be

    Rig().run(scenario)


def test_a_planned_handover_gives_no_message_twice() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, 600, 4)
        group = PolledGroup(rig)
        group.pause_s = 0.02
        group.run("a")
        await until(lambda: len(group.given) > 50)
        group.run("b")
        await until(lambda: len(group.given) > 250)
        member = group.members["a"]
        await group.on(member, member.consumer.__aexit__(None, None, None))
        del group.members["a"]
        await until(lambda: len(group.given) >= 600)
        assert sorted(group.given) == sorted(numbers(600))
        await group.stop("b")

    Rig().run(scenario)


def test_a_queue_waits_for_the_caller_that_has_its_messages_in_hand() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 20, 2)
        group = PolledGroup(rig)
        slow = group.add("a")
        assert len(await group.poll(slow, 20)) == 20
        group.run("b")
        await asyncio.sleep(20)
        assert group.given == []  # a caller that works for long keeps what it has
        await group.on(slow, slow.consumer.poll(timeout_ms=0))
        assert slow.calls[1:] == [("revoked", [1])]
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        await asyncio.sleep(2)
        assert group.given == []  # it was consumed before it was handed over
        await group.stop("a")
        await group.stop("b")

    Rig().run(scenario)


def test_a_caller_that_does_not_come_back_keeps_a_queue_for_so_long_only() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 20, 2)
        group = PolledGroup(rig, max_poll_interval_ms=5_000)
        hangs = group.add("a")
        messages = await group.poll(hangs, 20)
        group.run("b")
        await asyncio.sleep(4)
        assert group.given == []
        await until(lambda: len(group.given) == 10)
        of_the_other = next(message for message in messages if message.queue_id == 1)
        with pytest.raises(StaleLockError):
            hangs.consumer.commit_async(of_the_other)
        with pytest.raises(StaleLockError, match="queueId=1"):
            await group.on(hangs, hangs.consumer.commit())
        assert (await committed(rig))["g0", 0] == 10  # that of the queue that it kept counts
        await group.on(hangs, hangs.consumer.poll(timeout_ms=0))
        assert hangs.calls[1:] == [("lost", [1])]
        await group.stop("a")
        await group.stop("b")

    Rig().run(scenario)


def test_what_was_fetched_before_a_session_was_lost_is_not_given_and_not_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 100, 2)
        group = PolledGroup(rig)
        cut = group.add("a")
        in_hand = await group.poll(cut, 100, 60)
        for host in rig.cluster.hosts.values():
            rig.cluster.net.cut(cut.process.host, host.ip)
            rig.cluster.net.cut(host.ip, cut.process.host)
        group.run("b")
        await until(lambda: len(group.given) == 100)
        assert await group.on(cut, cut.consumer.poll(timeout_ms=3_000)) == []
        rig.cluster.net.heal_all()
        await until(lambda: ("lost", [0, 1]) in cut.calls or _polls(rig, group, cut))
        of_the_other = next(message for message in in_hand if message.queue_id == 1)
        with pytest.raises(StaleLockError):
            cut.consumer.commit_async(of_the_other)
        await until(lambda: group.shares == {"a": [0], "b": [1]})
        await group.stop("a")
        await group.stop("b")
        assert sorted(group.given) == sorted(numbers(100))

    Rig().run(scenario)


def test_without_auto_commit_only_what_was_committed_counts() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 30)
        group = PolledGroup(rig, auto_commit=False)
        member = group.add("a")
        messages = await group.poll(member, 30, 20)
        await group.on(member, member.consumer.poll(5))
        await asyncio.sleep(3)
        assert await committed(rig) == {("g0", 0): 0}
        await group.on(member, member.consumer.commit(messages[6]))
        assert await committed(rig) == {("g0", 0): 7}
        member.consumer.commit_async(messages[9])
        await asyncio.sleep(1.2)
        assert await committed(rig) == {("g0", 0): 10}
        await group.on(member, member.consumer.commit())
        assert await committed(rig) == {("g0", 0): 25}
        await group.on(member, member.consumer.poll(3))
        await group.stop("a")
        assert await committed(rig) == {("g0", 0): 25}

    Rig().run(scenario)


def test_a_message_that_was_not_given_yet_cannot_be_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 30)
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 30, 20)
        async with rig.consumer() as other:
            later = (await other.fetch("t", 0, 25))[0]
        with pytest.raises(StaleLockError):
            member.consumer.commit_async(later)
        await group.stop("a")

    Rig().run(scenario)


@pytest.mark.parametrize(("error", "position"), [(None, 10), (ValueError, 9)])
def test_the_end_of_a_block_commits_the_message_in_hand_unless_it_failed(error: type[Exception] | None, position: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 30)
        group = PolledGroup(rig)
        member = group.add("a")

        async def block() -> None:
            async with member.consumer as consumer:
                async for message in consumer:
                    if message.queue_offset == 9:
                        if error is not None:
                            raise error
                        break

        if error is None:
            await group.on(member, block())
        else:
            with pytest.raises(error):
                await group.on(member, block())
        assert await committed(rig) == {("g0", 0): position}
        assert member.calls == [("assigned", [0]), ("revoked", [0])]

    Rig().run(scenario)


def test_on_revoked_of_a_block_that_failed_commits_only_what_the_caller_had_done() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 30)
        group = PolledGroup(rig, auto_commit=False)

        async def commits(_queues: list[MessageQueue]) -> None:
            await member.consumer.commit()

        async def block() -> None:
            async with member.consumer as consumer:
                async for message in consumer:
                    if message.queue_offset == 9:
                        raise ValueError("failed")

        member = group.add("a", on_revoked=commits)
        with pytest.raises(ValueError, match="failed"):
            await group.on(member, block())
        assert await committed(rig) == {("g0", 0): 9}

    Rig().run(scenario)


def test_a_close_does_not_commit_what_the_caller_has_in_hand() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 30)
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 30, 10)
        await group.on(member, member.consumer.poll(10))
        await group.stop("a")
        assert await committed(rig) == {("g0", 0): 10}
        with pytest.raises(ClientClosedError):
            await group.on(member, member.consumer.poll())

    Rig().run(scenario)


def test_on_revoked_may_commit_what_was_consumed_before_another_member_gets_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 200, 2)
        group = PolledGroup(rig, auto_commit=False)

        async def commits(queues: list[MessageQueue]) -> None:
            assert [queue.queue_id for queue in queues] == [1]
            await member.consumer.commit()

        member = group.add("a", on_revoked=commits)
        assert len(await group.poll(member, 200)) == 200
        group.run("b")
        await asyncio.sleep(3)
        assert group.shares["b"] == []
        await group.on(member, member.consumer.poll(timeout_ms=0))
        await until(lambda: group.shares["b"] == [1])
        await send(rig, 2, 2, first=200)
        await until(lambda: len(group.given) == 1)
        assert group.given == [b"201"]
        await group.stop("b")
        await member.consumer._end_polling()

    Rig().run(scenario)


def test_a_failover_moves_no_queue_and_loses_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        group = PolledGroup(rig)
        group.run("a")
        group.run("b")
        await until(lambda: group.shares == {"a": [0, 1], "b": [2, 3]})
        await send(rig, 100, 4)
        await until(lambda: len(group.given) == 100)
        await asyncio.sleep(1.5)
        rig.cluster.kill(rig.master)
        await send(rig, 100, 4, first=100)
        await until(lambda: len(group.given) >= 200)
        await asyncio.sleep(2)
        assert group.shares == {"a": [0, 1], "b": [2, 3]}
        assert sorted(group.given) == sorted(numbers(200))
        await group.stop("a")
        await group.stop("b")

    Rig().run(scenario)


def test_filtered_messages_are_passed_over_and_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send(rig, 20, tags="no")
        await send(rig, 5, first=20, tags="yes")
        await send(rig, 20, first=25, tags="no")
        group = PolledGroup(rig)
        member = group.add("a", topics=())
        member.consumer.subscribe("t", "yes")
        assert [each.body for each in await group.on(member, member.consumer.poll())] == numbers(5, 20)
        assert await group.on(member, member.consumer.poll(timeout_ms=3_000)) == []
        assert await committed(rig) == {("g0", 0): 45}
        await group.stop("a")

    Rig().run(scenario)


def test_two_callers_at_once_are_refused() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        group = PolledGroup(rig)
        member = group.run("a")
        await until(lambda: group.shares == {"a": [0]})
        with pytest.raises(InvalidArgumentError, match="one at a time"):
            await group.on(member, member.consumer.poll())
        await group.stop("a")

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({"bootstrap_servers": "x:1", "group_id": "g"}, "bootstrap"),
        ({"bootstrap": "x:1", "group_id": "g"}, "here it is group"),
        ({"bootstrap": "x:1", "group": "g", "enable_auto_commit": False}, "here it is auto_commit"),
        ({"bootstrap": "x:1", "group": "g", "auto_offset_reset": "earliest"}, 'consume_from_where="first" or "last"'),
        ({"bootstrap": "x:1", "group": "g", "nonsense": 1}, "no setting 'nonsense'"),
    ],
)
def test_a_setting_of_kafkas_clients_is_refused_with_our_name_of_it(settings: dict[str, Any], ours: str) -> None:
    with pytest.raises(TypeError, match=ours):
        Consumer(**settings)


def test_settings_of_confluents_client_are_refused_with_our_names() -> None:
    with pytest.raises(TypeError, match="'group_id'; here it is group"):
        Consumer({"group.id": "g"})  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [{"t": "*"}, 7, b"t"])
def test_what_are_no_topics_is_refused(topics: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Consumer("127.0.0.1:1", "g", topics)
