"""What a push consumer holds of a queue: positions that skip nothing, flow limits, order; and the threads that call listeners."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import Calls, Job, ThreadExecutor
from dledger_client.consumer.group_offsets import LocalOffsetStore
from dledger_client.consumer.listener import Action, ConsumeContext, ListenerCalls, RunningCalls
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.process_queue import ConcurrentProcessQueue, OrderlyProcessQueue
from dledger_client.consumer.settings import PushOptions
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.user_callbacks import FAULTS
from dledger_client.sync.transaction_base import ask
from dledger_client.transactions.resolver import TransactionState
from dledger_wire.clock import SystemClock
from dledger_wire.errors import BusyError, StorageDamagedError, StorageFailedError, StorageFullError
from tests.waiting import LIMIT_S, until

QUEUE = MessageQueue("t", "g0", 3)


class Fake(ReceivedMessage):
    """A message that is only an offset."""

    def __init__(self, offset: int) -> None:
        self.queue_offset = offset
        self.body = b"%d" % offset


class ByHand:
    """An executor whose jobs begin and end when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.at_work: list[tuple[Job, Calls]] = []
        self.running = RunningCalls()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def begin(self, number: int = 0) -> list[int]:
        """The offsets that a listener is given first."""
        job = self.jobs.pop(number)
        calls = job.calls()
        batch = next(calls, None)
        if batch is None:
            job.ended()
            return []
        self.at_work.append((job, calls))
        return [message.queue_offset for message in batch[0]]

    def answer(self, number: int, consumed: int) -> list[int]:
        """The listener consumed so many; the offsets it is given next."""
        job, calls = self.at_work[number]
        try:
            return [message.queue_offset for message in calls.send(consumed)[0]]
        except StopIteration:
            del self.at_work[number]
            job.ended()
            return []

    async def stop(self) -> None:
        return None


class Bench:
    """A consumer under the control of the test."""

    def __init__(self, **options: Any) -> None:
        self.executor: Any = ByHand()
        self.lease = True
        self.sent_back: list[int] = []
        self.takes_back = True
        self.tasks: list[asyncio.Task[None]] = []
        self.options = PushOptions(**options)

    async def send_back(self, queue: MessageQueue, messages: list[ReceivedMessage], delay_level: int) -> list[ReceivedMessage]:
        if not self.takes_back:
            return messages
        self.sent_back += [message.queue_offset for message in messages]
        return []

    def may_consume(self, queue: MessageQueue) -> bool:
        return self.lease

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def rest(self) -> None:
        """Let everything that was spawned run until it sleeps or ends."""
        for _ in range(5):
            await asyncio.sleep(0)


def fakes(first: int, upto: int) -> list[ReceivedMessage]:
    return [Fake(offset) for offset in range(first, upto)]


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 30))
def test_the_position_is_the_lowest_message_not_consumed_whatever_the_order(seed: int, step: int, count: int) -> None:
    async def scenario() -> None:
        draw = random.Random(seed)
        bench = Bench(consume_message_batch_max_size=step)
        queue = ConcurrentProcessQueue(QUEUE, bench, 100)
        consumed: set[int] = set()
        fetched = 100
        working: list[list[int]] = []
        while len(consumed) < count or working:
            what = draw.random()
            if what < 0.1:  # paused, or not any more
                bench.lease = not bench.lease
                if bench.lease:
                    queue.resume()
            elif what < 0.35 and fetched < 100 + count:
                upto = min(100 + count, fetched + draw.randint(1, 5))
                queue.add(fakes(fetched, upto), 10 * (upto - fetched), upto)
                fetched = upto
            elif what < 0.6 and bench.executor.jobs:
                offsets = bench.executor.begin(draw.randrange(len(bench.executor.jobs)))
                assert bool(offsets) == bench.lease
                working += [offsets] if offsets else []
            elif working:
                number = draw.randrange(len(working))
                offsets = working.pop(number)
                bench.executor.answer(number, len(offsets))
                consumed.update(offsets)
            lowest = min(set(range(100, fetched)) - consumed, default=fetched)
            assert queue.consume_offset <= lowest
            assert step > 1 or queue.consume_offset == lowest
        assert queue.consume_offset == 100 + count
        assert (queue.count, queue.size_bytes, queue.is_idle) == (0, 0, True)

    asyncio.run(scenario())


def test_filtered_messages_are_passed_over_and_limits_hold() -> None:
    async def scenario() -> None:
        bench = Bench(pull_threshold_for_queue=4, pull_threshold_size_for_queue=100, consume_concurrently_max_span=50)
        queue = ConcurrentProcessQueue(QUEUE, bench, 0)
        queue.add([], 0, 7)
        assert queue.consume_offset == 7
        queue.add(fakes(8, 10), 20, 30)
        assert queue.has_room()
        bench.executor.begin(1)
        bench.executor.answer(0, 1)
        assert (queue.consume_offset, queue.count) == (7, 1)
        queue.add([], 0, 60)
        assert not queue.has_room()  # the span
        bench.executor.begin()
        bench.executor.answer(0, 1)
        assert queue.consume_offset == 60
        queue.add(fakes(60, 61), 101, 61)
        assert not queue.has_room()  # the bytes
        bench.executor.begin()
        bench.executor.answer(0, 1)
        queue.add(fakes(61, 65), 4, 65)
        assert not queue.has_room()  # the messages

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [ConcurrentProcessQueue, OrderlyProcessQueue])
def test_fetches_whose_messages_were_all_sorted_out_take_no_room(kind: type[ConcurrentProcessQueue | OrderlyProcessQueue]) -> None:
    async def scenario() -> None:
        bench = Bench(pull_threshold_size_for_queue=100)
        queue = ConcurrentProcessQueue(QUEUE, bench, 0) if kind is ConcurrentProcessQueue else OrderlyProcessQueue(QUEUE, bench, 0, 1)
        queue.add([], 150, 7)
        assert (queue.has_room(), queue.size_bytes, queue.consume_offset) == (True, 0, 7)
        queue.add(fakes(7, 9), 60, 9)
        queue.add([], 60, 20)
        assert (queue.has_room(), queue.size_bytes) == (True, 60)

    asyncio.run(scenario())


def test_threads_give_each_message_once_however_often_the_consumer_is_paused() -> None:
    async def scenario() -> None:
        bench, given = Bench(pull_threshold_for_queue=5000), list[int]()

        def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
            given.extend(message.queue_offset for message in messages)
            return Action.COMMIT

        bench.executor = ThreadExecutor(listener, 4)
        queue = ConcurrentProcessQueue(QUEUE, bench, 0)
        for first in range(0, 3000, 30):
            queue.add(fakes(first, first + 30), 300, first + 30)
            bench.lease = first % 60 == 0
            if bench.lease:
                queue.resume()
            await asyncio.sleep(0)
        bench.lease = True
        queue.resume()
        await until(lambda: queue.consume_offset == 3000, LIMIT_S)
        await bench.executor.stop()
        assert sorted(given) == list(range(3000))
        assert not bench.sent_back

    asyncio.run(scenario())


def test_part_of_a_batch_is_sent_back_and_the_position_waits_for_it() -> None:
    async def scenario() -> None:
        bench = Bench(consume_message_batch_max_size=4)
        bench.takes_back = False
        queue = ConcurrentProcessQueue(QUEUE, bench, 0)
        queue.add(fakes(0, 4), 40, 4)
        bench.executor.begin()
        bench.executor.answer(0, 2)
        await bench.rest()
        assert (queue.consume_offset, queue.is_idle, bench.executor.jobs) == (0, False, [])
        bench.tasks[0].cancel()
        bench.takes_back = True
        queue = ConcurrentProcessQueue(QUEUE, bench, 0)
        queue.add(fakes(0, 4), 40, 4)
        bench.executor.begin()
        bench.executor.answer(0, 3)
        await bench.rest()
        assert (queue.consume_offset, bench.sent_back) == (4, [3])

    asyncio.run(scenario())


def test_a_dropped_queue_starts_nothing_and_waits_only_for_what_runs() -> None:
    async def scenario() -> None:
        bench = Bench()
        queue = ConcurrentProcessQueue(QUEUE, bench, 0)
        queue.add(fakes(0, 3), 30, 3)
        bench.executor.begin(1)
        queue.drop()
        assert not queue.is_idle
        assert bench.executor.begin() == []
        bench.executor.answer(0, 1)
        assert queue.is_idle
        assert queue.consume_offset == 0
        queue.add(fakes(3, 5), 20, 5)
        assert len(bench.executor.jobs) == 1

    asyncio.run(scenario())


def test_an_orderly_queue_runs_one_job_stops_without_lease_and_goes_on() -> None:
    async def scenario() -> None:
        bench = Bench(orderly=True, consume_message_batch_max_size=2)
        queue = OrderlyProcessQueue(QUEUE, bench, 0, epoch=9)
        queue.add(fakes(0, 5), 50, 6)
        queue.add(fakes(6, 8), 20, 8)
        assert len(bench.executor.jobs) == 1
        assert bench.executor.begin() == [0, 1]
        assert bench.executor.answer(0, 2) == [2, 3]
        bench.lease = False
        assert bench.executor.answer(0, 2) == []
        assert (queue.consume_offset, bench.executor.jobs) == (4, [])
        queue.resume()
        assert bench.executor.jobs == []
        bench.lease = True
        queue.resume()
        assert bench.executor.begin() == [4, 6]
        assert bench.executor.answer(0, 2) == [7]
        assert bench.executor.answer(0, 1) == []
        assert (queue.consume_offset, queue.count, queue.size_bytes) == (8, 0, 0)

    asyncio.run(scenario())


def test_an_orderly_batch_that_comes_again_is_the_same_and_what_came_later_has_attempts_of_its_own() -> None:
    """docs/reference/semantics, row K5."""

    async def scenario() -> None:
        bench = Bench(orderly=True, consume_message_batch_max_size=4, max_reconsume_times=1, suspend_current_queue_time_ms=0)
        queue = OrderlyProcessQueue(QUEUE, bench, 0, epoch=9)

        async def refuse(expected: list[int], consumed: int = 0) -> None:
            assert bench.executor.begin() == expected
            assert bench.executor.answer(0, consumed) == []
            await asyncio.wait(bench.tasks)
            await bench.rest()

        queue.add(fakes(0, 2), 20, 2)
        await refuse([0, 1])
        queue.add(fakes(2, 7), 50, 7)
        await refuse([0, 1], 1)  # the other one is the first now
        await refuse([1])
        assert bench.sent_back == [1]
        await refuse([2, 3, 4, 5])
        assert bench.executor.begin() == [2, 3, 4, 5]
        assert bench.executor.answer(0, 4) == [6]
        assert bench.executor.answer(0, 1) == []
        assert (queue.consume_offset, queue.count, bench.sent_back) == (7, 0, [1])

    asyncio.run(scenario())


def test_the_position_of_an_orderly_queue_follows_the_listener_call_by_call() -> None:
    """It stood still until the worker had gone through up to 256 messages: they all came again when the consumer was killed before."""

    async def main() -> None:
        bench = Bench(orderly=True, consume_message_batch_max_size=2)
        queue = OrderlyProcessQueue(QUEUE, bench, 10, 7)
        queue.add(fakes(10, 20), 100, 20)
        assert bench.executor.begin() == [10, 11]
        positions = [queue.consume_offset]
        for consumed in (2, 2, 1):
            bench.executor.answer(0, consumed)
            positions.append(queue.consume_offset)
        assert positions == [10, 12, 14, 15]
        await bench.rest()
        assert queue.consume_offset == 15

    asyncio.run(main())


@pytest.mark.parametrize("answer", [RuntimeError("no"), SystemExit(1), Action.RECONSUME_LATER, None, True])
def test_only_a_commit_is_a_commit(answer: object) -> None:
    def listener(_messages: list[ReceivedMessage], _context: ConsumeContext) -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert ListenerCalls(listener).call(fakes(0, 3), ConsumeContext("t", "g0", 0)) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1), StopIteration(), GeneratorExit()])
def test_nothing_a_listener_raises_ends_its_worker(error: BaseException) -> None:
    def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> object:
        messages.clear()
        raise error

    assert ListenerCalls(listener).call(fakes(0, 3), ConsumeContext("t", "g0", 0)) == 0
    if isinstance(error, FAULTS):
        assert asyncio.run(ListenerCalls(listener).call_async(fakes(0, 3), ConsumeContext("t", "g0", 0))) == 0


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
def test_what_a_check_listener_raises_in_its_thread_reaches_the_loop_as_an_ordinary_error(error: BaseException) -> None:
    """A future does not take StopIteration; SystemExit would end the loop of all clients."""

    def listener(_message: ReceivedMessage) -> TransactionState:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        ask(listener, Fake(0))


def test_a_worker_that_is_cancelled_is_no_listener_that_failed() -> None:
    async def listener(_messages: list[ReceivedMessage], _context: ConsumeContext) -> object:
        await asyncio.sleep(60)
        return Action.COMMIT

    async def scenario() -> None:
        working = asyncio.ensure_future(ListenerCalls(listener).call_async(fakes(0, 1), ConsumeContext("t", "g0", 0)))
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(scenario())


@pytest.mark.parametrize(("level", "pause"), [("now", "long"), (1 << 40, -5), (1.5, float("nan")), (None, None), (19, -0.1)])
def test_wishes_of_a_listener_that_cannot_be_followed_are_none(level: Any, pause: Any) -> None:
    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        messages.clear()
        context.delay_level, context.suspend_ms = level, pause
        return Action.RECONSUME_LATER

    context, messages = ConsumeContext("t", "g0", 0), fakes(0, 3)
    assert ListenerCalls(listener).call(messages, context) == 0
    assert (context.delay_level, context.suspend_ms, len(messages)) == (0, 0, 3)


def test_a_truth_value_is_the_number_that_it_is_in_python() -> None:
    """No request takes one: the message was neither sent back nor consumed, until the consumer ended."""

    def listener(_messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        context.delay_level = context.suspend_ms = True
        return Action.RECONSUME_LATER

    context = ConsumeContext("t", "g0", 0)
    assert ListenerCalls(listener).call(fakes(0, 1), context) == 0
    assert (type(context.delay_level), context.delay_level) == (int, 1)


def test_a_listener_that_returns_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Else nothing tells whoever forgot it, until the messages are dead letters."""

    def forgetful(_messages: list[ReceivedMessage], _context: ConsumeContext) -> None:
        return None

    calls = ListenerCalls(forgetful)
    for _ in range(12):
        assert calls.call(fakes(0, 1), ConsumeContext("orders", "g0", 0)) == 0
    first, tenth = [record.message for record in caplog.records]  # not a line for each call
    assert "forgetful of topic orders returned None; expected Action.COMMIT or Action.RECONSUME_LATER" in first
    assert tenth.endswith("(10 times so far)")


def test_an_ack_index_that_is_no_number_commits_nothing() -> None:
    def listener(_messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        context.ack_index = 1.0  # type: ignore[assignment]
        return Action.COMMIT

    assert ListenerCalls(listener).call(fakes(0, 3), ConsumeContext("t", "g0", 0)) == 0


def test_a_commit_may_be_of_the_first_messages_only() -> None:
    def listener(_messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        context.ack_index = 1
        return Action.COMMIT

    assert ListenerCalls(listener).call(fakes(0, 3), ConsumeContext("t", "g0", 0)) == 2


def test_threads_run_every_job_and_tell_the_loop() -> None:
    async def scenario() -> None:
        threads: set[int] = set()
        both = threading.Barrier(2, timeout=LIMIT_S)
        ended: list[int] = []
        done = asyncio.Event()

        def listener(messages: list[ReceivedMessage], _context: ConsumeContext) -> Action:
            if messages[0].queue_offset < 2:
                both.wait()  # two at once, or never
            threads.add(threading.get_ident())
            return Action.COMMIT

        class One:
            def __init__(self, number: int) -> None:
                self.number = number

            def calls(self) -> Calls:
                for _ in range(3):
                    assert (yield fakes(self.number, self.number + 1), ConsumeContext("t", "g0", 0)) == 1

            def ended(self) -> None:
                assert threading.get_ident() == own
                ended.append(self.number)
                if len(ended) == 100:
                    done.set()

        own = threading.get_ident()
        executor = ThreadExecutor(listener, 2)
        for number in range(100):
            executor.submit(One(number))
        async with asyncio.timeout(LIMIT_S):
            await done.wait()
        await executor.stop()
        assert sorted(ended) == list(range(100))
        assert len(threads) == 2
        assert own not in threads

    asyncio.run(scenario())


def test_offset_files_are_whole_and_nobody_shares_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = OffsetFile(str(tmp_path), "10.0.0.1", "g")
        second = OffsetFile(str(tmp_path), "10.0.0.1", "g")
        assert (first.client_id, second.client_id) == ("10.0.0.1@0", "10.0.0.1@1")
        await first.save({QUEUE: 5})
        await first.save({MessageQueue("t", "g0", 0): 7})
        with pytest.raises(BusyError):
            OffsetFile(str(tmp_path), "10.0.0.1", "g", "10.0.0.1@0")
        await first.close()
        again = OffsetFile(str(tmp_path), "10.0.0.1", "g")
        assert again.client_id == first.client_id
        assert again.offsets == {QUEUE: 5, MessageQueue("t", "g0", 0): 7}
        await again.close()
        (tmp_path / "10.0.0.1@0" / "g" / "offsets.json").write_text("{")
        with pytest.raises(StorageDamagedError, match="remove it to start over"):
            OffsetFile(str(tmp_path), "10.0.0.1", "g")
        (tmp_path / "10.0.0.1@0" / "g" / "offsets.json").unlink()
        (tmp_path / "10.0.0.1@0" / "g" / "offsets.json").mkdir()
        with pytest.raises(StorageFailedError, match="offsets could not be read"):
            OffsetFile(str(tmp_path), "10.0.0.1", "g")
        (tmp_path / "10.0.0.1@0" / "g" / "offsets.json").rmdir()
        over = OffsetFile(str(tmp_path), "10.0.0.1", "g")  # as the error says
        assert (over.client_id, over.offsets) == (first.client_id, {})
        await over.close()
        await second.close()

    asyncio.run(scenario())


def test_an_offset_file_knows_which_topic_its_offsets_count_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
        await file.save({QUEUE: 0}, "17")
        await file.save({QUEUE: 6})
        await file.close()
        again = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
        assert (again.offsets, again.topic_epochs) == ({QUEUE: 6}, {QUEUE: "17"})
        await again.close()

    asyncio.run(scenario())


class Unread(dict[MessageQueue, int]):
    """Offsets that nobody looks through as a whole."""

    def __iter__(self) -> Iterator[MessageQueue]:
        raise AssertionError("all offsets were looked through for one queue")


def test_the_offset_of_a_queue_is_found_without_a_look_at_those_of_all_others(tmp_path: Path) -> None:
    """A broadcast of thousands of topics stood still for a minute when it began."""

    class Router:
        clock = SystemClock()

        async def topic(self, topic: str, _deadline_ms: int) -> list[TopicQueues]:
            return [TopicQueues(topic, "g0", 4, 4, 6, "17")]

    async def scenario() -> None:
        file = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
        await file.save({MessageQueue(f"t{number}", "g0", 3): number for number in range(100)}, "17")
        await file.close()
        file = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
        file.offsets = Unread(file.offsets)
        store = LocalOffsetStore(Router(), file, PushOptions())  # type: ignore[arg-type]
        found = [await store.find(MessageQueue(f"t{number}", "g0", 3), 0) for number in range(100)]
        assert [each.offset for each in found] == list(range(100))
        assert {each.topic_epoch for each in found} == {"17"}, "a replica that lags may have another topic of that name"
        await file.close()

    asyncio.run(scenario())


def test_a_forked_child_does_not_keep_the_lock_of_a_file_that_was_closed(tmp_path: Path) -> None:
    file = OffsetFile(str(tmp_path), "10.0.0.1", "g", "a")
    until_closed, let_go = os.pipe()
    child = os.fork()
    if child == 0:  # it has a copy of the descriptor for as long as it lives
        os.close(let_go)
        os.read(until_closed, 1)
        os._exit(0)
    try:
        file.unlock()
        OffsetFile(str(tmp_path), "10.0.0.1", "g", "a").unlock()
    finally:
        os.close(let_go)
        os.close(until_closed)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_used_is_told_by_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailedError, match="offsets cannot be stored here"):
        OffsetFile(str(tmp_path / "file"), "10.0.0.1", "g")


def test_an_offset_file_is_written_beside_the_loop_and_an_error_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    problem = [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")]

    def fsync(_descriptor: int) -> None:
        synced.append(threading.get_ident())
        if problem:
            raise problem.pop(0)

    async def scenario() -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        file = OffsetFile(str(tmp_path), "10.0.0.1", "g")
        for kind in (StorageFullError, StorageFailedError):
            with pytest.raises(kind, match="offsets could not be saved"):
                await file.save({QUEUE: 5})
            assert file.offsets == {}
        await asyncio.gather(file.save({QUEUE: 6}), file.save({MessageQueue("t", "g0", 0): 7}))
        await file.close()
        assert len(synced) == 4
        assert threading.get_ident() not in synced
        assert OffsetFile(str(tmp_path), "10.0.0.1", "g").offsets == {QUEUE: 6, MessageQueue("t", "g0", 0): 7}

    asyncio.run(scenario())
