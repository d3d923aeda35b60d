"""Wall clocks of nodes that leap by years: nothing is forgotten, deleted, parked or delivered early, and the node does not lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.leadership.transfer import unfit_voters
from dledger.core.causes import Cause
from dledger_client.aio import Message, PullConsumer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire._pb import admin_pb2
from dledger_wire.names import CHECK_MAX_TIME_TOPIC
from dledger_wire.rpc import methods
from tests.sim.clock import EPOCH_MS
from tests.unit.client.sim_rig import Rig, context_of, node_of, until

LEAP_MS = 1000 * 86_400_000
LEAP_S = 5.0
HOUR_MS = 3_600_000


def leap(rig: Rig, node_id: str, ms: int) -> None:
    rig.cluster.hosts[node_id].clock.jump_wall(ms)


def last_stamp_ms(rig: Rig) -> int:
    return max(host.node.store.applied.store_ms for host in rig.cluster.hosts.values() if host.node is not None)


def real_ms(rig: Rig) -> int:
    return EPOCH_MS + int(rig.cluster.loop.now_s * 1000)


@pytest.mark.parametrize("nodes", [3, 1])
@pytest.mark.parametrize("ms", [LEAP_MS, -LEAP_MS])
def test_what_a_producer_has_stored_is_not_forgotten(nodes: int, ms: int) -> None:
    """docs/reference/semantics, row C1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(producer_id="p") as producer:
            for number in range(50):
                await producer.send(Message("t", b"%d" % number))
            leader = rig.master
            leap(rig, leader, ms)
            for number in range(50, 150):
                await producer.send(Message("t", b"%d" % number))
                await asyncio.sleep(LEAP_S / 100)
            leap(rig, leader, -ms)
            for number in range(150, 200):
                await producer.send(Message("t", b"%d" % number))
        async with rig.producer(producer_id="p") as producer:
            assert sum((await producer.stored("t")).values()) == 200
        assert abs(last_stamp_ms(rig) - real_ms(rig)) < 5000

    Rig(1, nodes=nodes).run(scenario)


def test_a_node_whose_clock_is_off_gives_leadership_away_does_not_stand_and_says_so() -> None:
    """docs/reference/semantics, row C1."""

    async def scenario(rig: Rig) -> None:
        first = rig.master
        leap(rig, first, LEAP_MS)
        await until(lambda: rig.cluster.master() not in (None, first))
        await until(lambda: node_of(rig, first).raft.clocks.deprioritized)  # since the new leader has told it the clocks
        others = [node_id for node_id in rig.cluster.hosts if node_id != first]
        assert "clock off by +1000.0 d" in await state_of(rig, first)
        for victim in others:
            rig.cluster.kill(victim)
            await asyncio.sleep(3)
            rig.cluster.start(victim)
            await until(lambda: rig.cluster.master() is not None)
            await asyncio.sleep(15)
            assert rig.master != first
        leap(rig, first, -LEAP_MS)
        await asyncio.sleep(3)
        assert await state_of(rig, first) == "ok"

    Rig(2).run(scenario)


def test_a_leader_whose_certificate_has_expired_gives_leadership_away_and_leads_where_nobody_else_may() -> None:
    async def scenario(rig: Rig) -> None:
        first = rig.master
        node_of(rig, first).raft.yield_lead(Cause.CERTIFICATE, "its certificate n.crt has expired")
        await until(lambda: rig.cluster.master() not in (None, first))
        await asyncio.sleep(3)
        leader = rig.master
        assert unfit_voters(context_of(rig, leader))[first] == "its certificate n.crt has expired"
        for node_id in rig.cluster.hosts:
            node_of(rig, node_id).raft.yield_lead(Cause.CERTIFICATE, "its certificate n.crt has expired")
        await asyncio.sleep(30)
        assert rig.master == leader

    Rig(2).run(scenario)


def test_a_node_whose_clock_is_off_leads_when_nobody_else_can() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        first = rig.master
        leap(rig, first, LEAP_MS)
        await until(lambda: rig.cluster.master() not in (None, first))
        rig.cluster.kill(rig.master)
        (other,) = [node_id for node_id in rig.cluster.hosts if node_id not in (first, rig.cluster.master())][:1]
        await until(lambda: rig.cluster.master() is not None)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
        assert other
        assert abs(last_stamp_ms(rig) - real_ms(rig)) < 5000

    Rig(3).run(scenario)


def test_segments_are_kept_and_transactions_wait_and_delays_keep_their_time() -> None:
    """docs/reference/semantics, row C1."""
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.UNKNOWN

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.transactions(check) as producer:
            result = await producer.send_in_transaction(Message("t", b"open"), lambda _message, _argument: TransactionState.UNKNOWN)
            assert result is not None
            for number in range(300):
                await producer.send(Message("t", b"%d " % number + b"x" * 1000))
            sent_ms = real_ms(rig)
            await producer.send(Message("t", b"delayed", delay_level=3))  # 10 s
            leader = rig.master
            leap(rig, leader, LEAP_MS)
            for _ in range(10):
                await asyncio.sleep(LEAP_S / 10)
                for host in rig.cluster.hosts.values():
                    assert host.node is not None
                    assert (await host.node.store.expiry.expire()).segments == 0
            leap(rig, leader, -LEAP_MS)
            await asyncio.sleep(20)
        async with rig.consumer() as consumer:
            assert await consumer.fetch(CHECK_MAX_TIME_TOPIC, 0, 0, 10) == []
            found = [message async for message in _all(consumer)]
        delayed = [message for message in found if message.body == b"delayed"]
        assert len(delayed) == 1
        assert 9_500 <= delayed[0].store_timestamp - sent_ms <= 13_000
        assert len(asked) <= 6

    async def _all(consumer: PullConsumer) -> AsyncIterator[ReceivedMessage]:
        offset = 0
        while messages := await consumer.fetch("t", 0, offset, 1000):
            for message in messages:
                yield message
            offset = messages[-1].queue_offset + 1

    Rig(4).run(scenario)


def test_a_long_downtime_of_all_nodes_counts() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(producer_id="p") as producer:
            for number in range(100):
                await producer.send(Message("t", b"%d" % number + b"x" * 1000))
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        for host in rig.cluster.hosts.values():
            host.clock.jump_wall(10 * 86_400_000)  # ten days
        for node_id in rig.cluster.hosts:
            rig.cluster.start(node_id)
        await until(lambda: rig.cluster.master() is not None)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"x"))
        assert abs(last_stamp_ms(rig) - real_ms(rig) - 10 * 86_400_000) < 5000
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        assert (await node.store.expiry.expire()).segments > 0

    Rig(5).run(scenario)


def test_a_node_that_starts_with_a_wrong_clock_deletes_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(100):
                await producer.send(Message("t", b"%d" % number + b"x" * 1000))
        victim = rig.followers[0]
        rig.cluster.kill(victim)
        leap(rig, victim, LEAP_MS)
        rig.isolate(victim)
        rig.cluster.start(victim)
        await until(lambda: rig.cluster.is_up(rig.cluster.hosts[victim]))
        node = rig.cluster.hosts[victim].node
        assert node is not None
        with pytest.raises(Exception, match="the age of messages is unknown"):
            await node.store.expiry.expire()
        rig.cluster.net.heal_all()
        await until(lambda: node.raft.leader is not None)
        await asyncio.sleep(1)
        assert (await node.store.expiry.expire()).segments == 0

    Rig(6).run(scenario)


async def state_of(rig: Rig, node_id: str) -> str:
    channel = rig.around()["network"].connect(rig.cluster.hosts[node_id].address)
    try:
        reply = await channel.call(methods.NODE_STATUS.path, b"", timeout_s=2.0)
    finally:
        await channel.close()
    return admin_pb2.NodeStatusReply.FromString(reply).state


@pytest.mark.parametrize(("hour", "goes"), [(17, True), (18, False)])
def test_old_segments_go_at_the_hour_of_delete_when(hour: int, goes: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(100):
                await producer.send(Message("t", b"%d" % number + b"x" * 1000))
        assert real_ms(rig) // HOUR_MS % 24 == 15
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        for host in rig.cluster.hosts.values():
            host.clock.jump_wall(50 * HOUR_MS)  # past fileReservedTime: now it is 17 o'clock
        for node_id in rig.cluster.hosts:
            rig.cluster.start(node_id)
        await until(lambda: rig.cluster.master() is not None)
        async with rig.producer() as producer:
            await producer.send(Message("t", b"new"))

        def firsts() -> list[int]:
            return [node_of(rig, node_id).raft.log.first_index for node_id in rig.cluster.hosts]

        if goes:
            await until(lambda: min(firsts()) > 1)
        else:
            await asyncio.sleep(30)
            assert firsts() == [1, 1, 1]

    Rig(7, store=f'deleteWhen: "{hour}", cleanResourceInterval: 1s').run(scenario)


def test_a_node_that_restarts_with_an_earlier_clock_is_heard_by_name_servers() -> None:
    """docs/reference/semantics, row C1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        expires_s = rig.cluster.config.name_service.expireAfter / 1000
        victim = rig.followers[0]
        before_s = rig.cluster.loop.now_s
        rig.cluster.kill(victim)
        leap(rig, victim, -HOUR_MS)
        rig.cluster.start(victim)
        await until(lambda: rig.cluster.loop.now_s > before_s + 2 * expires_s)
        for server in rig.cluster.name_servers.hosts.values():
            assert server.node is not None
            group = server.node.table.group("g0")
            assert group is not None
            assert [row.id for row in group.rows.values() if row.expired] == []

    Rig(name_servers=3).run(scenario)
