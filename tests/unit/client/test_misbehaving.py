"""Functions of the application that clients call, and that answer nonsense or end in ways of their own: nobody else pays for it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger_client import TransactionProducer
from dledger_client.aio import Message, TransactionOutcome, TransactionState
from dledger_client.cluster.router import Router
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.group_offsets import BrokerOffsetStore
from dledger_client.consumer.initial_offsets import CommittedOffset
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.producer.delivery_report import AsyncSendFuture, DeliveryReport, SendFuture
from dledger_client.producer.send_many import SendManyFuture
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.transactions.resolver import TransactionResolver
from dledger_wire._pb import transaction_pb2
from dledger_wire._pb.transaction_pb2 import EndTransactionsResponse
from dledger_wire.errors import ClientClosedError, NotSentError, OutcomeUnknownError, UnreachableError
from tests.unit.broker.test_transactions import QUICK
from tests.unit.client.push_rig import Group, send
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_process_queue import Fake
from tests.waiting import LIMIT_S


def cancelled(*_: object) -> Any:
    raise asyncio.CancelledError


# Check listeners


def test_a_check_listener_that_answers_nonsense_counts_as_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """docs/reference/semantics, row X3: it is asked again, and what it says then counts; what is wrong is said once."""
    answers: list[Any] = [None, True, "COMMIT", cancelled, TransactionState.COMMIT]

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        asked: list[bytes] = []

        def of_the_shop(message: ReceivedMessage) -> Any:
            asked.append(message.body)
            answer = answers.pop(0)
            return answer() if callable(answer) else answer

        async with rig.transactions(of_the_shop) as producer, rig.consumer() as consumer:
            await producer.prepare(Message("t", b"order"))
            (got,) = await consumer.fetch("t", 0, 0, wait_ms=20_000)
            assert (got.body, len(asked)) == (b"order", 5)

    with caplog.at_level(logging.ERROR, "dledger_client"):
        Rig(settings=QUICK.replace("transactionCheckMax: 3", "transactionCheckMax: 9")).run(scenario)
    said = [record.getMessage() for record in caplog.records if "of_the_shop" in record.getMessage()]
    assert len(said) == 1
    assert "answered None" in said[0]


def test_sys_exit_in_a_check_listener_of_a_thread_ends_nothing() -> None:
    def leave(_message: ReceivedMessage) -> TransactionState:
        sys.exit(3)

    with TransactionProducer("127.0.0.1:1", "g", leave) as producer:
        shared = LoopThread.shared()
        with pytest.raises(RuntimeError, match="SystemExit"):
            shared.run(cast(Coroutine[Any, Any, TransactionState], producer._inner._run_listener(leave, Fake(0))))
    assert shared.call(lambda: 7) == 7


# The loop thread, callbacks


def test_the_loop_of_all_clients_survives_what_asyncio_lets_out() -> None:
    thread = LoopThread()

    async def leave() -> None:
        raise KeyboardInterrupt

    async def answer() -> int:
        return 7

    thread.loop.call_soon_threadsafe(sys.exit)
    asyncio.run_coroutine_threadsafe(leave(), thread.loop)
    assert thread.run(answer(), 5) == 7
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join(5)
    assert not thread._thread.is_alive()


def test_a_callback_that_exits_keeps_nobody_else_from_being_told() -> None:
    outcome = DeliveryReport(threading.Lock(), "t", "g0", 0)
    told: list[str] = []
    future = SendFuture(outcome, 0)
    future.add_done_callback(lambda _: sys.exit(1))
    future.add_done_callback(cancelled)
    future.add_done_callback(lambda _: told.append("third"))
    outcome.fail(NotSentError("x"))
    assert told == ["third"]


def test_a_keyboard_interrupt_of_a_callback_stays_in_the_loop_thread() -> None:
    """No Ctrl-C arrives there: it left whoever waited behind it without an answer, with the rest of what the leader had answered."""
    outcome = DeliveryReport(threading.Lock(), "t", "g0", 0)
    future = SendFuture(outcome, 0)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    future.add_done_callback(interrupted)
    known = threading.Event()
    future.add_done_callback(lambda _: known.set())
    LoopThread.shared().call(lambda: outcome.fail(NotSentError("x")))
    assert known.is_set()


def test_ctrl_c_in_a_callback_of_the_main_thread_goes_on() -> None:
    outcome = DeliveryReport(threading.Lock(), "t", "g0", 0)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    SendFuture(outcome, 0).add_done_callback(interrupted)
    with pytest.raises(KeyboardInterrupt):
        outcome.fail(NotSentError("x"))


def test_who_awaits_a_send_on_another_loop_is_woken() -> None:
    """Of a future that was made there with ``send_async``: the loop slept on until something else came to it."""
    outcome = DeliveryReport(threading.Lock(), "t", "g0", 0)
    told = threading.Event()

    class Loop(asyncio.SelectorEventLoop):
        """Tells when it has nothing to do."""

        idle = threading.Event()

        def _run_once(self) -> None:
            if not self._ready:  # type: ignore[attr-defined]
                self.idle.set()
            super()._run_once()

    async def waiting() -> None:
        with pytest.raises(NotSentError):
            await AsyncSendFuture(outcome, 0)
        told.set()

    loop = Loop()
    other = threading.Thread(target=lambda: loop.run_until_complete(waiting()))
    other.start()
    assert loop.idle.wait(LIMIT_S)
    LoopThread.shared().call(lambda: outcome.fail(NotSentError("x")))
    is_told = told.wait(LIMIT_S)
    loop.call_soon_threadsafe(lambda: None)
    other.join(LIMIT_S)
    loop.close()
    assert is_told


# Tasks


def test_a_queue_that_ends_by_a_bug_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    find, calls = BrokerOffsetStore.find, []

    async def wrong_once(self: BrokerOffsetStore, queue: MessageQueue, epoch: int) -> CommittedOffset:
        calls.append(queue)
        if len(calls) == 1:
            raise KeyError(queue)
        return await find(self, queue, epoch)

    monkeypatch.setattr(BrokerOffsetStore, "find", wrong_once)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 3)
        group = Group(rig)
        await group.start("a")
        await until(lambda: len(group.seen) == 3)
        await group.stop()

    Rig().run(scenario)


# Ends of transactions


class Ends:
    """A group's ends at a master that answers as the test has it."""

    def __init__(self, answer: Callable[[], Awaitable[EndTransactionsResponse]]) -> None:
        async def call_leader(_group: str, _method: object, _request: object, *, deadline_ms: int) -> EndTransactionsResponse:
            return await answer()

        router = SimpleNamespace(call_leader=call_leader, clock=SimpleNamespace(monotonic_ms=lambda: 0))
        self.ends = TransactionResolver(cast(Router, router), "g0", "tests")

    async def end(self) -> asyncio.Task[TransactionOutcome]:
        """Begin to end one, as far as it goes."""
        task = asyncio.create_task(self.ends.end(0, "id", TransactionState.COMMIT, 1000))
        for _ in range(3):
            await asyncio.sleep(0)
        return task


def test_closing_fails_ends_that_are_under_way_or_wait() -> None:
    async def main() -> None:
        work = Ends(lambda: asyncio.get_running_loop().create_future())
        asked = [await work.end(), await work.end()]
        waiting, given_up = await work.end(), await work.end()
        given_up.cancel()
        async with asyncio.timeout(LIMIT_S):
            await work.ends.stop()
            for task in asked:
                with pytest.raises(OutcomeUnknownError):
                    await task
            for task in (waiting, await work.end()):
                with pytest.raises(ClientClosedError, match="open"):  # unlike after NotSentError, another attempt does not help
                    await task

    asyncio.run(main())


def test_an_end_that_comes_while_the_last_calls_end_is_told_too() -> None:
    async def main() -> None:
        answers: list[asyncio.Future[EndTransactionsResponse]] = []
        ended = transaction_pb2.TransactionEnded(outcome=transaction_pb2.TRANSACTION_COMMITTED)
        answer = EndTransactionsResponse(results=[ended])

        async def asked() -> EndTransactionsResponse:
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

        work = Ends(asked)

        async def twice() -> None:
            await work.ends.end(0, "id", TransactionState.COMMIT, 1000)
            await work.ends.end(1, "id", TransactionState.COMMIT, 1000)

        one = asyncio.create_task(twice())
        for _ in range(3):
            await asyncio.sleep(0)
        other = await work.end()
        other.cancel()
        for each in answers[:2]:
            each.set_result(answer)
        async with asyncio.timeout(LIMIT_S):
            while len(answers) < 3:  # noqa: ASYNC110 - a call begins a few turns of the loop later
                await asyncio.sleep(0)
            answers[2].set_result(answer)
            await one

    asyncio.run(main())


def test_an_outcome_that_nobody_knows_is_a_broken_answer() -> None:
    async def answer() -> EndTransactionsResponse:
        ended = transaction_pb2.TransactionEnded(outcome=cast(Any, 77))
        return EndTransactionsResponse(results=[ended])

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(UnreachableError, match="unknown transaction outcome"):
                await (await Ends(answer).end())

    asyncio.run(main())


def test_a_bug_while_ending_is_logged_and_fails_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def answer() -> EndTransactionsResponse:
        raise ZeroDivisionError

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(OutcomeUnknownError):
                await (await Ends(answer).end())
            await asyncio.sleep(0)

    asyncio.run(main())
    assert any(record.exc_info for record in caplog.records)


def test_a_message_that_cannot_be_added_keeps_nobody_behind_it_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            resolve, calls = producer._core.resolve, []

            async def wrong_once(*asked: Any, **how: Any) -> None:
                calls.append(asked)
                if len(calls) == 1:
                    raise ZeroDivisionError
                await resolve(*asked, **how)

            monkeypatch.setattr(producer._core, "resolve", wrong_once)
            first, second = producer.send_async(Message("t", b"0")), producer.send_async(Message("t", b"1"))
            with pytest.raises(NotSentError, match="ZeroDivisionError"):
                await first
            assert (await second).queue_offset == 0

    Rig().run(scenario)


def test_the_error_that_a_batch_shares_grows_with_no_message() -> None:
    """Whoever logs the error of each message would otherwise log those of all before it, and keep their frames in memory."""
    report = DeliveryReport(threading.Lock(), "t", "g0", 0)
    report.fail(NotSentError("no leader"))
    depths = []
    for number in range(3):
        with pytest.raises(NotSentError) as raised:
            SendFuture(report, number).result()
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    for _ in range(3):
        with pytest.raises(NotSentError) as raised:
            SendManyFuture(report, 3).result()
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert (len(set(depths[:3])), len(set(depths[3:]))) == (1, 1)


@pytest.mark.parametrize("make", [lambda report: SendFuture(report, 0), lambda report: SendManyFuture(report, 1)])
def test_code_for_futures_of_the_standard_library_can_ask_those_of_sends(make: Callable[[DeliveryReport], Any]) -> None:
    report = DeliveryReport(threading.Lock(), "t", "g0", 0)
    future = make(report)
    assert (future.running(), future.cancel(), future.cancelled()) == (True, False, False)
    report.fail(NotSentError("no leader"))
    assert (future.running(), future.cancel(), future.cancelled()) == (False, False, False)
