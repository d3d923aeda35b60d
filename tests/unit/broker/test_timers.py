"""Messages with a delivery time of their own, against real nodes in virtual time: each once, in the order of their times."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import broker.delivery.timers
from dledger_client.aio import Message, Producer, PullConsumer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.producer.topic_routes import TopicRoutes
from dledger_client.transactions.resolver import TransactionOutcome
from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from dledger_wire.errors import InvalidArgumentError, TopicPermissionError
from dledger_wire.status import Perm
from store.queues.timer_window import NO_HORIZON, TimerWindow
from store.state.timers import TimerProgress
from tests.unit.client.sim_rig import Rig, until

EPOCH_MS = 1_750_000_000_000


def wall_ms(rig: Rig) -> int:
    """The group's time as the master knows it; clocks of hosts and clients differ from it."""
    node = rig.cluster.hosts[rig.master].node
    assert node is not None
    return node.raft.clocks.time.wall_ms()


async def send_at(producer: Producer, body: bytes, due_ms: int, **more: Any) -> None:
    await producer.send(Message("t", body, tags="late", keys=f"k-{body.decode()}", deliver_at_ms=due_ms, **more), queue_id=0)


async def fetch_all(consumer: PullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await consumer.fetch("t", 0, len(bodies), 100, wait_ms=5000)]
    return bodies


def test_messages_come_at_their_times_with_all_they_had() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            await send_at(producer, b"second", start + 4000)
            await send_at(producer, b"first", start + 2000)
            await send_at(producer, b"past", start - 1000)
            (past,) = await consumer.fetch("t", 0, 0, wait_ms=1000)
            assert (past.body, past.tags, past.keys) == (b"past", "late", "k-past")
            assert await consumer.fetch("t", 0, 1, wait_ms=1000) == []
            (first,) = await consumer.fetch("t", 0, 1, wait_ms=3000)
            assert first.body == b"first"
            assert 2000 <= wall_ms(rig) - start < 2200
            assert not {"REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS"} & set(first.properties)
            assert first.properties["TIMER_DELIVER_MS"] == str(start + 2000)
            (second,) = await consumer.fetch("t", 0, 2, wait_ms=3000)
            assert second.body == b"second"
            assert 4000 <= wall_ms(rig) - start < 4200

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_each_is_delivered_once_whoever_dies_and_however_little_is_kept_in_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row D1."""

    monkeypatch.setattr(broker.delivery.timers, "WINDOW_MESSAGES", 7)
    monkeypatch.setattr(broker.delivery.timers, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(broker.delivery.timers, "SCAN_UNITS", 5)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 700)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 100)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        randomness = rig.cluster.random
        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            start = wall_ms(rig)
            for number in range(60):
                await send_at(producer, b"%d" % number, start + int(randomness.random() * 40) * 100)
            for _ in range(3):
                await until(lambda: rig.cluster.master() is not None)
                victim = rig.master
                await asyncio.sleep(randomness.random() * 0.6)
                rig.cluster.kill(victim)
                await asyncio.sleep(0.2)
                rig.cluster.start(victim)
            bodies = await fetch_all(consumer, 60)
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(60)]
            assert await consumer.fetch("t", 0, 60, wait_ms=3000) == []

    Rig(seed).run(scenario)


def test_a_topic_that_takes_no_messages_now_gets_them_later_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row D2."""
    monkeypatch.setattr(broker.delivery.timers, "MAX_SLEEP_S", 2.0)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            await admin.create_topic("closed", queues=2)
            start = wall_ms(rig)
            for level in (0, 1):
                at = 0 if level else start + 1000
                await producer.send(Message("closed", b"kept %d" % level, delay_level=level, deliver_at_ms=at), queue_id=0)
            await send_at(producer, b"here", start + 1500)
            await admin.update_topic("closed", perm=Perm.READ)
            assert await fetch_all(consumer, 1) == [b"here"]
            await asyncio.sleep(3)
            assert await consumer.fetch("closed", 0, 0) == []
            await admin.update_topic("closed", perm=Perm.READ | Perm.WRITE)
            bodies: set[bytes] = set()
            while len(bodies) < 2:
                bodies |= {message.body for message in await consumer.fetch("closed", 0, len(bodies), wait_ms=3000)}
            assert bodies == {b"kept 0", b"kept 1"}

    Rig().run(scenario)


def test_what_waits_for_a_closed_topic_is_refused_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row P7."""
    monkeypatch.setattr(TopicRoutes, "_on_topic_change", lambda *_: None)  # the producers do not know yet

    async def nothing(_message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def scenario(rig: Rig) -> None:
        await rig.topic("closed")
        await rig.topic()
        async with rig.producer(linger_ms=20) as producer, rig.transactions(nothing) as transactions, rig.admin() as admin:
            before = await transactions.prepare(Message("closed", b"before"))
            for topic in ("closed", "t"):
                await producer.send(Message(topic, b"known"))
            await admin.update_topic("closed", perm=Perm.READ)
            ways: tuple[dict[str, Any], ...] = ({"delay_level": 1}, {"deliver_at_ms": wall_ms(rig) + 2000})
            for more in ways:
                refused, taken = (producer.send_async(Message(topic, b"x", **more)) for topic in ("closed", "t"))
                with pytest.raises(TopicPermissionError, match="topic closed: writing is not permitted"):
                    await refused
                await taken
            with pytest.raises(TopicPermissionError, match="topic closed: writing is not permitted"):
                await transactions.prepare(Message("closed", b"x"))
            assert await before.commit() is TransactionOutcome.COMMITTED
        async with rig.consumer() as consumer:
            assert await fetch_all(consumer, 3) == [b"known", b"x", b"x"]
            assert [each.body for each in await consumer.fetch("closed", 0, 0, wait_ms=3000)] == [b"known", b"before"]

    Rig().run(scenario)


def test_what_is_to_wait_is_taken_by_a_group_that_its_topic_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row P7: it is delivered there, and no send of a producer that does not know yet fails."""
    monkeypatch.setattr(TopicRoutes, "_on_topic_change", lambda *_: None)

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer, rig.admin() as admin, rig.consumer() as consumer:
            for number in range(12):
                await producer.send(Message("t", b"now"), queue_key=str(number))
            await admin.update_topic("t", perm=Perm.READ, replica_group="g1")
            sent = [producer.send_async(Message("t", b"%d" % number, delay_level=1), queue_key=str(number)) for number in range(12)]
            assert {(await each).replica_group for each in sent} == {"g0", "g1"}

            async def of(group: str) -> list[bytes]:
                return [each.body for each in await consumer.fetch("t", 0, 0, 100, replica_group=group) if each.body != b"now"]

            found: list[bytes] = []
            while len(found) < 12:
                await asyncio.sleep(0.1)
                found = await of("g0") + await of("g1")
            assert sorted(found) == sorted(b"%d" % number for number in range(12))

    Rig(groups=2).run(scenario)


def test_a_message_moved_to_the_end_of_the_log_still_belongs_to_its_old_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row D3."""
    monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 700)
    monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 100)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            start = wall_ms(rig)
            await send_at(producer, b"old", start + 4000)
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
            await send_at(producer, b"new", start + 5000)
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=8000)
            assert found.body == b"new"
            assert "PARKED_POS" not in found.properties

    Rig().run(scenario)


def test_what_cannot_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            with pytest.raises(InvalidArgumentError, match="more than 40 days"):
                await send_at(producer, b"x", wall_ms(rig) + 41 * 86_400_000)
            monkeypatch.setattr("dledger_client.producer.topic_routes.is_system_topic", lambda _: False)
            with pytest.raises(InvalidArgumentError, match="message 0 waits for no time"):
                await producer.send(Message("rmq_sys_wheel_timer", b"x"))

    with pytest.raises(InvalidArgumentError, match="13 digits"):
        Message("t", b"x", deliver_at_ms=17)
    with pytest.raises(InvalidArgumentError, match="mutually exclusive"):
        Message("t", b"x", deliver_at_ms=EPOCH_MS, delay_level=3)
    Rig().run(scenario)


def test_a_message_that_may_not_wait_so_long_fails_alone() -> None:
    """docs/reference/semantics, row P8.  Its number in a batch says nothing to who sent it alone."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(linger_ms=50) as producer, rig.consumer() as consumer:
            due = [wall_ms(rig) + 1000, wall_ms(rig) + 41 * 86_400_000, wall_ms(rig) + 1000]
            sending = [producer.send_async(Message("t", b"%d" % number, deliver_at_ms=at)) for number, at in enumerate(due)]
            outcomes = await asyncio.gather(*sending, return_exceptions=True)
            assert [isinstance(each, InvalidArgumentError) for each in outcomes] == [False, True, False]
            assert str(outcomes[1]) == "to be delivered in more than 40 days; expected at most 40"
            assert [each.body for each in await consumer.fetch("t", 0, 0, wait_ms=8000)] == [b"0", b"2"]

    Rig().run(scenario)


def test_the_window_keeps_the_earliest_and_says_beyond_what_it_knows_nothing() -> None:
    randomness = np.random.default_rng(3)
    window = TimerWindow(50)
    due = randomness.integers(0, 100, 1000)
    for at in range(0, 1000, 40):
        units = np.zeros(40, QUEUE_UNIT_DTYPE)
        units["tag_hash"], units["size"] = due[at : at + 40], 100
        window.add(np.arange(at, at + 40), units)
    assert window.horizon_ms < NO_HORIZON
    expected = sorted((int(when), offset) for offset, when in enumerate(due) if when < window.horizon_ms)
    assert 0 < len(window) <= 50 or len(set(when for when, _ in expected)) == 1
    offsets, units = window.due(100, 1000, 1 << 20)
    assert list(zip(units["tag_hash"].tolist(), offsets.tolist(), strict=True)) == expected
    assert len(window.due(100, 1000, 1000)[0]) == min(10, len(expected))
    assert len(window.due(100, 3, 1)[0]) == 1


def test_progress_tells_what_still_waits() -> None:
    progress = TimerProgress(low=2, seen=6, done_ms=50, done_offset=3)
    offsets, due = np.arange(6), np.array([90, 90, 50, 50, 50, 49])
    assert progress.waiting(offsets, due).tolist() == [False, False, False, False, True, False]
