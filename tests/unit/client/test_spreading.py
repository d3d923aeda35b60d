"""Messages without a key go round the queues of their topic, whatever way they take there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_client.aio import Message, TransactionState
from dledger_client.producer.batches import QueueBatcher
from dledger_client.producer.latency_fault import LatencyFaultTolerance
from dledger_client.producer.partitioner import Partitioner
from dledger_client.producer.settings import LATENCY_MAX, NOT_AVAILABLE_DURATION
from tests.unit.client.sim_rig import Rig

QUEUES, MESSAGES = 4, 40


async def arrived(rig: Rig, count: int) -> dict[int, int]:
    """Messages of the topic by queue, once ``count`` are there."""
    async with rig.consumer() as consumer:
        while True:
            held = {queue_id: offsets.max_offset for (_, queue_id), offsets in (await consumer.offsets("t")).items()}
            if sum(held.values()) >= count:
                return held
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("how", ["plain", "level", "time", "transaction"])
@pytest.mark.parametrize("at_once", [False, True])
def test_messages_without_a_key_are_spread_over_the_queues(how: str, at_once: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=QUEUES)

        def message() -> Message:
            later_ms = rig.cluster.hosts[rig.master].clock.wall_ms() + 1000
            return Message("t", b"x", delay_level=int(how == "level"), deliver_at_ms=later_ms if how == "time" else 0)

        async with rig.transactions(lambda _: TransactionState.COMMIT, sticky_messages=1) as producer:
            sends: list[Coroutine[Any, Any, object]]
            if how == "transaction":
                sends = [producer.send_in_transaction(message(), lambda *_: TransactionState.COMMIT) for _ in range(MESSAGES)]
            else:
                sends = [producer.send(message()) for _ in range(MESSAGES)]
            if at_once:
                await asyncio.gather(*sends)
            else:
                for send in sends:
                    await send
        assert await arrived(rig, MESSAGES) == dict.fromkeys(range(QUEUES), MESSAGES // QUEUES)

    Rig().run(scenario)


def test_many_messages_at_once_are_no_single_batch_of_one_queue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=QUEUES)
        async with rig.producer() as producer:
            await asyncio.gather(*[producer.send_async(Message("t", b"x")) for _ in range(1000)])
        held = await arrived(rig, 1000)
        assert max(held.values()) - min(held.values()) <= 200, held

    Rig().run(scenario)


def test_staged_messages_pass_over_groups_that_answer_badly() -> None:
    now = SimpleNamespace(ms=0)
    latency = LatencyFaultTolerance(LATENCY_MAX, NOT_AVAILABLE_DURATION, lambda: int(now.ms), enabled=True)
    topic = Partitioner([QueueBatcher("t", group, queue_id) for group in ("a", "b") for queue_id in range(2)], 0, latency)
    sticky = topic.sticky
    assert Counter(topic.next_staged().replica_group for _ in range(8)) == {"a": 4, "b": 4}
    latency.failed("a")
    assert {topic.next_staged().replica_group for _ in range(8)} == {"b"}
    assert topic.sticky is sticky  # batches of other messages are not cut short by it
