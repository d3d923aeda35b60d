"""The simple consumer against real nodes in virtual time: many on one queue, each message by itself, over several replica groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dledger_client.aio import LeasedMessage, Message, SimpleConsumer
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig


def simple(rig: Rig, **settings: Any) -> SimpleConsumer:
    with use_environment(**rig.around()):
        return SimpleConsumer(rig.cluster.bootstrap, "g", "t", **settings)


async def send(rig: Rig, count: int, first: int = 0) -> None:
    async with rig.producer() as producer:
        for number in range(first, first + count):
            await producer.send(Message("t", b"%d" % number, tags="ab"[number % 2]))


def bodies(messages: Sequence[LeasedMessage]) -> list[bytes]:
    return sorted(leased.body for leased in messages)


def test_receive_acknowledge_give_back_and_keep() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 4)
        async with simple(rig, invisible_s=5) as one, simple(rig) as other:
            got = await one.receive()
            assert (bodies(got), {leased.attempt for leased in got}) == ([b"0", b"1", b"2", b"3"], {1})
            assert got[0].message.topic == "t"
            assert await other.receive(wait_s=0.1) == []
            assert await one.ack(got[:1]) == []
            assert await one.nack(got[1:2]) == await one.nack(got[2:3], delay_s=20, uncounted=True) == []
            assert await one.extend(got[3:], 60) == []
            (back,) = await other.receive(wait_s=3)
            assert (back.body, back.attempt) == (b"1", 2)
            assert await one.ack([*got[:2], back]) == got[:2]
            (later,) = await other.receive(wait_s=30)
            assert (later.body, later.attempt) == (b"2", 1)
            assert await other.dead_letter([later]) == []
            assert await one.ack(got[3:]) == []
            assert await other.receive(wait_s=1) == []

    Rig().run(scenario)


def test_every_message_over_all_replica_groups_goes_to_one_of_many_consumers_while_masters_die() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        consumers = [simple(rig, invisible_s=30) for _ in range(6)]
        found: Counter[bytes] = Counter()
        doubtful: set[bytes] = set()  # acknowledged again, since the answer of the first time was lost

        async def consume(consumer: SimpleConsumer) -> None:
            nonlocal doubtful
            async for leased in consumer.messages(3):
                found[leased.body] += 1
                doubtful |= {late.body for late in await consumer.ack([leased])}

        consuming = [asyncio.create_task(consume(each)) for each in consumers]
        await send(rig, 60)
        await rig.restart(rig.master_of("g0"))
        await send(rig, 60, 60)
        async with asyncio.timeout(100):
            while len(found) < 120:  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.1)
            parts = await consumers[0]._current_parts()
        assert len(parts) == 2
        assert set(found) == {b"%d" % number for number in range(120)}
        assert {body for body, count in found.items() if count > 1} <= doubtful
        assert len(doubtful) < 10
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        for consumer in consumers:
            await consumer.close()

    Rig(groups=2).run(scenario)


def test_filters_and_wrong_arguments() -> None:
    async def scenario(rig: Rig) -> None:
        async with simple(rig) as consumer:
            with pytest.raises(TopicNotFoundError):
                await consumer.receive(wait_s=0)
        await rig.topic()
        await send(rig, 6)
        async with simple(rig, tags="b") as consumer:
            assert bodies(await consumer.receive()) == [b"1", b"3", b"5"]
            with pytest.raises(InvalidArgumentError):
                await consumer.receive(0)
        for wrong in ({"invisible_s": -1}, {"tags": "a || "}):
            with pytest.raises(InvalidArgumentError):
                simple(rig, **wrong)

    Rig().run(scenario)
