"""Simple consumers against real nodes in virtual time: messages that are received, acknowledged, kept, given back and moved one by one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest

from dledger_client.aio import LeasedMessage, Message, SimpleConsumer
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError, StaleReceiptError, TopicNotFoundError
from dledger_wire.java_hash import java_hash
from tests.unit.client.sim_rig import Rig, context_of, until


def simple(rig: Rig, topics: Any = "t", **settings: Any) -> SimpleConsumer:
    with use_environment(**rig.around()):
        return SimpleConsumer(rig.cluster.bootstrap, "g", topics, **{"invisible_ms": 5_000, "wait_ms": 2_000} | settings)


async def send(rig: Rig, bodies: Sequence[bytes], topic: str = "t", *, queue: Any = None, **more: Any) -> None:
    async with rig.producer() as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more), queue_id=queue)


def bodies(messages: Sequence[LeasedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_message_is_one_consumers_until_it_is_acknowledged_or_its_time_ends() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0", b"1", b"2"])
        async with simple(rig) as one, simple(rig) as other:
            got = await one.receive(2)
            assert [(each.body, each.attempt, each.queue_offset) for each in got] == [(b"0", 1, 0), (b"1", 1, 1)]
            assert bodies(await other.receive()) == [b"2"]
            await other.ack(got[1])
            start_s = rig.cluster.loop.now_s
            again = await other.receive(wait_ms=20_000)
            assert 3 < rig.cluster.loop.now_s - start_s < 6
            assert sorted((each.body, each.attempt) for each in again) in ([(b"0", 2)], [(b"0", 2), (b"2", 2)])
            with pytest.raises(StaleReceiptError):
                await one.ack(got[0])
            errors = await one.ack([got[0], again[0], got[1]])
            assert [type(error) for error in errors] == [StaleReceiptError, type(None), StaleReceiptError]

    Rig().run(scenario)


def test_messages_are_kept_longer_given_back_and_moved_to_the_dead_letters() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"keep", b"back", b"later", b"dead"])
        async with simple(rig) as consumer, rig.admin() as admin:
            keep, back, later, dead = await consumer.receive()
            await consumer.extend(keep, 60_000)
            await consumer.reject(dead)
            await consumer.nack(later, delay_ms=10_000)
            await consumer.nack(back)
            (again,) = await consumer.receive(wait_ms=0)
            assert (again.body, again.attempt) == (b"back", 2)
            await consumer.ack([again])
            start_s = rig.cluster.loop.now_s
            (again,) = await consumer.receive(wait_ms=20_000)
            assert again.body == b"later"
            assert 8 < rig.cluster.loop.now_s - start_s < 11
            await consumer.ack([again, keep])
            assert await consumer.receive(wait_ms=7_000) == []
            assert context_of(rig, rig.master).store.consumer_offsets.known_position("g", "t", 0) == 4
            assert sum(letters.waiting for letters in await admin.dead_letters("g")) == 1

    Rig().run(scenario)


def test_replica_groups_topics_and_queues_take_turns_and_nothing_that_came_is_lost() -> None:
    async def scenario(rig: Rig) -> None:
        for topic in ("t", "u"):
            await rig.topic(topic, queues=4)
            for group in ("g0", "g1"):
                for queue_id in range(2):
                    await send(rig, [f"{topic}{group}{queue_id}{n}".encode() for n in range(5)], topic, queue=(group, queue_id))
        async with simple(rig, ["t", "u"], max_messages=3) as consumer:
            found: list[LeasedMessage] = []
            while len(found) < 40:
                got = await consumer.receive()
                assert 0 < len(got) <= 3
                found += got
                await consumer.ack(got)
            first = {(each.topic, each.replica_group) for each in found[:15]}
            assert len(first) == 4, "none starves"
            assert len(set(bodies(found))) == 40
            assert await consumer.receive(wait_ms=6_000) == []

    Rig(groups=2).run(scenario)


def test_messages_in_hand_for_long_are_still_this_consumers_when_they_are_handed_out() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % n for n in range(4)])
        async with simple(rig, invisible_ms=4_000) as consumer, simple(rig, wait_ms=0) as other:
            found = []
            async for message in consumer:
                found.append(message.body)
                await asyncio.sleep(2.5)
                await consumer.ack(message)
                if len(found) == 4:
                    break
            assert found == [b"0", b"1", b"2", b"3"]
            assert await other.receive() == []

    Rig().run(scenario)


def test_filters_by_tag_and_by_sql_and_tags_of_the_same_hash() -> None:
    assert java_hash("Aa") == java_hash("BB")

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("u")
        await send(rig, [b"0"], tags="Aa")
        await send(rig, [b"1"], tags="BB")
        await send(rig, [b"2"], tags="c")
        await send(rig, [b"3"], "u", properties={"amount": "5"})
        await send(rig, [b"4"], "u", properties={"amount": "50"})
        async with simple(rig, ()) as consumer:
            consumer.subscribe("t", "BB || d")
            assert bodies(await consumer.receive()) == [b"1"]
            assert await consumer.receive(wait_ms=7_000) != [], "it was not acknowledged"
        async with simple(rig, ()) as consumer:
            consumer.subscribe("u", sql="amount > 10")
            got = await consumer.receive()
            assert bodies(got) == [b"4"]
            await consumer.ack(got)
            assert await consumer.receive(wait_ms=7_000) == []
            consumer.subscribe("u", sql="amount >")
            with pytest.raises(InvalidArgumentError):
                await consumer.receive()

    Rig().run(scenario)


def test_consumers_that_iterate_share_one_queue_through_a_change_of_leaders() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % n for n in range(60)])
        acknowledged: list[bytes] = []
        async with simple(rig, max_messages=4) as one, simple(rig, max_messages=4) as other:

            async def consume(consumer: SimpleConsumer) -> None:
                async for message in consumer:
                    await asyncio.sleep(0.05)
                    try:
                        await consumer.ack(message)
                    except DledgerError:
                        continue
                    acknowledged.append(message.body)

            tasks = [asyncio.create_task(consume(consumer)) for consumer in (one, other)]
            await until(lambda: len(acknowledged) > 15)
            await rig.restart(rig.master)
            await until(lambda: len(set(acknowledged)) == 60)
            await one.close()
            await other.close()
            await asyncio.gather(*tasks)
        assert len(acknowledged) == 60, "nothing comes again after its acknowledgement"

    Rig().run(scenario)


def test_a_close_ends_what_waits_and_gives_back_what_was_not_handed_out_uncounted() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = simple(rig, wait_ms=60_000)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await consumer.receive()
        await asyncio.sleep(6)  # no cancellation reaches a node here
        await send(rig, [b"0", b"1", b"2"])
        async with simple(rig, invisible_ms=60_000) as first:
            async for message in first:
                await first.ack(message)
                break
        async with simple(rig, wait_ms=0) as second:
            got = await second.receive()
            assert [(each.body, each.attempt) for each in got] == [(b"1", 1), (b"2", 1)]

    Rig().run(scenario)


def test_acknowledgements_at_the_same_time_share_calls_and_a_cancelled_caller_loses_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % n for n in range(100)])
        async with simple(rig) as consumer:
            got = await consumer.receive(100)
            assert len(got) == 100
            calls = 0
            plain = consumer._receipts._call

            async def counted(*given: Any) -> Any:
                nonlocal calls
                calls += 1
                return await plain(*given)

            consumer._receipts._call = counted  # type: ignore[assignment,method-assign]
            tasks = [asyncio.create_task(consumer.ack(message)) for message in got]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert calls <= 2
            assert await consumer.receive(wait_ms=6_000) == []
            waiting = asyncio.create_task(consumer.receive(wait_ms=4_000))
            await asyncio.sleep(1)
            waiting.cancel()
            await send(rig, [b"late"])
            assert bodies(await consumer.receive(wait_ms=1_000)) == [b"late"]

    Rig().run(scenario)


def test_an_acknowledgement_whose_answer_was_lost_is_not_called_stale() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0"])
        async with simple(rig) as consumer:
            (message,) = await consumer.receive()
            plain = consumer._router.call_leader

            async def lossy(group: str, method: Any, request: Any, **more: Any) -> Any:
                await plain(group, method, request, deadline_ms=more["deadline_ms"])
                more["lost"].append(DledgerError("lost"))
                return await plain(group, method, request, **more)

            consumer._router.call_leader = lossy  # type: ignore[method-assign]
            (error,) = await consumer.ack([message])
            assert error is not None
            assert error.outcome_unknown
            assert not isinstance(error, StaleReceiptError)

    Rig().run(scenario)


def test_what_is_wrong_is_said_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        for settings in ({"invisible_ms": 10}, {"max_messages": 0}, {"orderly": "yes"}, {"consume_from_where": "middle"}, {"wait_ms": -1}):
            with pytest.raises(InvalidArgumentError):
                simple(rig, **settings)
        async with simple(rig, ()) as consumer:
            with pytest.raises(InvalidArgumentError, match="at least one topic"):
                await consumer.receive()
        async with simple(rig) as consumer:
            with pytest.raises(TopicNotFoundError):
                await consumer.receive()
            await rig.topic()
            await send(rig, [b"0" * 5000])
            (message,) = await consumer.receive()
            copied = copy.copy(message)
            assert (copied.body, copied.lease, copied.attempt) == (message.body, message.lease, 1)
            await consumer.ack(copied)
            with pytest.raises(InvalidArgumentError):
                await consumer.ack([b"0"])  # type: ignore[list-item]

    Rig().run(scenario)
