"""Delayed messages against real nodes in virtual time: due once, in order, across every death of a master."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import broker.delivery.timers
from broker.config.cluster_file import ClusterConfig
from broker.delivery.delay_levels import DelayLevelService
from dledger_client.aio import Message, Producer
from dledger_client.producer.delivery_report import AsyncSendFuture
from dledger_wire.errors import DledgerError, InvalidArgumentError, MessageTooLargeError, TopicNotFoundError
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_wire.tasks import BackgroundTasks
from tests.unit.client.sim_rig import Rig, until


async def send_delayed(producer: Producer, body: bytes, level: int, queue_id: int = 0) -> None:
    await producer.send(Message("t", body, tags="late", keys=f"k-{body.decode()}", delay_level=level), queue_id=queue_id)


def test_a_delayed_message_comes_when_its_level_says_with_all_it_had() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        loop = rig.cluster.loop
        async with rig.producer() as producer, rig.consumer() as consumer:
            start = loop.now_s
            await send_delayed(producer, b"five", 2, queue_id=1)
            await send_delayed(producer, b"one", 1, queue_id=1)
            assert await consumer.fetch("t", 1, 0, wait_ms=800) == []
            (first,) = await consumer.fetch("t", 1, 0, wait_ms=3000)
            assert (first.body, first.tags, first.keys) == (b"one", "late", "k-one")
            assert 1.0 <= loop.now_s - start < 1.3
            assert not {"REAL_TOPIC", "REAL_QID", "DELAY"} & set(first.properties)
            assert len(first.msg_id) == 32
            (second,) = await consumer.fetch("t", 1, 1, wait_ms=8000)
            assert second.body == b"five"
            assert 5.0 <= loop.now_s - start < 5.3

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_delayed_messages_are_delivered_once_whoever_dies(seed: int) -> None:
    """docs/reference/semantics, row D1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            for number in range(30):
                await send_delayed(producer, b"%d" % number, 1)
                await asyncio.sleep(0.02)
            for _ in range(3):
                await until(lambda: rig.cluster.master() is not None)
                victim = rig.master
                await asyncio.sleep(rig.cluster.random.random() * 0.4)
                rig.cluster.kill(victim)
                await asyncio.sleep(0.2)
                rig.cluster.start(victim)
            bodies: list[bytes] = []
            while len(bodies) < 30:
                bodies += [message.body for message in await consumer.fetch("t", 0, len(bodies), 100, wait_ms=5000)]
            assert bodies == [b"%d" % number for number in range(30)]
            assert await consumer.fetch("t", 0, 30, wait_ms=3000) == []

    Rig(seed).run(scenario)


def test_messages_for_a_topic_that_is_gone_do_not_stop_the_others() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            await admin.create_topic("gone", queues=1)
            await producer.send(Message("gone", b"x", delay_level=1))
            await send_delayed(producer, b"here", 1)
            await admin.delete_topic("gone")
            (found,) = await consumer.fetch("t", 0, 0, wait_ms=5000)
            assert found.body == b"here"

    Rig().run(scenario)


@pytest.mark.parametrize("timed", [False, True])
def test_a_topic_made_again_does_not_get_what_waited_for_the_old_one(timed: bool) -> None:
    """docs/reference/semantics, rows T2 and D3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        at: dict[str, Any] = {"deliver_at_ms": rig.cluster.hosts[rig.master].clock.wall_ms() + 5000} if timed else {"delay_level": 2}
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            await admin.create_topic("again", queues=1)
            await producer.send(Message("again", b"old", **at))
            await producer.send(Message("t", b"beside", **at))
            await admin.delete_topic("again")
            await admin.create_topic("again", queues=1)
            await producer.send(Message("again", b"new", **at))
            (found,) = await consumer.fetch("again", 0, 0, wait_ms=10_000)
            assert found.body == b"new"
            assert await consumer.fetch("again", 0, 1, wait_ms=2000) == []
            (beside,) = await consumer.fetch("t", 0, 0, wait_ms=2000)
            assert beside.body == b"beside"

    Rig().run(scenario)


async def lower_the_limit(rig: Rig, max_message_size: int) -> None:
    """A rolling restart with a smaller maxMessageSize."""
    config = rig.cluster.config
    rig.cluster.config = config.changed(store=config.store.changed(maxMessageSize=max_message_size))
    for node_id in rig.cluster.hosts:
        await rig.restart(node_id)
        await until(lambda: rig.cluster.master() is not None)


@pytest.mark.parametrize("how", ["delayed", "timed", "renewed"])
def test_messages_larger_than_a_limit_lowered_since_are_delivered_with_the_others(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row D2."""
    if how == "renewed":
        monkeypatch.setattr(broker.delivery.timers, "RENEW_AFTER_MS", 700)
        monkeypatch.setattr(broker.delivery.timers, "RENEW_CHECK_MS", 100)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        due_ms = rig.cluster.hosts[rig.master].clock.wall_ms() + 20_000
        async with rig.producer() as producer, rig.consumer() as consumer:
            bodies = [b"small", bytes(range(256)) * 12, b"also small"]
            for body in bodies:
                at: dict[str, Any] = {"delay_level": 4} if how == "delayed" else {"deliver_at_ms": due_ms}
                await producer.send(Message("t", body, **at), queue_id=0)
            await lower_the_limit(rig, 2000)
            found: list[bytes] = []
            while len(found) < 3:
                found += [message.body for message in await consumer.fetch("t", 0, len(found), wait_ms=40_000)]
            assert found == bodies
            with pytest.raises(MessageTooLargeError):
                await producer.send(Message("t", bodies[1]))

    Rig().run(scenario)


def test_only_the_master_runs_the_service() -> None:
    async def scenario(rig: Rig) -> None:
        await asyncio.sleep(0.5)
        running = {}
        for node_id, host in rig.cluster.hosts.items():
            assert host.node is not None
            running[node_id] = any("schedule on" in step for step in host.node.roles.steps)
        assert [node_id for node_id, on in running.items() if on] == [rig.master]

    Rig().run(scenario)


def test_system_topics_are_neither_shown_nor_changed_by_users() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            assert [topic.topic for topic in await admin.list_topics()] == ["t"]
            with pytest.raises(InvalidArgumentError, match="belongs to the system"):
                await admin.delete_topic(SCHEDULE_TOPIC, replica_group="g0")
            with pytest.raises(InvalidArgumentError, match="belongs to the system"):
                await admin.create_topic("rmq_sys_mine")

    Rig().run(scenario)


def test_users_neither_write_to_the_schedule_topic_nor_to_another_of_the_systems() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.producer() as producer:
            for topic in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC):
                with pytest.raises(InvalidArgumentError, match=f"topic {topic} belongs to the system"):
                    await producer.send(Message(topic, b"x"))

    Rig().run(scenario)


def test_one_delayed_message_whose_topic_is_gone_takes_no_others_along() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        await rig.topic("gone")
        async with rig.producer(linger_ms=50) as producer, rig.consumer() as consumer:
            await producer.send(Message("gone", b"x"))
            await producer.send(Message("t", b"x"))
            async with rig.admin() as admin:
                await admin.delete_topic("gone")
            topics = ["t", "gone", "t", "gone", "t"]
            sends = [producer.send_async(Message(topic, b"later", delay_level=1)) for topic in topics]
            outcomes = await asyncio.gather(*[_outcome(send) for send in sends])
            assert outcomes == [None, TopicNotFoundError, None, TopicNotFoundError, None]
            await asyncio.sleep(3)
            assert len(await consumer.fetch("t", 0, 0)) == 4

    Rig().run(scenario)


async def _outcome(send: AsyncSendFuture) -> type[BaseException] | None:
    try:
        await send
    except DledgerError as error:
        return type(error)
    return None


def test_the_service_begins_although_the_log_takes_no_schedule_topic_yet() -> None:
    """On a full disk the topic cannot be created; a master that waited for that led a group without any of its services."""

    async def scenario() -> None:
        asked = asyncio.Event()

        async def never(_command: object) -> None:
            asked.set()
            await asyncio.get_running_loop().create_future()

        config = ClusterConfig.made({"cluster": "c", "groups": [{"name": "g", "nodes": [{"id": "n0", "address": "h:1"}]}]})
        store = SimpleNamespace(topics={}, command=lambda command: command)
        context = SimpleNamespace(settings=SimpleNamespace(cluster=config), store=store, raft=SimpleNamespace(propose=never))
        tasks = BackgroundTasks("schedule")
        async with asyncio.timeout(30):
            await DelayLevelService(context).start(1, tasks)  # type: ignore[arg-type]
            await asked.wait()
        await tasks.stop()

    asyncio.run(scenario())
