"""Searches over several replica groups: by key, id and time, traces, transactions and dead letters, also while one does not answer."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message, TransactionState
from dledger_client.types import Trace
from dledger_wire.errors import DledgerError
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_topics_over_groups import kill_group


def test_messages_are_found_in_every_group_and_a_dead_one_is_named() -> None:
    """docs/reference/semantics, row G8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.admin() as admin, rig.producer() as producer:
            sent = [await producer.send(Message("t", b"x", keys="same"), queue_key=lambda _, place=place: place) for place in (0, 1)]
            assert [result.replica_group for result in sent] == ["g0", "g1"]
            await asyncio.sleep(1)

            async def groups_of(**how: object) -> list[str]:
                found = await admin.query_by_key("t", "same") if how == {} else await admin.query_by_time("t", 0)
                assert found.complete
                return sorted(message.replica_group for message in found.messages)

            assert await groups_of() == await groups_of(time=True) == ["g0", "g1"]
            for result in sent:
                (found,) = (await admin.query_by_id(result.msg_id)).messages
                assert found.replica_group == result.replica_group
                (copy,) = (await admin.trace(msg_id=result.msg_id)).copies
                assert (await admin.query_by_id(copy.message.offset_msg_id)).messages[0].replica_group == result.replica_group
            kill_group(rig, "g1")
            for query in (admin.query_by_key("t", "same"), admin.query_by_time("t", 0), admin.trace(topic="t", key="same")):
                answer = await query
                assert not answer.complete
                assert list(answer.unanswered) == ["g1"]
                messages = [copy.message for copy in answer.copies] if isinstance(answer, Trace) else answer.messages
                assert [message.replica_group for message in messages] == ["g0"]
            gone = await admin.query_by_id(sent[1].msg_id)
            assert (gone.messages, list(gone.unanswered)) == ([], ["g1"])
            kill_group(rig, "g0")
            with pytest.raises(DledgerError):
                await admin.query_by_key("t", "same")

    Rig(groups=2).run(scenario)


def test_transactions_and_delays_are_kept_by_the_group_of_their_queue() -> None:
    """docs/reference/semantics, rows X1, D1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        checked: list[bytes] = []

        def check(message: object) -> TransactionState:
            checked.append(message.body)  # type: ignore[attr-defined]
            return TransactionState.COMMIT

        async with rig.admin() as admin, rig.transactions(check, sticky_messages=1) as producer:
            for number in range(4):
                await producer.send_in_transaction(Message("t", b"half %d" % number), lambda *_: TransactionState.UNKNOWN)
            opened = await admin.transactions()
            assert {each.replica_group: each.open for each in opened} == {"g0": 2, "g1": 2}
            for number in range(4):
                await producer.send(Message("t", b"later %d" % number, delay_level=1))
            bodies: set[bytes] = set()
            async with rig.consumer() as consumer:
                while len(bodies) < 8:
                    for (group, queue_id), held in (await consumer.offsets("t")).items():
                        if held.max_offset:
                            found = await consumer.fetch("t", queue_id, 0, 100, replica_group=group)
                            bodies |= {message.body for message in found}
                    await asyncio.sleep(0.5)
            assert bodies == {*(b"half %d" % n for n in range(4)), *(b"later %d" % n for n in range(4))}
            assert sorted(checked) == [b"half %d" % n for n in range(4)]
            kill_group(rig, "g1")
            partial = await admin.transactions(partial=True)
            assert ([each.replica_group for each in partial], list(partial.unanswered)) == (["g0"], ["g1"])

    Rig(groups=2).run(scenario)


def test_dead_letters_of_two_groups_are_listed_and_sent_again() -> None:
    """docs/reference/semantics, row B3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.admin() as admin, rig.producer() as producer, rig.consumer("audit") as consumer:
            for place in (0, 1):
                result = await producer.send(Message("t", b"x"), queue_key=lambda _, place=place: place)
                await consumer.send_back("t", result.queue_id, [result.queue_offset], replica_group=result.replica_group, delay_level=-1)
            letters = await admin.dead_letters("audit")
            assert [(each.replica_group, each.waiting) for each in letters] == [("g0", 1), ("g1", 1)]
            assert [await admin.redrive(each) for each in letters] == [1, 1]
            held = await consumer.offsets("t")
            assert {place: offsets.max_offset for place, offsets in held.items()} == {("g0", 0): 2, ("g1", 0): 2}
            kill_group(rig, "g1")
            await until(lambda: True)
            assert list((await admin.dead_letters(partial=True)).unanswered) == ["g1"]

    Rig(groups=2).run(scenario)


def test_offsets_of_the_groups_that_answer() -> None:
    """docs/reference/semantics, row G8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with rig.consumer("audit") as consumer:
            places = [("g0", 0), ("g0", 1), ("g1", 0)]
            assert sorted(await consumer.offsets("t")) == places
            for group, queue_id in places:
                await consumer.commit({("t", queue_id): 0}, replica_group=group)
            assert sorted(await consumer.committed("t")) == places
            kill_group(rig, "g1")
            assert sorted(await consumer.offsets("t", partial=True)) == sorted(await consumer.committed("t", partial=True)) == places[:2]
            with pytest.raises(DledgerError):
                await consumer.offsets("t")
            kill_group(rig, "g0")
            with pytest.raises(DledgerError):
                await consumer.offsets("t", partial=True)

    Rig(groups=2).run(scenario)
