"""Sends that have to wait: for the look-up of their topic, for room in the buffer; and for nothing once their client is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from dledger_client import Message as SyncMessage
from dledger_client import Producer as SyncProducer
from dledger_client.aio import Action, Message, PushConsumer, TransactionState
from dledger_client.runtime.environment import use_environment
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError, MessageTooLargeError, NotSentError
from tests.unit.client.sim_rig import Rig, until
from tests.waiting import LIMIT_S

NO_RECEIVER = "127.0.0.1:1"


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


def test_a_flush_waits_for_what_was_sent_before_it_only() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(max_buffered_bytes=64 << 10, compress_type="none", send_timeout_ms=2_000) as producer:
            await producer.send(Message("t", b"known"))
            goes_on = True

            async def send_on() -> None:
                while goes_on:
                    for _ in range(60):
                        producer.send_async(Message("t", bytes(4000))).add_done_callback(lambda done: done.exception())
                    await asyncio.sleep(0.002)

            sending = asyncio.ensure_future(send_on())
            await until(lambda: len(producer._delayed.lines.get("t", ())) > 100)
            await asyncio.wait_for(producer.flush(), 20)
            assert producer._delayed.lines
            goes_on = False
            await sending

    Rig().run(scenario)


def test_what_waits_counts_as_held_when_the_process_ends() -> None:
    async def scenario(rig: Rig) -> None:
        producer = rig.producer(send_timeout_ms=1000)
        future = producer.send_async(Message("nowhere", b"x"))
        assert [count for _, count in producer._core.held()] == [1]
        await producer._core.flush()
        assert future.done()
        await producer.close()

    Rig().run(scenario)


@pytest.mark.parametrize("way", ["send", "send_many", "send_batch"])
@pytest.mark.parametrize("fault", ["gone", "silent"])
def test_what_was_never_sent_is_not_said_to_be_stored_perhaps(way: str, fault: str) -> None:
    """docs/reference/semantics, row P4: the topic is not known yet, and nobody tells."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for node_id, host in rig.cluster.hosts.items():
            if fault == "gone":
                rig.cluster.kill(node_id)
            elif host.process is not None:
                rig.cluster.loop.pause(host.process)
        loop = asyncio.get_running_loop()
        async with rig.producer(send_timeout_ms=2000) as producer:
            sends: dict[str, Callable[[], Awaitable[object]]] = {
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
    with SyncProducer(NO_RECEIVER, send_timeout_ms=500, max_buffered_bytes=1 << 20) as producer:

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


def held_back(producer: SyncProducer) -> threading.Event:
    """No topic is known before the event is set; then none is."""
    known = threading.Event()

    async def resolve(topic: str, *_: object, **__: object) -> None:
        while not known.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.01)
        raise NotSentError(f"topic {topic}: no node answered")

    producer._core.resolve = resolve  # type: ignore[method-assign]
    return known


def test_what_a_thread_sends_to_a_topic_that_is_not_known_yet_waits_beside() -> None:
    with SyncProducer(NO_RECEIVER) as producer:
        known, returned = held_back(producer), threading.Event()
        futures: list[Any] = []

        def send() -> None:
            futures.append(producer.send_async(SyncMessage("new", b"1"), queue_key="k"))
            futures.append(producer.send_many_async("new", [b"2"] * 3))
            producer.send_oneway(SyncMessage("new", b"3"))
            futures.append(producer.send_async(SyncMessage("other", b"4")))
            returned.set()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            assert returned.wait(LIMIT_S)
            assert not any(future.done() for future in futures)
        finally:
            known.set()
            thread.join(LIMIT_S)
        assert [type(future.exception(LIMIT_S)) for future in futures] == [NotSentError] * 3
        assert producer._delayed.size_bytes == 0


def test_what_a_thread_may_have_waiting_is_bounded_by_the_buffer() -> None:
    with SyncProducer(NO_RECEIVER, max_buffered_bytes=1 << 20, compress_type="none") as producer:
        known, third, fourth, futures = held_back(producer), threading.Event(), threading.Event(), []

        def send() -> None:
            for number in range(4):
                futures.append(producer.send_async(SyncMessage(f"t{number % 2}", bytes(300_000))))
                if number == 2:
                    third.set()
            fourth.set()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            assert third.wait(LIMIT_S)
            assert not fourth.wait(0.3)  # it must not happen, so it cannot be waited for
        finally:
            known.set()
        assert fourth.wait(LIMIT_S)
        thread.join(LIMIT_S)
        assert [type(future.exception(LIMIT_S)) for future in futures] == [NotSentError] * 4


def test_a_thread_that_finds_no_room_beside_fails_in_time() -> None:
    with SyncProducer(NO_RECEIVER, max_buffered_bytes=1 << 20, send_timeout_ms=200, compress_type="none") as producer:
        known = held_back(producer)
        try:
            futures = [producer.send_async(SyncMessage("t", bytes(600_000))) for _ in range(2)]
            with pytest.raises(NotSentError, match="no room in the producer's buffer in time"):
                futures[1].result(LIMIT_S)
            assert not futures[0].done()
        finally:
            known.set()


def test_a_call_that_would_wait_in_a_callback_is_refused_and_sends_nothing() -> None:
    """On the loop it waited for the loop: for ever, and with it every client of the process."""
    shared = LoopThread.shared()
    with SyncProducer(NO_RECEIVER, send_timeout_ms=500) as producer:

        async def in_a_callback() -> list[Any]:
            one, many = producer.send_async(SyncMessage("unknown", b"x")), producer.send_many_async("unknown", [b"x"])
            send, send_many = partial(producer.send, SyncMessage("t", b"x")), partial(producer.send_many, "t", [b"x"])
            for call in (send, send_many, one.result, one.exception, many.result, many.outcomes):
                with pytest.raises(RuntimeError, match="a synchronous call from a callback would wait for itself"):
                    call()
            for ask in (one.result, one.exception, many.result, many.outcomes):
                with pytest.raises(TimeoutError):  # a look at what is known waits for nothing
                    ask(timeout=0)
            assert set(producer._delayed.lines) == {"unknown"}
            return [one, many]

        futures = shared.run(in_a_callback(), LIMIT_S)
        assert {type(future.exception(LIMIT_S)).__name__ for future in futures} == {"NotSentError"}


def test_a_flush_without_time_fails_only_if_something_is_in_flight() -> None:
    shared = LoopThread.shared()
    with SyncProducer(NO_RECEIVER, send_timeout_ms=2_000) as producer:
        producer.flush(timeout=0)

        async def in_a_callback() -> Any:
            return producer.send_async(SyncMessage("unknown", b"x"))

        future = shared.run(in_a_callback(), LIMIT_S)
        with pytest.raises(TimeoutError, match="messages are still in flight after 0 s"):
            producer.flush(timeout=0)
        assert isinstance(future.exception(LIMIT_S), NotSentError)
        producer.flush(timeout=0)


def test_a_flush_ends_in_time_though_a_callback_waits_for_its_caller() -> None:
    entered, released = threading.Event(), threading.Event()

    def waiting(_: object) -> None:
        entered.set()
        released.wait(LIMIT_S)

    with SyncProducer(NO_RECEIVER, send_timeout_ms=100) as producer:
        shared = LoopThread.shared()

        async def in_a_callback() -> Any:
            future = producer.send_async(SyncMessage("unknown", b"x"))
            future.add_done_callback(waiting)
            return future

        shared.run(in_a_callback(), LIMIT_S)
        assert entered.wait(LIMIT_S)
        with pytest.raises(TimeoutError, match="messages are still in flight"):
            producer.flush(timeout=0)
        assert not released.is_set()
        released.set()


def test_a_thread_does_not_pass_what_a_callback_has_sent_before() -> None:
    shared = LoopThread.shared()
    with SyncProducer(NO_RECEIVER, send_timeout_ms=500, max_buffered_bytes=1 << 20, compress_type="none") as producer:
        accumulator, waits, passed = producer._accumulator, threading.Event(), threading.Event()

        def set_up() -> None:
            producer._core.ensure_senders(["g0"])
            accumulator.set_queues("t", [("g0", 0)], 0)

        shared.call(set_up)
        first = producer.send_async(SyncMessage("t", bytes(900_000)))

        def in_a_callback() -> None:
            producer.send_async(SyncMessage("t", b"A" * 300_000), queue_key="k")  # no room
            (batch,) = accumulator.expire(accumulator._batcher("t", "g0", 0), None)
            accumulator.fail(batch, NotSentError("room for others"))
            waits.set()
            passed.wait(0.3)  # it must not happen, so it cannot be waited for

        def from_a_thread() -> None:
            waits.wait(LIMIT_S)
            producer.send_async(SyncMessage("t", b"B" * 300_000), queue_key="k")
            passed.set()

        thread = threading.Thread(target=from_a_thread)
        thread.start()
        shared.call(in_a_callback)
        thread.join(LIMIT_S)
        assert isinstance(first.exception(LIMIT_S), NotSentError)
        held = [bytes(message.body[:1]) for batch in accumulator._batcher("t", "g0", 0).unsent() for message in batch.messages]
        assert held == [b"A", b"B"]


# Closed clients


def test_a_close_that_is_cancelled_goes_on_and_is_waited_for_by_the_next() -> None:
    async def scenario(rig: Rig) -> None:
        producer = rig.producer(send_timeout_ms=3000)
        future = producer.send_async(Message("nowhere", b"x"))
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await producer.close()
        await producer.close()
        assert future.done()
        assert producer._core.closed
        assert not producer._core.router.channels.is_open

    Rig().run(scenario)


def test_a_closed_transaction_producer_begins_no_tasks() -> None:
    async def scenario(rig: Rig) -> None:
        producer = rig.transactions(lambda _message: TransactionState.UNKNOWN)
        await producer.close()
        with pytest.raises(ClientClosedError, match="closed"):
            await producer.prepare(Message("t", b"x"))
        assert not producer._tasks

    Rig().run(scenario)


def test_a_push_consumer_that_cannot_start_is_closed_by_its_block() -> None:
    async def scenario(rig: Rig) -> None:
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        with use_environment(**rig.around()):
            consumer = PushConsumer(rig.cluster.bootstrap, "g", lambda _messages, _context: Action.COMMIT, timeout_ms=500)
        consumer.subscribe("t")
        with pytest.raises(DledgerError):
            async with consumer:
                pass
        assert not consumer._is_left_open

    Rig().run(scenario)


def test_a_closed_consumer_reads_nothing_more_and_ends_what_waits() -> None:
    """docs/reference/semantics, row R10."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = rig.consumer()
        waiting = asyncio.ensure_future(_error_of(consumer.fetch("t", 0, 0, wait_ms=60_000)))
        await until(lambda: consumer._router.channels.is_open)
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await consumer.close()
        assert isinstance(await waiting, ClientClosedError)
        for again in (consumer.fetch("t", 0, 0), consumer.fetch_arrow("t", 0, 0), consumer.offsets("t"), consumer.replicas()):
            with pytest.raises(ClientClosedError):
                await again
        assert asyncio.get_running_loop().time() - began_s < 1
        assert not consumer._router.channels.is_open

    Rig().run(scenario)


def test_a_closed_producer_looks_nothing_up() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        used, unused = rig.producer(), rig.producer()
        await used.send(Message("t", b"x"))
        for producer in (used, unused):
            await producer.close()
            for topic in ("t", "never used"):
                with pytest.raises(ClientClosedError, match="closed"):
                    await producer.send(Message(topic, b"late"))
            assert not producer._core.router.channels.is_open

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
