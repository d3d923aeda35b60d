"""Sends that have to wait: for the look-up of their topic, for room in the buffer; and for nothing once their client is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger_client import Message as SyncMessage
from dledger_client import Producer as SyncProducer
from dledger_client.aio import Message
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError, MessageTooLargeError, NotSentError
from tests.unit.client.sim_rig import Rig, until
from tests.waiting import LIMIT_S

NOBODY = "127.0.0.1:1"


# Topics that are looked up


def test_a_topic_that_is_looked_up_holds_up_no_other() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=3000) as producer:
            await producer.send(Message("t", b"known"))
            missing = [asyncio.ensure_future(_error_of(producer.send_async(Message(f"no{n}", b"x")))) for n in range(30)]
            known = asyncio.ensure_future(_error_of(producer.send_async(Message("t", b"behind them"))))
            done, _ = await asyncio.wait([*missing, known], return_when=asyncio.FIRST_COMPLETED)
            assert known in done
            assert await known is None
            assert {type(await each).__name__ for each in missing} == {"TopicNotFoundError"}

    Rig().run(scenario)


async def _error_of(future: Any) -> DledgerError | None:
    try:
        await future
    except DledgerError as error:
        return error
    return None


def test_what_waits_for_a_look_up_keeps_its_order_with_what_is_sent_later() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            early = [producer.send_async(Message("t", b"%d" % n)) for n in range(5)]
            await until(lambda: not producer._delayed.lines)
            late = [producer.send_async(Message("t", b"%d" % n)) for n in range(5, 9)]
            assert [(await each).queue_offset for each in [*early, *late]] == list(range(9))

    Rig().run(scenario)


@pytest.mark.parametrize("way", ["send", "send_many", "send_batch"])
@pytest.mark.parametrize("fault", ["gone", "silent"])
def test_what_was_never_sent_is_not_said_to_be_stored_perhaps(way: str, fault: str) -> None:
    """docs/reference/semantics.md, row P4: the topic is not known yet, and nobody tells."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for node_id, host in rig.cluster.hosts.items():
            if fault == "gone":
                rig.cluster.kill(node_id)
            elif host.process is not None:
                rig.cluster.loop.pause(host.process)
        loop = asyncio.get_running_loop()
        async with rig.producer(send_timeout_ms=2000) as producer:
            sends = {
                "send": lambda: producer.send(Message("t", b"x")),
                "send_many": lambda: producer.send_many("t", [b"x", b"y"]),
                "send_batch": lambda: producer.send_batch([Message("t", b"x")]),
            }
            began_s = loop.time()
            with pytest.raises(NotSentError, match="nothing was stored") as caught:
                await sends[way]()
            assert not caught.value.outcome_unknown
            assert loop.time() - began_s < 2.3

    Rig().run(scenario)


# Callbacks of the synchronous face


def test_a_send_in_a_callback_waits_for_neither_a_topic_nor_room() -> None:
    """It is the loop that would have to bring both, for all clients of the process."""
    shared = LoopThread.shared()
    with SyncProducer(NOBODY, send_timeout_ms=500, max_buffered_bytes=1 << 20) as producer:

        async def in_a_callback() -> list[Any]:
            core = producer._core
            core.ensure_senders(["g0"])
            core.accumulator.set_queues("full", [("g0", 0)], 0)
            kept = [producer.send_async(SyncMessage("full", bytes(600_000))) for _ in range(3)]
            many = producer.send_many_async("full", [bytes(500_000)] * 3)
            return [*kept, producer.send_async(SyncMessage("unknown", b"x")), many, producer.send_many_async("unknown", [b"x"])]

        futures = shared.run(in_a_callback(), LIMIT_S)
        assert shared.call(lambda: 7) == 7
        errors = [future.exception(LIMIT_S) for future in futures]
    assert {type(error).__name__ for error in errors} == {"NotSentError"}


# Closed clients


def test_a_closed_consumer_reads_nothing_more_and_ends_what_waits() -> None:
    """docs/reference/semantics.md, row R10."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = rig.consumer()
        waiting = asyncio.ensure_future(_error_of(consumer.fetch("t", 0, 0, wait_ms=60_000)))
        await until(lambda: consumer._router.is_open)
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await consumer.close()
        assert isinstance(await waiting, ClientClosedError)
        for again in (consumer.fetch("t", 0, 0), consumer.fetch_arrow("t", 0, 0), consumer.offsets("t"), consumer.replicas()):
            with pytest.raises(ClientClosedError):
                await again
        assert asyncio.get_running_loop().time() - began_s < 1
        assert not consumer._router.is_open

    Rig().run(scenario)


def test_a_closed_producer_looks_nothing_up() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        used, unused = rig.producer(), rig.producer()
        await used.send(Message("t", b"x"))
        for producer in (used, unused):
            await producer.close()
            for topic in ("t", "never used"):
                with pytest.raises(NotSentError, match="closed"):
                    await producer.send(Message(topic, b"late"))
            assert not producer._core.router.is_open

    Rig().run(scenario)


# Queues and numbers


def test_a_selector_chooses_one_queue_for_all_bodies_of_a_call() -> None:
    asked: list[int] = []

    def selector(count: int) -> int:
        asked.append(count)
        return len(asked) % count

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with rig.producer(batch_bytes=4096) as producer:
            for _ in range(2):
                result = await producer.send_many("t", [bytes(1000)] * 20, queue_key=selector)
                assert len(result.ranges) > 3
                assert len({each.queue_id for each in result.ranges}) == 1
        assert asked == [3, 3]

    Rig().run(scenario)


@pytest.mark.parametrize("queue_id", [[1], ("g0",), ("g0", [1]), {}, "1", 1.5])
def test_what_is_no_queue_is_refused_as_the_futures_error(queue_id: Any) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for _ in range(2):  # before and after the topic is known
                for future in (
                    producer.send_async(Message("t", b"x"), queue_id=queue_id),
                    producer.send_many_async("t", [b"x"], queue_id=queue_id),
                ):
                    with pytest.raises(InvalidArgumentError, match="queue"):
                        await future
                await producer.send(Message("t", b"x"))

    Rig().run(scenario)


def test_a_body_that_the_cluster_refuses_is_named_by_its_number_in_the_call() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_message_bytes=8 << 20, compress_type="none") as producer:
            with pytest.raises(MessageTooLargeError) as caught:
                await producer.send_many("t", [b"small", bytes(6 << 20), b"small"])
        assert str(caught.value).startswith("body over 4194304 bytes")
        assert str(caught.value).endswith("2 of 3 bodies are stored, the first that is not has number 1")

    Rig().run(scenario)
