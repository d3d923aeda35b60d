"""A leader that says nothing any more: the other nodes are asked quickly, and never so often that it costs them much."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from dledger_client.aio import Message
from dledger_client.cluster.routes import Node, ReplicaGroup, RouteCache
from dledger_client.cluster.silent_leaders import LONGEST_GAP_S, QUICK, SilentLeaders
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import UnreachableError
from dledger_wire.rpc import methods
from tests.sim.clock import SimClock
from tests.sim.loop import SimLoop
from tests.unit.client.sim_rig import Rig, until

NODES = tuple(Node(f"n{number}", f"10.0.0.{number}:1", True) for number in range(3))
LEADER = NODES[0].address


class Answers:
    """Stands for ``NodeMetadata``: counts the questions, and answers each after ``answer_s``."""

    def __init__(self, cache: RouteCache, answer_s: float) -> None:
        self._cache, self._answer_s = cache, answer_s
        self.asked: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most_under_way = 0

    def addresses_of(self, group: str) -> list[str]:
        return self._cache.node_addresses([group])

    async def ask(self, address: str, _topics: list[str]) -> None:
        self.asked[address] += 1
        self.under_way[address] += 1
        self.most_under_way = max(self.most_under_way, self.under_way[address])
        try:
            await asyncio.sleep(self._answer_s)
            if self._answer_s >= 1:
                raise UnreachableError("no answer")
        finally:
            self.under_way[address] -= 1


def silence(silent_s: float, answer_s: float, then: Callable[[RouteCache], None] | None = None) -> Answers:
    """What is asked while a leader says nothing for ``silent_s``; ``then`` happens after the first second."""
    loop = SimLoop()
    cache = RouteCache()
    cache.set_group(ReplicaGroup("g0", 1, "n0", LEADER, NODES))
    nodes = Answers(cache, answer_s)

    async def scenario() -> None:
        leaders = SilentLeaders(nodes, cache, SimClock(loop))  # type: ignore[arg-type]
        end, at_one = loop.time() + silent_s, loop.time() + 1
        while loop.time() < end:
            leaders.ask_others("g0", LEADER)
            await asyncio.sleep(0.02)
            if then is not None and loop.time() >= at_one:
                then(cache)
        await asyncio.sleep(1.5)
        asked = nodes.asked.total()
        await asyncio.sleep(2)
        assert nodes.asked.total() == asked, "nobody wants to know any more"
        await leaders.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return nodes


def test_quick_at_first_and_slow_when_it_takes_long() -> None:
    assert 35 <= silence(1.0, 0.001).asked.total() <= QUICK + 5
    assert silence(20.0, 0.001).asked.total() <= QUICK + 20 / LONGEST_GAP_S + 5


def test_the_silent_one_is_not_asked_and_the_others_in_turn() -> None:
    asked = silence(5.0, 0.001).asked
    assert set(asked) == {node.address for node in NODES[1:]}
    assert abs(asked[NODES[1].address] - asked[NODES[2].address]) <= 1


@pytest.mark.parametrize("answer_s", [0.03, 0.1, 1.0])
def test_nodes_that_are_slow_to_answer_get_fewer_questions_and_one_at_a_time(answer_s: float) -> None:
    nodes = silence(1.0, answer_s)
    assert nodes.most_under_way == 1
    assert nodes.asked.total() <= 8


def test_silence_again_and_again_does_not_begin_with_quick_questions_again() -> None:
    """A leader with a slow disk answers each request late: its clients have no more questions than those of one that is gone."""
    loop, cache = SimLoop(), RouteCache()
    cache.set_group(ReplicaGroup("g0", 1, "n0", LEADER, NODES))
    nodes = Answers(cache, 0.001)

    async def scenario() -> None:
        leaders = SilentLeaders(nodes, cache, SimClock(loop))  # type: ignore[arg-type]
        for _ in range(40):
            for _ in range(10):
                leaders.ask_others("g0", LEADER)
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
        await leaders.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert nodes.asked.total() <= QUICK + 40 * 0.5 / LONGEST_GAP_S + 5


def test_nothing_is_asked_when_another_leader_is_known() -> None:
    def elected(cache: RouteCache) -> None:
        cache.learn_group(ReplicaGroup("g0", 2, "n1", NODES[1].address, NODES))

    assert silence(10.0, 0.001, elected).asked.total() <= 45


# With nodes


async def elected_s(rig: Rig, old: str) -> float:
    """When another node than ``old`` leads."""
    await until(lambda: rig.cluster.master("g0") not in (None, old))
    return rig.cluster.loop.time()


@pytest.mark.parametrize("watched", [False, True])
def test_a_producer_goes_on_at_once_when_another_node_leads(watched: bool) -> None:
    """Without the questions, and without a name server that tells, it took a second of silence."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000) as producer:
            await producer.send(Message("t", b"before"))
            await asyncio.sleep(6 if watched else 0)
            old = rig.master
            rig.isolate(old)
            election = asyncio.ensure_future(elected_s(rig, old))
            await producer.send(Message("t", b"after"))
            assert rig.cluster.loop.time() - await election < 0.12
            rig.cluster.net.heal_all()

    for seed in range(1, 4):
        Rig(seed).run(scenario)


def test_a_call_goes_to_the_next_leader_as_soon_as_there_is_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        router = rig.router()
        deadline_ms = router.clock.monotonic_ms() + 20_000
        await router.topic("t", deadline_ms)
        old = rig.master
        rig.isolate(old)
        election = asyncio.ensure_future(elected_s(rig, old))
        request = broker_pb2.InitProducerRequest(producer_name="p")
        await router.call_leader("g0", methods.INIT_PRODUCER, request, deadline_ms=deadline_ms)
        assert rig.cluster.loop.time() - await election < 0.2
        rig.cluster.net.heal_all()
        await router.close()

    Rig().run(scenario)


def test_a_client_is_closed_while_it_asks() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        router = rig.router()
        await router.topic("t", router.clock.monotonic_ms() + 5_000)
        router.silent.ask_others("g0", router.groups["g0"].leader_address)
        await asyncio.sleep(0.001)
        await router.close()

    Rig().run(scenario)
