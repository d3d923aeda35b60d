"""The producer against real nodes in virtual time: retries, refusals, order, deadlines, memory."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message, PullConsumer
from dledger_wire.errors import (
    ClientClosedError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotSentError,
    TopicNotFoundError,
    TopicPermissionError,
)
from tests.unit.client.sim_rig import Rig, until


async def bodies(consumer: PullConsumer, queue_id: int = 0, topic: str = "t") -> list[bytes]:
    return [message.body for message in await consumer.fetch(topic, queue_id, 0, 10_000)]


def test_results_tell_where_messages_are() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer, rig.consumer() as consumer:
            first = await producer.send(Message("t", b"one", tags="a", keys="k"), queue_key="o-1")
            second = await producer.send(Message("t", b"two"), queue_key="o-1")
            assert (second.queue_id, second.queue_offset) == (first.queue_id, first.queue_offset + 1)
            assert first.msg_id != second.msg_id
            (found,) = await consumer.fetch("t", first.queue_id, first.queue_offset, 1)
            assert (found.body, found.tags, found.keys, found.msg_id) == (b"one", "a", "k", first.msg_id)
            assert (await producer.send(Message("t", b"three"), queue_id=2)).queue_id == 2
            spread = {(await producer.send(Message("t", b"x"))).queue_id for _ in range(8)}
            assert spread == {0, 1, 2, 3}

    Rig().run(scenario)


@pytest.mark.parametrize("count", [1, 500])
def test_a_dying_master_costs_no_message_and_no_order(count: int) -> None:
    """docs/reference/semantics, row P1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"first"))
            victim = rig.master
            waiting = [producer.send_async(Message("t", b"%d" % number)) for number in range(count)]
            rig.cluster.kill(victim)
            results = [await future for future in waiting]
            assert [result.queue_offset for result in results] == list(range(1, count + 1))
            assert await bodies(consumer) == [b"first", *(b"%d" % number for number in range(count))]

    Rig().run(scenario)


def test_a_silent_master_is_left_for_the_one_that_was_elected() -> None:
    """A partitioned master keeps its connections: nothing breaks, only answers stay away. docs/reference/semantics, row P1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"a"))
            old = rig.cluster.hosts[rig.master]
            assert old.process is not None
            rig.cluster.loop.pause(old.process)
            result = await producer.send(Message("t", b"b"))
            assert result.queue_offset == 1
            rig.cluster.loop.resume(old.process)
            await producer.send(Message("t", b"c"))
            assert await bodies(consumer) == [b"a", b"b", b"c"]

    Rig().run(scenario)


def test_one_bad_message_of_a_batch_fails_alone_and_order_stays() -> None:
    """docs/reference/semantics, row P8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for host in rig.cluster.hosts.values():
            assert host.node is not None
            object.__setattr__(host.node.store.settings, "maxMessageSize", 100)
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"warm"))
            sent = [b"1", b"2", b"3" * 101, b"4", b"5" * 300, b"6"]
            waiting = [producer.send_async(Message("t", body)) for body in sent]
            await producer.flush()
            errors = [future.exception() for future in waiting]
            assert [isinstance(error, MessageTooLargeError) for error in errors] == [False, False, True, False, True, False]
            assert await bodies(consumer) == [b"warm", b"1", b"2", b"4", b"6"]
            offsets = [future.result().queue_offset for future, error in zip(waiting, errors, strict=True) if error is None]
            assert offsets == [1, 2, 3, 4]

    Rig().run(scenario)


def test_what_cannot_be_sent_says_why() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("readonly", perm=4)
        async with rig.producer(max_message_bytes=1000) as producer:
            with pytest.raises(TopicNotFoundError, match="topic nowhere does not exist"):
                await producer.send(Message("nowhere", b""))
            with pytest.raises(TopicPermissionError, match=r"writing is not permitted \(perm 4\)"):
                await producer.send(Message("readonly", b""))
            with pytest.raises(MessageTooLargeError, match="body of 1001 bytes; expected at most 1000"):
                await producer.send(Message("t", bytes(1001)))
            with pytest.raises(InvalidArgumentError, match="queue 7 takes no messages; expected one of 0"):
                await producer.send(Message("t", b""), queue_id=7)
        with pytest.raises(ClientClosedError, match=r"closed.*nothing was stored") as closed:
            await producer.send(Message("t", b""))
        assert not closed.value.retriable
        with pytest.raises(ClientClosedError, match=r"closed.*nothing was stored"):
            producer.send_oneway(Message("t", b""))

    Rig().run(scenario)


def test_a_topic_made_again_is_written_from_its_start() -> None:
    """The broker forgets the numbers of a deleted topic: the producer starts a new session by itself.

    docs/reference/semantics, row T2.
    """

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            for number in range(3):
                await producer.send(Message("t", b"old %d" % number))
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
            results = [await producer.send(Message("t", b"new %d" % number)) for number in range(3)]
            assert [result.queue_offset for result in results] == [0, 1, 2]
            assert await bodies(consumer) == [b"new 0", b"new 1", b"new 2"]

    Rig().run(scenario)


def test_without_a_majority_messages_fail_at_their_deadline_and_writes_come_back() -> None:
    """docs/reference/semantics, row P4."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=2000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"before"))
            master = rig.master
            for follower in rig.followers:
                rig.cluster.kill(follower)
            start = rig.cluster.loop.now_s
            with pytest.raises(DledgerError) as caught:
                await producer.send(Message("t", b"meanwhile"))
            assert isinstance(caught.value, DeadlineExceededError | NotSentError)
            assert 1.9 < rig.cluster.loop.now_s - start < 2.5
            for node_id in rig.cluster.hosts:
                if node_id != master:
                    rig.cluster.start(node_id)
            await until(lambda: rig.cluster.master() is not None)
            after = await producer.send(Message("t", b"after"))
            found = await bodies(consumer)
            assert found[0] == b"before"
            assert found[after.queue_offset] == b"after"
            assert found.count(b"meanwhile") <= 1

    Rig().run(scenario)


def test_memory_is_bounded_and_waiting_for_room_keeps_order() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_buffered_bytes=20_000, send_timeout_ms=30_000) as producer, rig.consumer() as consumer:
            waiting = [producer.send_async(Message("t", b"%03d" % number + bytes(1000))) for number in range(200)]
            peak = 0
            while not all(future.done() for future in waiting):
                peak = max(peak, producer._core.accumulator.buffered_bytes)
                await asyncio.sleep(0.001)
            assert peak <= 20_000
            assert [body[:3] for body in await bodies(consumer)] == [b"%03d" % number for number in range(200)]

    Rig().run(scenario)


def test_lingering_collects_messages_and_flush_does_not_wait_for_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(linger_ms=500) as producer:
            start = rig.cluster.loop.now_s
            await producer.send(Message("t", b"a"))
            assert rig.cluster.loop.now_s - start >= 0.5
            start = rig.cluster.loop.now_s
            futures = [producer.send_async(Message("t", b"b")) for _ in range(10)]
            await producer.flush()
            assert all(future.done() for future in futures)
            assert rig.cluster.loop.now_s - start < 0.2

    Rig().run(scenario)


def test_a_lost_answer_is_recognised_as_a_duplicate() -> None:
    """docs/reference/semantics, row P2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"a"))
            master = rig.cluster.hosts[rig.master]
            for number in range(20):
                future = producer.send_async(Message("t", b"%d" % number))
                await asyncio.sleep(0.0005 * number / 4)
                rig.cluster.net.break_connections(master.ip, "10.0.1.1")
                await future
            assert await bodies(consumer) == [b"a", *(b"%d" % number for number in range(20))]

    Rig().run(scenario)


@pytest.mark.parametrize("linger_ms", [0, 20])
def test_what_is_sent_while_the_producer_closes_is_stored_or_certainly_not(linger_ms: int) -> None:
    """docs/reference/semantics, row R10: sends of other tasks and threads ended as unknown, though nothing had failed."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer() as consumer:
            producer = rig.producer(linger_ms=linger_ms)
            sent = [producer.send_async(Message("t", b"first"))]
            closing = asyncio.create_task(producer.close(), name="close")
            while not closing.done():
                sent.append(producer.send_async(Message("t", b"%d" % len(sent))))
                await asyncio.sleep(0.001)
            sent.append(producer.send_async(Message("t", b"last")))
            results = await asyncio.gather(*sent, return_exceptions=True)
            refused = [result for result in results if isinstance(result, BaseException)]
            assert {type(error) for error in refused} == {ClientClosedError}
            assert len(await bodies(consumer)) == len(sent) - len(refused)

    Rig().run(scenario)


def test_closing_while_others_send_to_a_dead_cluster_ends_in_time() -> None:
    """Once for what was sent before, once for what was sent meanwhile: each flush more added ``send_timeout_ms``."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        timeout_s, body = 3.0, bytes(200_000)
        producer = rig.producer(send_timeout_ms=int(timeout_s * 1000), compress_over_bytes=2 * len(body))
        await producer.send(Message("t", b"first"))
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        began_s = rig.cluster.loop.now_s
        sent = [producer.send_async(Message("t", body))]
        closing = asyncio.create_task(producer.close(), name="close")
        while not closing.done():
            sent.append(producer.send_async(Message("t", body)))
            await asyncio.sleep(0.01)
        assert rig.cluster.loop.now_s - began_s < 2.5 * timeout_s
        assert all(future.done() for future in sent)

    Rig().run(scenario)
