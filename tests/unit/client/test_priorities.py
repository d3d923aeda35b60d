"""Messages with priorities, from producers to simple consumers, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dledger_client.aio import LeasedMessage, Message, TransactionState
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.priority import PRIORITY, priority_of
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_simple_consumer import bodies, simple


def test_an_urgent_message_is_received_before_those_that_were_sent_first() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3, priorities=True)
        async with rig.producer() as producer, simple(rig) as consumer:
            sent = [producer.send_async(Message("t", b"%d" % priority, priority=priority)) for priority in (0, 7, 1)]
            assert [(await each).queue_id for each in (*sent, producer.send_async(Message("t", b"none")))] == [0, 2, 1, 0]
            got = await consumer.receive(10)
            assert bodies(got) == [b"7", b"1", b"0", b"none"]
            assert [priority_of(message.properties) for message in got] == [7, 1, 0, 0]
            assert PRIORITY not in got[3].properties

    Rig().run(scenario)


def test_a_message_that_waits_keeps_its_priority() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2, priorities=True)
        async with rig.transactions(lambda _message: TransactionState.COMMIT) as producer, simple(rig) as consumer:
            await producer.send(Message("t", b"later", delay_level=1, priority=1))
            await producer.send_in_transaction(
                Message("t", b"with a transaction", priority=1), lambda _message, _argument: TransactionState.COMMIT
            )
            found: list[LeasedMessage] = []
            while len(found) < 2:
                found += await consumer.receive()
            assert sorted((each.body, each.queue_id) for each in found) == [(b"later", 1), (b"with a transaction", 1)]

    Rig().run(scenario)


def test_dead_letters_go_back_with_their_priority() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3, priorities=True)
        async with rig.producer() as producer, rig.admin() as admin, simple(rig) as consumer:
            for number in range(12):
                await producer.send(Message("t", b"%d" % (number % 4), priority=number % 4))
            got = await consumer.receive(20)
            assert set(await consumer.reject(got)) == {None}
            assert await admin.redrive((await admin.dead_letters("g"))[0]) == 12
            found: list[LeasedMessage] = []
            while len(found) < 12:
                found += await consumer.receive(20)
            assert sorted((each.body, each.queue_id) for each in found) == sorted((each.body, each.queue_id) for each in got)

    Rig().run(scenario)


def test_a_priority_for_a_topic_without_them_is_refused_and_one_that_is_made_again_with_them_takes_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer, rig.admin() as admin:
            with pytest.raises(InvalidArgumentError, match="topic t has no priorities"):
                await producer.send(Message("t", b"urgent", priority=1))
            await producer.send(Message("t", b"plain"))
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=2, priorities=True)

            placed = None
            while placed is None:  # until it looks the topic up again, in virtual time
                await asyncio.sleep(1)
                with contextlib.suppress(InvalidArgumentError):
                    placed = await producer.send(Message("t", b"urgent", priority=1))
            assert placed.queue_id == 1

    Rig().run(scenario)
