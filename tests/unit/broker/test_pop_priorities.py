"""Topics with priorities: which queue a receive begins at, and that no queue waits for ever behind those above it."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.groups.pop_turns import LOWER_FIRST, Turns
from dledger_client.aio import Message
from tests.unit.broker.test_pop import Consumer, Got, bodies
from tests.unit.client.sim_rig import Rig


def queues(count: int, group: str = "g") -> list[tuple[str, str, int]]:
    return [(group, "t", number) for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_every_queue_is_the_first_one_in_its_share_of_the_receives(count: int) -> None:
    turns = Turns()
    round_trip = LOWER_FIRST * (count - 1)
    for _ in range(3):
        orders = [turns.order(queues(count), priorities=True) for _ in range(round_trip)]
        firsts = Counter(order[0][2] for order in orders)
        assert firsts == {count - 1: round_trip - (count - 1)} | dict.fromkeys(range(count - 1), 1)
        for order in orders:
            numbers = [number for *_, number in order]
            assert sorted(numbers) == list(range(count))
            assert numbers[1:] == sorted(numbers[1:], reverse=True)


def test_a_group_has_turns_of_its_own_and_one_queue_is_always_first() -> None:
    turns = Turns()
    firsts: Counter[tuple[str, int]] = Counter()
    for number in range(2 * LOWER_FIRST):
        group = "ab"[number % 2]  # by turns: counted together, all receives that begin lower would be those of one group
        firsts[group, turns.order(queues(2, group), priorities=True)[0][2]] += 1
    assert firsts == {("a", 1): 7, ("a", 0): 1, ("b", 1): 7, ("b", 0): 1}
    assert all(turns.order(queues(1), priorities=True) == queues(1) for _ in range(LOWER_FIRST))
    assert {turns.order(queues(3), priorities=False)[0][2] for _ in range(3)} == {0, 1, 2}


async def send(rig: Rig, names: list[bytes], queue_id: int) -> None:
    async with rig.producer() as producer:
        for body in names:
            await producer.send(Message("t", body), queue_id=queue_id)


def test_the_most_urgent_messages_come_first() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3, priorities=True)
        for queue_id in range(3):
            await send(rig, [b"%d%d" % (queue_id, number) for number in range(2)], queue_id)
        consumer = Consumer(rig)
        assert bodies(await consumer.receive(5)) == [b"20", b"21", b"10", b"11", b"00"]
        await send(rig, [b"22"], 2)
        assert bodies(await consumer.receive(5)) == [b"22", b"01"]

    Rig().run(scenario)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_busy_queue_does_not_keep_a_lower_one_from_its_share(fifo: bool) -> None:
    """docs/reference/semantics, row B6.  One of the lowest queue that was given back comes as well, while the highest never runs dry."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3, priorities=True)
        round_trip = 2 * LOWER_FIRST
        await send(rig, [b"low%d" % number for number in range(2)], 0)
        await send(rig, [b"middle"], 1)
        await send(rig, [b"busy%d" % number for number in range(2 * round_trip)], 2)
        consumer = Consumer(rig)

        async def receives() -> list[Got]:
            found = []
            for _ in range(round_trip):
                (got,) = await consumer.receive(1, fifo=fifo)
                found.append(got)
                if got.lease.queue_id == 2:
                    await consumer.acknowledge([got])
            return found

        got = await receives()
        assert Counter(each.lease.queue_id for each in got) == {2: round_trip - 2, 1: 1, 0: 1}
        low = [each for each in got if each.body == b"low0"]
        await consumer.change(low, 0)
        assert [each.lease.attempt for each in await receives() if each.body == b"low0"] == [2]

    Rig().run(scenario)
