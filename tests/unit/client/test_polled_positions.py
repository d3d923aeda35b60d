"""Where polled consumers read: seek, pause, position and lag, against real nodes in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message, MessageQueue
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from tests.unit.client.poll_rig import PolledGroup, PolledMember
from tests.unit.client.push_rig import numbers, send
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_polled import committed

Q0, Q1 = MessageQueue("t", "g0", 0), MessageQueue("t", "g0", 1)


async def polled(group: PolledGroup, member: PolledMember, count: int) -> list[bytes]:
    """So many messages, by as many polls as it takes."""
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in await group.on(member, member.consumer.poll(count - len(found)))]
    return found


def test_a_seek_gives_messages_again_and_passes_over_others() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 100)
        group = PolledGroup(rig)
        member = group.add("a")
        consumer = member.consumer
        assert [each.body for each in await group.poll(member, 100, 30)] == numbers(30)
        assert consumer.position(Q0) == 30
        await group.on(member, consumer.seek(Q0, 10))
        assert consumer.position(Q0) == 10
        assert await polled(group, member, 20) == numbers(20, 10)
        await group.on(member, consumer.seek(Q0, 90))
        assert await polled(group, member, 10) == numbers(10, 90)
        assert await group.on(member, consumer.poll(timeout_ms=1_500)) == []
        assert await committed(rig) == {("g0", 0): 100}
        await group.stop("a")

    Rig().run(scenario)


def test_a_seek_back_to_a_message_that_failed_commits_nothing_behind_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        group = PolledGroup(rig)
        member = group.add("a")
        tries: list[int] = []

        async def work() -> None:
            async for message in member.consumer:
                tries.append(message.queue_offset)
                if message.queue_offset == 7:
                    if len(tries) == 8:
                        await member.consumer.seek(Q0, 7)
                        await asyncio.sleep(2)
                    else:
                        await asyncio.sleep(2)
                        return

        await group.on(member, work())
        assert tries == [*range(8), 7]
        assert await committed(rig) == {("g0", 0): 7}
        await group.stop("a")
        assert await committed(rig) == {("g0", 0): 7}

    Rig().run(scenario)


def test_a_seek_at_the_end_of_a_queue_does_not_wait_for_the_fetch_that_waits_there() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 10)
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 10)
        assert await group.on(member, member.consumer.poll(timeout_ms=100)) == []
        begun_s = rig.cluster.loop.now_s
        await group.on(member, member.consumer.seek_to_beginning())
        assert await polled(group, member, 10) == numbers(10)
        assert rig.cluster.loop.now_s - begun_s < 0.5
        await group.stop("a")

    Rig().run(scenario)


def test_a_seek_to_a_time_and_to_the_end() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 20, 2)
        await asyncio.sleep(5)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"later"), queue_id=1)
        async with rig.consumer() as reader:
            then_ms = (await reader.fetch("t", 1, 10))[0].store_timestamp
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 21, 1)
        await group.on(member, member.consumer.seek_to_time(then_ms))
        assert await polled(group, member, 1) == [b"later"]
        assert await group.on(member, member.consumer.poll(timeout_ms=500)) == []
        await group.on(member, member.consumer.seek_to_beginning(Q0))
        await group.on(member, member.consumer.seek_to_end(Q0))
        await send(rig, 1, 1, first=77)
        assert await polled(group, member, 1) == [b"77"]
        await group.stop("a")

    Rig().run(scenario)


def test_on_assigned_may_seek_before_the_first_message() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 20)
        group = PolledGroup(rig)

        async def seeks(queues: list[MessageQueue]) -> None:
            await member.consumer.seek(queues[0], 15)

        member = group.add("a", on_assigned=seeks)
        assert await polled(group, member, 5) == numbers(5, 15)
        await group.stop("a")

    Rig().run(scenario)


@pytest.mark.parametrize("offset", [21, 1_000_000])
def test_a_seek_outside_of_a_queue_is_refused_and_moves_nothing(offset: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 20)
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 20, 5)
        with pytest.raises(OffsetOutOfRangeError, match="outside 0 to 20"):
            await group.on(member, member.consumer.seek(Q0, offset))
        with pytest.raises(InvalidArgumentError, match="not assigned"):
            await group.on(member, member.consumer.seek(Q1, 0))
        assert await polled(group, member, 15) == numbers(15, 5)
        await group.stop("a")

    Rig().run(scenario)


def test_a_paused_queue_gives_nothing_until_it_is_resumed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 40, 2)
        group = PolledGroup(rig)
        member = group.add("a")
        consumer = member.consumer
        await group.on(member, consumer.start())
        first: list[bytes] = []

        async def loop_until(count: int) -> None:
            async for message in consumer:
                first.append(message.body)
                if len(first) == 1:
                    consumer.pause(Q0)
                if len(first) == count:
                    return

        await group.poll(member, 40, 1)
        await group.on(member, consumer.seek_to_beginning())
        await group.on(member, loop_until(20))
        assert len([body for body in first if int(body) % 2]) >= 19
        assert consumer.paused() == [Q0]
        consumer.resume()
        rest = 40 - len(first)
        found = await polled(group, member, rest)
        assert sorted(first + found) == sorted(numbers(40))
        assert consumer.paused() == []
        await group.stop("a")

    Rig().run(scenario)


def test_lag_counts_what_was_not_returned_yet() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 40, 2)
        group = PolledGroup(rig)
        member = group.add("a")
        await group.poll(member, 40, 25)
        assert sum((await group.on(member, member.consumer.lag())).values()) == 15
        await polled(group, member, 15)
        assert await group.on(member, member.consumer.lag()) == {Q0: 0, Q1: 0}
        await group.stop("a")

    Rig().run(scenario)
