"""What a producer may be told, and where its messages go: settings by both names, batches, selectors, queues that go away."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from dledger_client import by_hash, by_random
from dledger_client.aio import Message, SendStatus
from dledger_client.producer.batches import QueueBatcher
from dledger_client.producer.delivery_report import AsyncSendFuture
from dledger_client.producer.latency_fault import FAILED_MS, LatencyFaultTolerance
from dledger_client.producer.partitioner import Partitioner
from dledger_client.producer.settings import LATENCY_MAX, NOT_AVAILABLE_DURATION, UPSTREAM_NAMES, ProducerOptions
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError, MessageTooLargeError
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_producer import bodies


def test_settings_have_both_names() -> None:
    upstream = ProducerOptions.of("", {"producerGroup": "g", "sendMsgTimeout": 7, "maxMessageSize": 9, "retryTimesWhenSendFailed": 2})
    assert upstream == ProducerOptions.of("g", {"send_timeout_ms": 7, "max_message_bytes": 9, "retry_times": 2})
    assert set(UPSTREAM_NAMES.values()) <= set(ProducerOptions.__dataclass_fields__)
    assert ProducerOptions().create_topic_key == "TBW102"
    with pytest.raises(TypeError, match="no setting 'sendMsgTimout'"):
        ProducerOptions.of("g", {"sendMsgTimout": 7})
    with pytest.raises(InvalidArgumentError, match="send_timeout_ms is given twice"):
        ProducerOptions.of("g", {"sendMsgTimeout": 7, "send_timeout_ms": 7})
    with pytest.raises(InvalidArgumentError, match="retry_times -2"):
        ProducerOptions.of("g", {"retryTimesWhenSendFailed": -2})


def test_a_batch_is_stored_in_one_queue_or_not_at_all() -> None:
    """docs/reference/semantics, row P9."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with rig.producer(maxMessageSize=4096) as producer, rig.consumer() as consumer:
            results = await producer.send_batch([Message("t", b"%d" % number) for number in range(10)], queue_key="k")
            assert [result.queue_offset for result in results] == list(range(10))
            assert len({result.queue_id for result in results}) == 1
            assert len({result.msg_id for result in results}) == 10
            assert await bodies(consumer, results[0].queue_id) == [b"%d" % number for number in range(10)]
            with pytest.raises(MessageTooLargeError, match="batch of 2 messages"):
                await producer.send_batch([Message("t", b"x" * 2000), Message("t", b"x" * 2000)])
            with pytest.raises(InvalidArgumentError, match="different topics"):
                await producer.send_batch([Message("t", b"x"), Message("u", b"x")])
            with pytest.raises(InvalidArgumentError, match="without a message"):
                await producer.send_batch([])

    Rig().run(scenario)


def test_one_bad_message_refuses_its_whole_batch() -> None:
    """docs/reference/semantics, row P9."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_message_bytes=64 << 20, compress_type="none") as producer, rig.consumer() as consumer:
            messages = [Message("t", b"good"), Message("t", b"x" * (4 << 20) + b"too much"), Message("t", b"good too")]
            with pytest.raises(MessageTooLargeError):
                await producer.send_batch(messages)
            await producer.send(Message("t", b"later"))
            assert await bodies(consumer) == [b"later"]

    Rig().run(scenario)


def test_selectors_choose_the_queue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer:
            by_key = await producer.send(Message("t", b"x"), queue_key="o-17")
            assert (await producer.send(Message("t", b"x"), queue_key=by_hash("o-17"))).queue_id == by_key.queue_id
            assert (await producer.send(Message("t", b"x"), queue_key=lambda count: count - 1)).queue_id == 3
            anywhere = by_random(random.Random(3))
            assert {(await producer.send(Message("t", b"x"), queue_key=anywhere)).queue_id for _ in range(40)} == {0, 1, 2, 3}
            with pytest.raises(InvalidArgumentError, match="selector chose 4"):
                await producer.send(Message("t", b"x"), queue_key=lambda count: count)

    Rig().run(scenario)


def test_a_selector_that_raises_fails_its_message_and_no_other() -> None:
    """Also the first message of a topic, which waits until its queues are known."""

    def broken(count: int) -> int:
        raise KeyError(count)

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer:
            for _ in range(2):
                futures = [producer.send_async(Message("t", b"x"), queue_key=key) for key in (broken, "o-17", broken, None)]
                for future, fails in zip(futures, (True, False, True, False), strict=True):
                    if fails:
                        with pytest.raises(InvalidArgumentError, match="selector raised KeyError"):
                            await future
                    else:
                        await future

    Rig().run(scenario)


def test_messages_for_a_queue_that_goes_away_find_another() -> None:
    """docs/reference/semantics, row P7."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            for queue_id in range(4):
                await producer.send(Message("t", b"before"), queue_id=queue_id)
            waiting: list[Any] = []

            async def produce() -> None:
                for number in range(300):
                    key = f"k-{number}" if number % 2 else None
                    waiting.append(producer.send_async(Message("t", b"%d" % number), queue_key=key))
                    await asyncio.sleep(0.005)

            async def shrink() -> None:
                await asyncio.sleep(0.5)
                await admin.update_topic("t", write_queues=2)

            await asyncio.gather(produce(), shrink())
            results = [await future for future in waiting]
            assert {result.queue_id for result in results[-50:]} == {0, 1}
            stored = [body for queue_id in range(4) for body in await bodies(consumer, queue_id) if body != b"before"]
            assert sorted(stored) == sorted(b"%d" % number for number in range(300))
            with pytest.raises(InvalidArgumentError, match="queue 3"):
                await producer.send(Message("t", b"x"), queue_id=3)

    Rig().run(scenario)


def test_a_queue_made_since_the_last_look_takes_and_gives_messages_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            await producer.send(Message("t", b"before"), queue_id=0)
            assert await bodies(consumer, 0) == [b"before"]
            await admin.update_topic("t", read_queues=3, write_queues=3)
            assert (await producer.send(Message("t", b"x"), queue_id=2)).queue_id == 2
            assert await bodies(consumer, 2) == [b"x"]
            await admin.update_topic("t", read_queues=4, write_queues=4)
            assert [result.queue_id for result in await producer.send_batch([Message("t", b"x")], queue_id=3)] == [3]
            with pytest.raises(InvalidArgumentError, match="queue 4 takes no messages; expected one of 0, 1, 2, 3"):
                await producer.send(Message("t", b"x"), queue_id=4)

    Rig().run(scenario)


def test_a_message_sent_often_enough_is_given_up() -> None:
    """docs/reference/semantics, row P3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        net, hosts = rig.cluster.net, rig.cluster.hosts

        def cut_off(node_id: str) -> None:
            for other in hosts.values():
                if other.node_id != node_id:
                    net.cut(hosts[node_id].ip, other.ip)
                    net.cut(other.ip, hosts[node_id].ip)

        async with rig.producer(retryTimesWhenSendFailed=1, sendMsgTimeout=60_000) as producer:
            await producer.send(Message("t", b"first"))
            first = rig.master
            cut_off(first)
            future = producer.send_async(Message("t", b"lost"))
            await until(lambda: rig.cluster.master() not in (None, first))  # the producer has not noticed yet
            second = rig.master
            cut_off(second)
            start = rig.cluster.loop.now_s
            with pytest.raises(DeadlineExceededError, match="after 2 attempts"):
                await future
            assert rig.cluster.loop.now_s - start < 10
            net.heal_all()

    Rig().run(scenario)


def test_slow_groups_are_left_alone_for_a_while() -> None:
    now = SimpleNamespace(ms=0)
    faults = LatencyFaultTolerance(LATENCY_MAX, NOT_AVAILABLE_DURATION, lambda: int(now.ms), enabled=True)
    lanes = [QueueBatcher("t", group, queue_id) for group in ("a", "b") for queue_id in range(2)]
    topic = Partitioner(lanes, 0, faults)

    def groups() -> list[str]:
        found = []
        for _ in range(4):
            topic.rotate()
            found.append(topic.sticky.replica_group)
        return found

    assert sorted(groups()) == ["a", "a", "b", "b"]
    faults.responded("a", 549)
    assert sorted(groups()) == ["a", "a", "b", "b"]
    faults.responded("a", 550)
    assert groups() == ["b"] * 4
    faults.failed("b")
    assert sorted(groups()) == ["a", "a", "b", "b"]  # none is good: any is
    now.ms = 2000
    assert groups() == ["a"] * 4
    now.ms = FAILED_MS
    assert sorted(groups()) == ["a", "a", "b", "b"]
    off = LatencyFaultTolerance(LATENCY_MAX, NOT_AVAILABLE_DURATION, lambda: int(now.ms), enabled=False)
    off.failed("a")
    assert off.is_available("a")


@pytest.mark.parametrize("slow", ["followers", "all", "nobody there"])
def test_a_message_that_is_not_acknowledged_says_what_it_waited_for(slow: str) -> None:
    """docs/reference/semantics, row P3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(sendMsgTimeout=4000) as producer, rig.consumer() as consumer:
            assert (await producer.send(Message("t", b"first"))).status is SendStatus.SEND_OK
            disks = {"followers": rig.followers, "all": list(rig.cluster.hosts)}.get(slow, [])
            for node_id in disks:
                rig.cluster.hosts[node_id].disk.settings.sync_s = 6.0
            if slow == "nobody there":
                for node_id in rig.followers:
                    rig.cluster.kill(node_id)
            with pytest.raises(DeadlineExceededError, match="it may be stored") as caught:
                await producer.send(Message("t", b"slow"))
            expected = {"followers": SendStatus.FLUSH_SLAVE_TIMEOUT, "all": SendStatus.FLUSH_DISK_TIMEOUT}
            assert caught.value.send_status is expected.get(slow, SendStatus.SLAVE_NOT_AVAILABLE)
            for node_id, host in rig.cluster.hosts.items():
                host.disk.settings.sync_s = 0.001
                rig.cluster.ensure_running(node_id)
            waiting = [producer.send_async(Message("t", b"last"))]
            while not (await settled(waiting[-1])):  # the disks have to get through what waits for them
                waiting.append(producer.send_async(Message("t", b"last")))
            stored = await bodies(consumer)
            assert stored[:2] == [b"first", b"slow"]  # what was unknown is stored in its place, once
            assert set(stored[2:]) == {b"last"}
            assert len(stored) <= 2 + len(waiting)

    Rig().run(scenario)


async def settled(future: AsyncSendFuture) -> bool:
    """Whether the message is stored, once that is known."""
    try:
        await future
    except DledgerError:
        return False
    return True


def test_a_selector_may_send_itself() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer:
            audits: list[AsyncSendFuture] = []

            def selector(count: int) -> int:
                audits.append(producer.send_async(Message("t", b"audit"), queue_id=0))
                return count - 1

            await producer.send(Message("t", b"first"))
            assert (await producer.send(Message("t", b"x"), queue_key=selector)).queue_id == 1
            assert [result.queue_id for result in await producer.send_batch([Message("t", b"y")] * 2, queue_key=selector)] == [1, 1]
            assert [(await audit).queue_id for audit in audits] == [0, 0]

    Rig().run(scenario)
