"""Producers on topics over several replica groups: balance, groups without a leader, and the queue of a key."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dledger_client.aio import Message, Producer, SendResult
from dledger_wire.errors import DledgerError, NotSentError
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_topics_over_groups import kill_group, start_group

KEYS = [f"key-{number}" for number in range(40)]


def place(result: SendResult) -> tuple[str, int]:
    return result.replica_group, result.queue_id


async def queues_of_keys(producer: Producer) -> dict[str, tuple[str, int]]:
    """Where each key goes, as far as its queue takes messages."""
    results = await asyncio.gather(*(producer.send(Message("t", b"k"), key) for key in KEYS), return_exceptions=True)
    return {key: place(result) for key, result in zip(KEYS, results, strict=True) if isinstance(result, SendResult)}


def test_messages_are_balanced_over_the_queues_of_all_groups() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=5)
        async with rig.producer(sticky_messages=1) as producer:
            counts = Counter([place(await producer.send(Message("t", b"x"))) for _ in range(50)])
            assert counts == {("g0", 0): 10, ("g0", 1): 10, ("g0", 2): 10, ("g1", 0): 10, ("g1", 1): 10}
            async with rig.admin() as admin:
                await admin.update_topic("t", queues=6)
            producer._core.routes.mark_stale()
            await asyncio.sleep(2)
            counts = Counter([place(await producer.send(Message("t", b"x"))) for _ in range(60)])
            assert len(counts) == 6

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("at_once", [True, False])
def test_messages_without_a_key_go_around_a_group_without_a_leader(at_once: bool) -> None:
    """docs/reference/semantics, row P6."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer(retryAnotherBrokerWhenNotStoreOK=at_once, linger_ms=20, sticky_messages=10) as producer:
            for _ in range(20):
                await producer.send(Message("t", b"before"))
            waiting = [producer.send_async(Message("t", b"%d" % number)) for number in range(100)]
            kill_group(rig, "g1")
            began_s = rig.cluster.loop.now_s
            results = await asyncio.gather(*waiting, return_exceptions=True)
            took_s = rig.cluster.loop.now_s - began_s
            sent_before = [each for each in results if not isinstance(each, SendResult)]
            assert all(isinstance(each, DledgerError) and each.outcome_unknown for each in sent_before), sent_before
            assert took_s < 11
            began_s = rig.cluster.loop.now_s
            for _ in range(30):
                assert (await producer.send(Message("t", b"after"))).replica_group == "g0"
            assert rig.cluster.loop.now_s - began_s < 5

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("at_once", [True, False])
def test_messages_never_sent_leave_a_group_without_a_leader(at_once: bool) -> None:
    """docs/reference/semantics, row P6."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer(retryAnotherBrokerWhenNotStoreOK=at_once, linger_ms=200) as producer:
            await producer.send(Message("t", b"before"))
            sticky = producer._core.accumulator._topics["t"].sticky.replica_group
            free, bound = producer.send_async(Message("t", b"free")), producer.send_async(Message("t", b"bound"), queue_key=lambda _: 1)
            kill_group(rig, sticky)
            began_s = rig.cluster.loop.now_s
            other = "g0" if sticky == "g1" else "g1"
            assert (await free).replica_group == other
            took_s = rig.cluster.loop.now_s - began_s
            assert took_s < (1.0 if at_once else 3.0)
            if sticky == "g1":
                with pytest.raises(NotSentError):
                    await bound
            else:
                assert (await bound).replica_group == "g1"

    Rig(groups=2).run(scenario)


def test_a_key_keeps_its_queue_while_a_group_is_away() -> None:
    """docs/reference/semantics, row P11."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=5)
        async with rig.producer(sendMsgTimeout=3000) as old:
            before = await queues_of_keys(old)
            assert set(before.values()) == {("g0", 0), ("g0", 1), ("g0", 2), ("g1", 0), ("g1", 1)}
            kill_group(rig, "g1")
            during = await queues_of_keys(old)
            assert during
            assert during == {key: queue for key, queue in before.items() if queue[0] == "g0"}
            async with rig.producer(sendMsgTimeout=3000) as new:  # it never saw the replica group that is dead
                assert (await new.send(Message("t", b"free"))).replica_group == "g0"
                fresh = await queues_of_keys(new)
                assert fresh.items() <= before.items()
                if not fresh:
                    with pytest.raises(NotSentError, match="g1 did not answer, so the queues of its keys are not known"):
                        await new.send(Message("t", b"x"), KEYS[0])
                await start_group(rig, "g1")
                await asyncio.sleep(3)
                assert await queues_of_keys(new) == before
            assert await queues_of_keys(old) == before

    Rig(groups=2).run(scenario)
