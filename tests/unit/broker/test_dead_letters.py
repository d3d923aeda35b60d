"""Dead letters against real nodes in virtual time: listed, opened, and redriven once whatever dies; and the settings of groups."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.send_back import DEAD_LETTER, SentBack
from dledger_client.aio import Admin, Message
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError, TopicPermissionError
from tests.unit.broker.test_send_back import DEAD, GROUP, RETRY, back, kill_masters, outcomes, send
from tests.unit.client.sim_rig import Rig


async def make_dead(rig: Rig, count: int, queues: int = 1) -> None:
    await rig.topic(queues=queues)
    await send(rig, count)
    assert set(outcomes(await back(rig, list(range(count)), level=DEAD_LETTER))) == {SentBack.DEAD}


async def the_letters(admin: Admin) -> DeadLetters:
    (found,) = await admin.dead_letters(GROUP)
    return found


async def bodies(rig: Rig, topic: str, queues: int = 1) -> list[bytes]:
    async with rig.consumer() as consumer:
        return [each.body for queue_id in range(queues) for each in await consumer.fetch(topic, queue_id, 0, 1000)]


def test_dead_letters_go_back_to_their_topic_as_they_were() -> None:
    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 3)
        async with rig.admin() as admin, rig.consumer() as consumer:
            assert await admin.dead_letters("nobody") == []
            found = await the_letters(admin)
            assert found == DeadLetters(GROUP, "g0", DEAD, 2, 0, 3, 0)
            assert await admin.redrive(found, count=2) == 2
            assert (await the_letters(admin)).waiting == 1
            assert await admin.redrive(found, count=2) == 2  # again: nothing more
            (first,), (again,) = await consumer.fetch("t", 0, 0, 1), await consumer.fetch("t", 0, 3, 1)
            assert (again.body, again.msg_id, again.keys, again.reconsume_times) == (first.body, first.msg_id, first.keys, 0)
            assert again.properties == first.properties
            assert await admin.redrive(await the_letters(admin)) == 1
            assert sorted(await bodies(rig, "t")) == [b"0", b"0", b"1", b"1", b"2", b"2"]

    Rig().run(scenario)


def test_who_reads_closed_dead_letters_is_told_what_opens_them() -> None:
    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 1)
        with pytest.raises(TopicPermissionError, match=rf"\(perm 2\): dledger dlq open {GROUP}$"):
            await bodies(rig, DEAD)

    Rig().run(scenario)


def test_a_redrive_to_the_group_alone_goes_to_its_retry_topic() -> None:
    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 2)
        async with rig.admin() as admin, rig.consumer() as consumer:
            assert await admin.redrive(await the_letters(admin), to_retry_topic=True) == 2
            found = await consumer.fetch(RETRY, 0, 0)
            assert [(each.body, each.reconsume_times, each.properties["RETRY_TOPIC"]) for each in found] == [(b"0", 0, "t"), (b"1", 0, "t")]
            assert await bodies(rig, "t") == [b"0", b"1"]

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_redrive_sends_none_twice_whoever_dies(seed: int) -> None:
    """docs/reference/semantics, row B3."""

    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 100, queues=3)
        async with rig.admin() as admin:
            await asyncio.gather(admin.redrive(await the_letters(admin), rate=100), kill_masters(rig))
            assert (await the_letters(admin)).waiting == 0
        assert sorted(await bodies(rig, "t", 3)) == sorted([b"%d" % number for number in range(100)] * 2)

    Rig(seed).run(scenario)


def test_a_redrive_keeps_its_rate() -> None:
    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 50)
        async with rig.admin() as admin:
            start = rig.cluster.loop.now_s
            assert await admin.redrive(await the_letters(admin), rate=10) == 50
            assert 4.5 <= rig.cluster.loop.now_s - start < 6

    Rig().run(scenario)


def test_dead_letters_of_a_replica_group_that_is_drained_go_back_and_are_read_there() -> None:
    """Else nobody could have them any more: the group is removed only when they are given up."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1, replica_group="g1")
        await send(rig, 2)
        assert set(outcomes(await back(rig, [0, 1], level=DEAD_LETTER))) == {SentBack.DEAD}
        async with rig.admin() as admin, rig.consumer() as consumer:
            left = (await admin.drain_replica_group("g1")).left
            assert "dead_letter" in {each.kind for each in left}
            assert await admin.redrive(await the_letters(admin)) == 2
            found = await consumer.fetch("t", 0, 2, replica_group="g1")
            assert [each.body for each in found] == [b"0", b"1"]
            await consumer.commit({("t", 0): 4}, replica_group="g1")
            assert (await admin.drain_replica_group("g1")).left == ()

    Rig(groups=2).run(scenario)


def test_a_dead_letter_whose_topic_is_gone_waits_and_says_so() -> None:
    """docs/reference/semantics, row B4."""

    async def scenario(rig: Rig) -> None:
        await make_dead(rig, 2)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError, match="came from topic 't', which does not exist"):
                await admin.redrive(await the_letters(admin))
            await admin.create_topic("t", queues=1)
            assert await admin.redrive(await the_letters(admin)) == 2
        assert await bodies(rig, "t") == [b"0", b"1"]

    Rig().run(scenario)


def test_settings_of_a_group_decide_and_survive() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 4)
        async with rig.admin() as admin, rig.consumer(group=GROUP) as consumer:
            changed = await admin.update_group(GROUP, retry_max_times=1, retry_queue_nums=2)
            assert (changed.retry_max_times, changed.retry_queue_nums, changed.consume_enable) == (1, 2, True)
            assert outcomes(await back(rig, [0, 1], level=1)) == [SentBack.RETRY] * 2
            assert (await admin.describe_topic(RETRY))[0].read_queues == 2
            assert [each.body for each in await consumer.fetch(RETRY, 0, 0, wait_ms=3000)] == [b"0"]
            rig.cluster.kill(rig.master)
            assert outcomes(await back(rig, [0], RETRY)) == [SentBack.DEAD]
            await admin.update_group(GROUP, consume_enable=False)
            assert [(each.name, each.retry_max_times) for each in await admin.group_settings()] == [(GROUP, 1)]
            with pytest.raises(TopicPermissionError, match="may not consume"):
                await consumer.fetch("t", 0, 0, linearizable=True)
            with pytest.raises(InvalidArgumentError, match="retryQueueNums 0"):
                await admin.update_group(GROUP, retry_queue_nums=0)

    Rig().run(scenario)


def test_a_long_poll_of_a_group_that_may_not_consume_any_more_gets_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin, rig.consumer(group=GROUP) as consumer:
            poll = asyncio.ensure_future(consumer.fetch("t", 0, 0, wait_ms=10_000))
            await asyncio.sleep(0.3)
            await admin.update_group(GROUP, consume_enable=False)
            await send(rig, 1)
            with pytest.raises(TopicPermissionError, match="may not consume"):
                await poll

    Rig().run(scenario)


def test_delayed_messages_can_be_sent_back_too() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"late", delay_level=1))
            assert len(await consumer.fetch("t", 0, 0, wait_ms=5000)) == 1
            assert outcomes(await back(rig, [0], level=2)) == [SentBack.RETRY]
            (found,) = await consumer.fetch(RETRY, 0, 0, wait_ms=8000)
            assert (found.body, found.reconsume_times) == (b"late", 1)

    Rig().run(scenario)
