"""Quotas on Fetch requests of whole nodes: readers get their rate, without errors and without a change of replica."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import PullConsumer
from dledger_wire.errors import InvalidArgumentError
from tests.unit.client.sim_rig import Rig

RATE = 200
STORED = 1000


async def store(rig: Rig, topic: str = "t", count: int = STORED) -> None:
    await rig.topic(topic)
    async with rig.producer() as producer:
        await producer.send_many(topic, [b"%d" % number for number in range(count)], queue_id=0)


async def read_all(consumer: PullConsumer, topic: str = "t", count: int = STORED) -> float:
    """How long it takes to read the topic, in seconds."""
    loop, offset = asyncio.get_running_loop(), 0
    began_s = loop.time()
    while offset < count:
        batch = await consumer.fetch(topic, 0, offset, min(32, count - offset), wait_ms=1000)
        assert [message.queue_offset for message in batch] == list(range(offset, offset + len(batch)))
        offset += len(batch)
    return loop.time() - began_s


def limited_s(count: int = STORED, rate: float = RATE) -> float:
    return (count - rate) / rate


def test_a_topic_is_read_at_its_rate_and_another_topic_is_not_slowed() -> None:
    async def scenario(rig: Rig) -> None:
        await store(rig)
        await store(rig, "free")
        async with rig.admin() as admin, rig.consumer() as one, rig.consumer() as other:
            await admin.set_quota("topic", "t", fetch_messages=RATE)
            slow_s, free_s = await asyncio.gather(read_all(one), read_all(other, "free"))
            assert slow_s == pytest.approx(limited_s(), rel=0.1)
            assert free_s < 1
            (quota,) = await admin.list_quotas()
            (use,) = quota.used
            assert (use.name, use.node, use.used["fetch_messages"] > RATE / 2) == ("t", rig.master, True)
            assert use.throttled_s > 0.8 * limited_s()
            await admin.delete_quota("topic", "t")
            assert await read_all(one) < 1

    Rig().run(scenario)


def test_bytes_that_are_read_are_limited() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [bytes([number]) * 1000 for number in range(100)], queue_id=0)
            await admin.set_quota("topic", "*", fetch_bytes=10_000)
            assert 100 * 1000 / 10_000 - 1 < await read_all(consumer, count=100) < 100 * 1300 / 10_000

    Rig().run(scenario)


@pytest.mark.parametrize("readers", [2, 20])
def test_readers_of_a_group_share_its_rate_and_no_replica_is_taken_for_silent(readers: int) -> None:
    async def scenario(rig: Rig) -> None:
        await store(rig)
        consumers = [rig.consumer(group="audit") for _ in range(readers)]
        async with rig.admin() as admin:
            await admin.set_quota("consumer-group", "audit", fetch_messages=RATE)
            took = await asyncio.gather(*(read_all(consumer, count=STORED // readers) for consumer in consumers))
            assert max(took) == pytest.approx(limited_s(), rel=0.2)
            (quota,) = await admin.list_quotas()
            assert {use.node for use in quota.used} == {rig.master}, "nothing was read elsewhere"
        for consumer in consumers:
            await consumer.close()

    Rig().run(scenario)


def test_long_reads_are_delayed_between_chunks() -> None:
    async def scenario(rig: Rig) -> None:
        await store(rig)
        async with rig.admin() as admin, rig.consumer(group="audit") as consumer:
            await admin.set_quota("consumer-group", "*", fetch_messages=RATE)
            loop = asyncio.get_running_loop()
            began_s, read = loop.time(), 0
            async for chunk in consumer.read_chunks("t", 0, 0, STORED, replica_group="g0"):
                read += chunk.count
            assert read == STORED
            assert loop.time() - began_s == pytest.approx(limited_s(), rel=0.1)

    Rig().run(scenario)


def test_a_message_that_is_larger_than_the_rate_is_read_all_the_same() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [bytes(1000)] * 10, queue_id=0)
            await admin.set_quota("topic", "t", fetch_bytes=100)
            assert await read_all(consumer, count=10) < 30, "each waits for a second at most: clients wait no longer"

    Rig().run(scenario)


def test_groups_have_limits_of_their_direction() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            with pytest.raises(
                InvalidArgumentError, match="fetch_messages of a producer-group: expected produce_bytes or produce_messages"
            ):
                await admin.set_quota("producer-group", "tests", fetch_messages=1)
            with pytest.raises(InvalidArgumentError, match="produce_bytes of a consumer-group: expected fetch_bytes or fetch_messages"):
                await admin.set_quota("consumer-group", "tests", produce_bytes=1)

    Rig().run(scenario)
