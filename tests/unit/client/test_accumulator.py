"""RecordAccumulator and InFlightQueue alone: no event loop, no clock, no network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dledger_client.message import Message
from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES, UNSENT, ProducerBatch, QueueBatcher
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.producer.in_flight import InFlightQueue
from dledger_client.producer.message_columns import MessageColumns
from dledger_client.producer.send_many import SendManyFuture, append_parts
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.errors import ClientClosedError, InvalidArgumentError, MessageTooLargeError, NotSentError, TopicNotFoundError
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC

SIZE = 1 + MESSAGE_OVERHEAD_BYTES  # of a message of one byte


@dataclass
class Sender:
    wake_up: Callable[[], None]


class Senders(dict[str, Any]):
    """Records who was woken; every replica group is available but ``avoided``."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.avoided = ""

    def wake_up(self, replica_group: str) -> None:
        self.woken.append(replica_group)

    def __getitem__(self, replica_group: str) -> Sender:
        return Sender(lambda: self.wake_up(replica_group))

    def is_available(self, replica_group: str) -> bool:
        return replica_group != self.avoided


def accumulator(*groups: str, queues: int = 2, **options: Any) -> tuple[RecordAccumulator, Senders]:
    """One with a topic ``t`` on each replica group."""
    senders = Senders()
    made = RecordAccumulator(ProducerOptions(**options), senders, senders)
    made.set_queues("t", [(group, queue_id) for group in groups or ("g0",) for queue_id in range(queues)], 0)
    return made, senders


def put(made: RecordAccumulator, body: bytes = b"x", key: Any = None, queue_id: int | None = None, **more: Any) -> Any:
    found = made.append(Message("t", body, **more), key, queue_id)
    assert found is not None
    return found


def drained(made: RecordAccumulator, group: str = "g0", now_ms: int = 0, **how: bool) -> list[ProducerBatch]:
    """Everything a sender gets now."""
    found = []
    for batcher in dict.fromkeys(made.touched(group, now_ms)):
        while (batch := made.drain(batcher, now_ms, is_idle=how.get("is_idle", True), flush=how.get("flush", False))) is not None:
            found.append(batch)
    return found


def bodies(batches: list[ProducerBatch]) -> list[list[bytes]]:
    return [[message.body for message in batch.messages] for batch in batches]


def with_priorities(*groups: str, queues: int = 3, **options: Any) -> RecordAccumulator:
    made, _ = accumulator(*groups, queues=queues, **options)
    places = [(group, queue_id) for group in groups or ("g0",) for queue_id in range(queues)]
    made.set_queues("t", places, 0, priorities=True)
    return made


def place(made: RecordAccumulator, key: Any = None, queue_id: Any = None, **more: Any) -> tuple[str, int]:
    report, _ = put(made, key=key, queue_id=queue_id, **more)
    return report.replica_group, report.queue_id


def test_a_priority_is_the_queue_and_messages_without_one_have_the_lowest() -> None:
    made = with_priorities(sticky_messages=1)
    assert [place(made, priority=number)[1] for number in (0, 1, 2, 3, 1 << 30)] == [0, 1, 2, 2, 2]
    assert [place(made)[1] for _ in range(3)] == [0, 0, 0]
    assert place(made, key="customer-7")[1] == 0
    assert (place(made, queue_id=2)[1], place(made, key=lambda count: count - 1)[1]) == (2, 2)
    assert made.append_batch([Message("t", b"x", priority=1)] * 2, None, None)[0].queue_id == 1  # type: ignore[index]
    assert made.append_columns(MessageColumns.of("t", [b"x"], "", ""), SIZE, None, None)[0].queue_id == 0  # type: ignore[index]
    (delayed,) = [batch for batch in staged(made, delay_level=3, priority=2) if batch.batcher.topic == SCHEDULE_TOPIC]
    assert b"REAL_QID\x012" in delayed.messages[0].extras


def staged(made: RecordAccumulator, **more: Any) -> list[ProducerBatch]:
    put(made, **more)
    return drained(made)


def test_messages_of_a_priority_go_to_each_replica_group_in_turn_and_stay_at_it_when_a_queue_is_gone() -> None:
    made = with_priorities("g0", "g1")
    assert sorted(place(made, priority=1) for _ in range(4)) == [("g0", 1), ("g0", 1), ("g1", 1), ("g1", 1)]
    assert {place(made)[1] for _ in range(3)} == {0}
    batches = {batch.batcher.queue_id: batch for batch in drained(made)}
    made.set_queues("t", [("g0", 0)], 0, priorities=True)
    made.redispatch(batches[1])
    assert [batch.batcher.queue_id for batch in drained(made)] == [0]


def test_a_priority_that_cannot_be_kept_is_refused() -> None:
    made, _ = accumulator()
    with pytest.raises(InvalidArgumentError, match="topic t has no priorities, a message to it has priority 0"):
        put(made, priority=0)
    made = with_priorities()
    for more in ({"key": "a"}, {"queue_id": 0}, {"key": lambda _count: 0}):
        with pytest.raises(InvalidArgumentError, match="priority 1 chooses the queue: expected neither queue_key nor queue_id"):
            put(made, priority=1, **more)
    with pytest.raises(InvalidArgumentError, match="different priorities"):
        made.append_batch([Message("t", b"x", priority=1), Message("t", b"x")], None, None)
    for wrong in (-1, 1 << 31):
        with pytest.raises(InvalidArgumentError, match="expected 0 to 2147483647"):
            Message("t", b"x", priority=wrong)
    with pytest.raises(TypeError, match="whole number"):
        Message("t", b"x", priority="1")  # type: ignore[arg-type]


def test_messages_without_a_key_stay_in_the_sticky_queue_for_a_while() -> None:
    made, senders = accumulator(sticky_messages=2)
    places = [put(made, b"%d" % number) for number in range(5)]
    assert [index for _, index in places] == [0, 1, 0, 1, 2]
    assert [report.queue_id for report, _ in places] == [0, 0, 1, 1, 0]
    assert senders.woken == ["g0", "g0"]  # once for each new batch
    assert bodies(drained(made)) == [[b"0", b"1", b"4"], [b"2", b"3"]]


def test_equal_keys_go_to_one_queue_and_unknown_queues_are_refused() -> None:
    made, _ = accumulator(queues=4)
    assert len({put(made, key="k")[0].queue_id for _ in range(9)}) == 1
    assert put(made, queue_id=3)[0].queue_id == 3
    assert put(made, key=lambda count: count - 2)[0].queue_id == 2
    before = made.buffered_bytes
    with pytest.raises(InvalidArgumentError, match="queue g9:0 takes no messages; expected one of g0:0, g0:1"):
        made.append(Message("t", b"x"), None, ("g9", 0))
    with pytest.raises(InvalidArgumentError, match="queue 4 takes no messages"):
        made.append(Message("t", b"x"), None, 4)
    with pytest.raises(TopicNotFoundError):
        made.append(Message("u", b"x"), None, None)
    with pytest.raises(MessageTooLargeError):
        made.append(Message("t", bytes(5 << 20)), None, None)
    assert made.buffered_bytes == before


def test_an_open_batch_is_given_when_nothing_is_in_flight_or_it_has_lingered() -> None:
    made, _ = accumulator(queues=1)
    put(made)
    (batcher,) = made.touched("g0", 100)
    assert made.drain(batcher, 100, is_idle=False, flush=False) is None
    assert made.drain(batcher, 100, is_idle=True, flush=False) is not None
    lingering, _ = accumulator(queues=1, linger_ms=10)
    put(lingering)
    (batcher,) = lingering.touched("g0", 100)
    assert lingering.drain(batcher, 109, is_idle=True, flush=False) is None
    assert lingering.drain(batcher, 110, is_idle=False, flush=False) is not None
    put(lingering)
    assert bodies(drained(lingering, now_ms=111, flush=True)) == [[b"x"]]


def test_a_full_batch_is_ready_at_once() -> None:
    made, senders = accumulator(queues=1, batch_bytes=2 * SIZE)
    for number in range(3):
        put(made, b"%d" % number)
    assert len(senders.woken) == 3  # new, full, new
    (batcher, *_) = made.touched("g0", 0)
    full = made.drain(batcher, 0, is_idle=False, flush=False)
    assert full is not None
    assert bodies([full]) == [[b"0", b"1"]]
    assert made.drain(batcher, 0, is_idle=False, flush=False) is None


def test_memory_is_bounded_and_room_is_announced() -> None:
    made, _ = accumulator(queues=1, max_buffered_bytes=4 * SIZE)
    for _ in range(4):
        put(made)
    announced: list[int] = []
    assert made.append(Message("t", b"x"), None, None) is None
    made.when_room(lambda: announced.append(made.buffered_bytes))
    (batch,) = drained(made)
    made.release(batch)
    assert announced == [0]
    assert put(made, bytes(9 * SIZE)) is not None  # alone, whatever its size
    assert made.append(Message("t", b"x"), None, None) is None


def test_an_atomic_batch_keeps_the_order_and_is_never_mixed() -> None:
    made, _ = accumulator(queues=1)
    put(made, b"0")
    assert made.append_batch([Message("t", b"1"), Message("t", b"2")], None, None) is not None
    put(made, b"3")
    found = drained(made)
    assert bodies(found) == [[b"0"], [b"1", b"2"], [b"3"]]
    assert [batch.is_atomic for batch in found] == [False, True, False]


def test_a_batch_ages_from_when_its_sender_sees_it() -> None:
    made, _ = accumulator(queues=1, send_timeout_ms=50)
    put(made)
    (batcher,) = made.touched("g0", 1000)
    put(made)  # into the same batch
    assert made.expire(batcher, 1049) == []
    (expired,) = made.expire(batcher, 1050)
    assert len(expired.messages) == 2
    assert (made.buffered_bytes, batcher.is_empty) == (0, True)
    put(made)
    assert made.expire(batcher, 1 << 40) == []  # not seen yet
    assert len(made.expire(batcher, None)) == 1  # all


def test_requeued_batches_come_first() -> None:
    made, _ = accumulator(queues=1)
    put(made, b"0")
    first = drained(made)
    put(made, b"1")
    made.requeue(first[0].batcher, first)
    assert bodies(drained(made)) == [[b"0"], [b"1"]]


def test_staged_messages_go_to_the_queue_that_holds_them() -> None:
    made, _ = accumulator(queues=3)
    put(made, delay_level=4)
    half = Message("t", b"h")
    half.transaction_group = "producers"
    assert made.append(half, "k", None) is not None
    by_topic = {batch.batcher.topic: batch for batch in drained(made)}
    assert by_topic[SCHEDULE_TOPIC].batcher.queue_id == 3
    assert by_topic[HALF_TOPIC].batcher.queue_id == 0
    assert b"REAL_TOPIC" in by_topic[HALF_TOPIC].messages[0].extras


def test_messages_without_a_key_leave_a_replica_group_that_fails() -> None:
    made, senders = accumulator("a", "b", queues=1)
    free, _ = put(made, b"free")
    bound, _ = put(made, b"bound", queue_id=0)
    senders.avoided = "a"
    made.leave_group("a", move_unsent=False)
    assert put(made, b"next")[0].replica_group == "b"
    made.leave_group("a", move_unsent=True)
    assert bodies(drained(made, "a")) == [[b"bound"]]
    assert sorted(bodies(drained(made, "b"))) == [[b"free"], [b"next"]]
    assert free is bound  # one batch, cut into the reports of its parts
    assert [report.replica_group for _, report in free.parts or ()] == ["b", "a"]


def test_a_batch_of_a_queue_that_is_gone_follows_its_keys() -> None:
    made, _ = accumulator(queues=2)
    for number in range(8):
        put(made, b"%d" % number, key=f"k{number}")
    gone = next(batch for batch in drained(made) if batch.batcher.queue_id == 1)
    made.set_queues("t", [("g0", 0)], 0)
    assert made.takes_messages(gone.batcher) is False
    made.redispatch(gone)
    assert bodies(drained(made)) == bodies([gone])
    made.remove_topic("t")
    assert made.takes_messages(gone.batcher) is None


def test_a_closed_accumulator_takes_nothing_and_wakes_who_waits() -> None:
    made, _ = accumulator()
    put(made)
    woken: list[int] = []
    made.when_room(lambda: woken.append(1))
    made.close()
    assert woken == [1]
    with pytest.raises(ClientClosedError):
        made.append(Message("t", b"x"), None, None)
    assert len(drained(made)) == 1  # what is there may still be sent


def test_a_wake_up_and_a_selector_may_append_themselves() -> None:
    """Neither is called with the lock held."""
    made, senders = accumulator(queues=2)

    def selector(count: int) -> int:
        put(made, b"inner", queue_id=0)
        return count - 1

    put(made, b"outer", key=selector)
    senders.wake_up = lambda _group: made.topics() and None  # type: ignore[assignment,method-assign]
    put(made, b"more", queue_id=1)
    assert sorted(bodies(drained(made))) == [[b"inner"], [b"outer", b"more"]]


def test_many_threads_lose_nothing() -> None:
    made, _ = accumulator("a", "b", queues=3, batch_bytes=50 * SIZE, sticky_messages=7)
    threads, each = 8, 500
    found: list[ProducerBatch] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            found.extend(drained(made, "a") + drained(made, "b"))
        found.extend(drained(made, "a") + drained(made, "b"))

    def send(number: int) -> None:
        for _ in range(each):
            put(made, delay_level=number % 2)

    taker = threading.Thread(target=take)
    taker.start()
    senders = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    done.set()
    taker.join()
    assert sum(len(batch.messages) for batch in found) == threads * each
    for batch in found:
        made.release(batch)
    assert made.buffered_bytes == 0


# Sequences


class Queue:
    """One queue with batches of ``count`` messages each."""

    def __init__(self, *counts: int) -> None:
        self.accumulator, _ = accumulator(queues=1)
        self.batches: list[ProducerBatch] = []
        for count in counts:
            self.accumulator.append_batch([Message("t", b"x")] * count, None, None)
        self.batcher: QueueBatcher = self.accumulator.touched("g0", 0)[0]
        self.queue = InFlightQueue(self.batcher, self.accumulator)
        for _ in counts:
            batch = self.accumulator.drain(self.batcher, 0, is_idle=True, flush=True)
            assert batch is not None
            self.queue.sending(batch, 1, 0)
            self.batches.append(batch)

    @property
    def sequences(self) -> list[int]:
        return [batch.first_sequence for batch in self.batches]


def test_after_a_broken_stream_everything_is_sent_again_in_order() -> None:
    found = Queue(2, 3, 1)
    assert found.sequences == [0, 2, 5]
    found.queue.stored(found.batches[0])
    found.queue.stream_lost()
    again = []
    while (batch := found.queue.to_resend()) is not None:
        found.queue.sending(batch, 1, 0)
        again.append(batch)
    assert again == found.batches[1:]
    assert found.sequences == [0, 2, 5]
    assert [batch.maybe_stored for batch in again] == [True, True]


def test_what_follows_a_refused_batch_gets_new_sequences_once_nothing_is_in_flight() -> None:
    found = Queue(2, 3, 1)
    first, second, third = found.batches
    found.queue.stored(first)
    second.in_flight = False
    found.queue.refused(second, rest=[])
    assert found.queue.is_renumbering
    assert found.queue.to_resend() is None
    assert found.queue.out_of_order(third)
    assert not found.queue.is_renumbering
    assert third.first_sequence == UNSENT
    again = found.accumulator.drain(found.batcher, 0, is_idle=True, flush=False)
    assert again is third
    found.queue.sending(third, 1, 0)
    assert third.first_sequence == 2


def test_the_refusal_of_an_uncertain_batch_settles_nothing() -> None:
    found = Queue(1, 1)
    first, second = found.batches
    found.queue.stream_lost()
    found.queue.sending(first, 1, 0)
    first.in_flight = False
    found.queue.refused(first, rest=[])
    assert found.queue.unresolvable == [second]
    assert found.batcher.is_empty


def test_out_of_order_without_an_earlier_batch_means_that_the_session_is_lost() -> None:
    found = Queue(1)
    assert not found.queue.out_of_order(found.batches[0])


def test_a_batch_that_is_moved_to_and_fro_is_still_settled() -> None:
    """No replica group can be reached for minutes: what has no key goes from one to the other."""
    made, _ = accumulator("g0", "g1", queues=1)
    columns = MessageColumns.of("t", [b"a"] * 3, "", "")

    def add(part: MessageColumns, size: int) -> DeliveryReport:
        found = made.append_columns(part, size, None, None)
        assert found is not None
        return found[0]

    future = SendManyFuture(append_parts(made, columns, (1 << 20, 1000), add), 3)
    for number in range(2000):
        made.leave_group(f"g{number % 2}", move_unsent=True)
    (batch,) = [batch for batcher in made._batchers.values() for batch in made.expire(batcher, None)]
    batch.fail(NotSentError("not sent in time"))
    assert [(each.count, type(each.error)) for each in future.outcomes(timeout=1)] == [(3, NotSentError)]
    assert made.buffered_bytes == 0


def test_staged_messages_give_back_what_they_took_when_their_batch_is_split() -> None:
    made, _ = accumulator()
    for _ in range(10):
        put(made, delay_level=1)
    (batch,) = drained(made, flush=True)
    assert batch.size_bytes == made.buffered_bytes > 10 * SIZE
    parts = [batch.part(batch.batcher, 0, 4), batch.part(batch.batcher, 4, 10)]
    for part in parts:
        made.release(part)
    assert made.buffered_bytes == 0
