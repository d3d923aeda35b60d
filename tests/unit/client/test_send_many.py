"""Many bodies by one call: what is taken, where it is stored, what is said of failures, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dledger_client.aio import Message, PullConsumer, SendManyResult
from dledger_client.message import Message as AnyMessage
from dledger_client.producer.message_columns import MessageColumns, body_list
from dledger_client.producer.send_many import MAX_RUNS, RUN_BODIES, run_length
from dledger_wire.batches.batch import MAX_MESSAGES
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotSentError,
    TopicNotFoundError,
)
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_producer import bodies
from tests.unit.client.tracing_rig import recorded

WORDS = [b"one", b"two2", b"", b"four\0", b"\0\xff"]
EQUAL = [b"aa", b"b\0", b"\0c", b"dd"]


def numbers(first: int, end: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(size) for number in range(first, end)]


@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        lambda words: np.array(words, object),
        lambda words: [bytearray(word) for word in words],
        lambda words: [memoryview(word) for word in words],
        lambda words: pa.array(words, pa.binary()),
        lambda words: pa.array(words, pa.large_binary()),
        lambda words: pa.array([b"before", *words], pa.binary())[1:],
        lambda words: pa.chunked_array([pa.array(part, pa.binary()) for part in (words[:2], words[:0], words[2:])]),
        lambda words: iter(words),
    ],
)
def test_bodies_come_in_every_container(given: Callable[[list[bytes]], Any]) -> None:
    assert body_list(given(WORDS)) == WORDS


@pytest.mark.parametrize(
    "given",
    [
        lambda words: np.frombuffer(b"".join(words), np.uint8).reshape(len(words), 2),
        lambda words: np.frombuffer(b"".join(words), np.uint8).reshape(len(words), 2)[::-1][::-1],
        lambda words: np.frombuffer(b"".join(words), "V2"),
        lambda words: pa.array(words, pa.binary(2)),
    ],
)
def test_bodies_of_one_size_keep_their_zeros(given: Callable[[list[bytes]], Any]) -> None:
    assert body_list(given(EQUAL)) == EQUAL


def test_numpy_gives_up_trailing_zeros_of_its_type_s() -> None:
    assert body_list(np.array([b"a", b"bb\0"])) == [b"a", b"bb"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", r"bodies is str; expected a list"),
        (b"bytes", r"bodies is bytes; expected a list"),
        (7, r"bodies is int; expected a list"),
        ([b"one", "two"], r"bodies\[1\] is str; expected bytes; encode text first"),
        ([None], r"bodies\[0\] is NoneType; expected bytes"),
        (np.zeros(3), r"numpy array of type float64 with 1 dimensions"),
        (np.zeros((2, 2, 2), np.uint8), r"numpy array of type uint8 with 3 dimensions"),
        (pa.array([b"one", None]), r"bodies has 1 nulls; expected none"),
        (pa.array(["text"]), r"bodies\[0\] is str; expected bytes"),
    ],
)
def test_what_is_no_list_of_bytes_is_refused_with_its_place(given: Any, expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        body_list(given)


def test_keys_and_tags_are_one_or_as_many_as_bodies() -> None:
    with pytest.raises(InvalidArgumentError, match="keys: 1 values for 2 bodies"):
        MessageColumns.of("t", [b"a", b"b"], ["k"], "")
    with pytest.raises(TypeError, match=r"tags\[1\] is int; expected text"):
        MessageColumns.of("t", [b"a", b"b"], "", ["x", 1])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="a message has one tag"):
        MessageColumns.of("t", [b"a"], "", ["x|y"])
    with pytest.raises(InvalidArgumentError, match="at most"):
        MessageColumns.of("t", [b"a"], ["k" * 40_000], "")
    with pytest.raises(TypeError, match="topic is text"):
        MessageColumns.of(7, [b"a"], "", "")  # type: ignore[arg-type]


def test_columns_are_messages_when_somebody_asks() -> None:
    columns = MessageColumns.of("t", [b"a", b"b", b"c"], ["k", "", "l m"], "x")
    (message,) = columns[2:]
    assert isinstance(message, AnyMessage)
    assert (message.topic, message.body, message.keys, message.tags) == ("t", b"c", "l m", "x")
    assert message.extras == b"TAGS\x01x\x02KEYS\x01l m\x02"
    assert [each.body for each in columns[:2]] == [b"a", b"b"]
    assert sum(columns.sizes()) == sum(size for _, _, size in columns.batches(400))
    assert [(first, len(part)) for first, part, _ in columns.batches(1)] == [(0, 1), (1, 1), (2, 1)]


async def read_all(consumer: PullConsumer, result: SendManyResult) -> list[Any]:
    """The messages of a result, in the order of the call."""
    found = []
    for each in result.ranges:
        stored = await consumer.fetch(result.topic, each.queue_id, each.queue_offset, each.count, replica_group=each.replica_group)
        found += stored[: each.count]
    return found


@pytest.mark.parametrize(
    ("keys", "tags"),
    [("", ""), ("k-1", "created"), (["a", "", "b c"] * 100, "created"), ("", ["x", "", "y"] * 100), (["k"] * 300, ["x"] * 300)],
)
@pytest.mark.parametrize("size", [0, 100])
def test_every_message_is_stored_as_one_sent_alone_would_be(keys: Any, tags: Any, size: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        sent = numbers(0, 300, size) if size else [b"%d" % number for number in range(1000, 1300)]
        async with rig.producer(batch_bytes=20_000) as producer, rig.consumer() as consumer:
            result = await producer.send_many("t", sent, keys=keys, tags=tags)
            found = await read_all(consumer, result)
            assert [message.body for message in found] == sent
            assert [message.keys for message in found] == ([keys] * 300 if isinstance(keys, str) else keys)
            assert [message.tags for message in found] == ([tags] * 300 if isinstance(tags, str) else tags)
            assert [message.msg_id for message in found] == result.msg_ids()
            assert [message.queue_offset for message in found] == result.queue_offsets().tolist()
            assert result.count == 300 == sum(each.count for each in result.ranges)
            assert [each.first for each in result.ranges] == [
                sum(one.count for one in result.ranges[:n]) for n in range(len(result.ranges))
            ]
            assert {each.queue_id for each in result.ranges} == {0, 1, 2}
        async with rig.admin() as admin:
            by_id = (await admin.query_by_id(result.msg_ids()[7], "t")).messages
            assert [message.body for message in by_id] == [sent[7]]
            if keys == "k-1":
                assert len((await admin.query_by_key("t", "k-1", max_messages=300)).messages) == 300

    Rig().run(scenario)


def test_a_key_or_a_queue_keeps_the_order_of_all() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer(batch_bytes=10_000) as producer, rig.consumer() as consumer:
            alone = await producer.send(Message("t", b"alone"), queue_key="o-1")
            keyed = await producer.send_many("t", numbers(0, 400), queue_key="o-1")
            assert {each.queue_id for each in keyed.ranges} == {alone.queue_id}
            assert await bodies(consumer, alone.queue_id) == [b"alone", *numbers(0, 400)]
            other = (alone.queue_id + 1) % 4
            await producer.send_many("t", numbers(0, 200), queue_id=other)
            await producer.send_many("t", numbers(200, 400), queue_id=("g0", other))
            assert await bodies(consumer, other) == numbers(0, 400)
            last = await producer.send_many("t", [b"x"], queue_key=lambda count: count - 1)
            assert last.ranges[0].queue_id == 3

    Rig().run(scenario)


def test_nothing_is_a_result_too() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.producer() as producer:
            result = await producer.send_many("t", [])
            assert (result.count, result.ranges, result.msg_ids(), len(result.queue_offsets())) == (0, (), [], 0)

    Rig().run(scenario)


def test_large_bodies_are_compressed_as_of_any_message() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        sent = [b"small", b"x" * 10_000, b"small too"]
        async with rig.producer(max_message_bytes=20_000) as producer, rig.consumer() as consumer:
            await producer.send_many("t", sent)
            assert await bodies(consumer) == sent
            assert len((await consumer.fetch_chunks("t", 0, 0, 10))[0].frames) < 2_000
            with pytest.raises(MessageTooLargeError, match=r"bodies\[1\] of 20001 bytes; expected at most 20000"):
                await producer.send_many("t", [b"fine", b"x" * 20_001])
            assert await bodies(consumer) == sent

    Rig().run(scenario)


def test_more_than_the_buffer_holds_waits_for_room() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(batch_bytes=2_000, max_buffered_bytes=8_000) as producer, rig.consumer() as consumer:
            first = producer.send_many_async("t", numbers(0, 500))
            second = producer.send_many_async("t", numbers(500, 600))
            alone = producer.send_async(Message("t", b"behind"))
            assert producer._core.accumulator.buffered_bytes <= 8_000
            assert (await first).count + (await second).count == 600
            await alone
            assert await bodies(consumer) == [*numbers(0, 600), b"behind"]

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_dying_master_costs_nothing_and_no_order(seed: int) -> None:
    """docs/reference/semantics, row P12."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(batch_bytes=3_000, send_timeout_ms=20_000) as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"first"])
            future = producer.send_many_async("t", numbers(0, 900))
            await asyncio.sleep(0.005 * seed)  # virtual: some batches are acknowledged, some on their way
            rig.cluster.kill(rig.master)
            result = await future
            assert result.queue_offsets().tolist() == list(range(1, 901))
            assert await bodies(consumer) == [b"first", *numbers(0, 900)]

    Rig(seed).run(scenario)


def test_one_body_that_is_refused_fails_alone_and_the_error_tells_the_rest() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        sent = [b"a", b"b", b"x" * (4 << 20) + b"too much", b"c"]
        async with (
            rig.producer(max_message_bytes=64 << 20, batch_bytes=64 << 20, compress_type="none") as producer,
            rig.consumer() as consumer,
        ):
            future = producer.send_many_async("t", sent)
            with pytest.raises(MessageTooLargeError, match="3 of 4 bodies are stored, the first that is not has number 2"):
                await future
            assert isinstance(future.exception(), MessageTooLargeError)
            told = [(each.first, each.count, each.error is None) for each in future.outcomes()]
            assert told == [(0, 2, True), (2, 1, False), (3, 1, True)]
            assert await bodies(consumer) == [b"a", b"b", b"c"]

    Rig().run(scenario)


def test_a_topic_that_is_not_there_fails_the_whole_call() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.producer() as producer:
            future = producer.send_many_async("nowhere", numbers(0, 10))
            with pytest.raises(TopicNotFoundError):
                await future
            (told,) = future.outcomes()
            assert (told.first, told.count, told.queue_id, told.queue_offset) == (0, 10, -1, -1)

    Rig().run(scenario)


def test_without_a_cluster_nothing_is_sent_in_time() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=2_000, batch_bytes=1_000, max_buffered_bytes=2_000) as producer:
            await producer.send_many("t", [b"known"])
            for node_id in list(rig.cluster.hosts):
                rig.cluster.kill(node_id)
            began = asyncio.get_running_loop().time()
            future = producer.send_many_async("t", numbers(0, 100))
            with pytest.raises(DledgerError) as failed:
                await future
            assert isinstance(failed.value, NotSentError) or failed.value.outcome_unknown
            assert sum(each.count for each in future.outcomes()) == 100
            assert asyncio.get_running_loop().time() - began < 5.0  # what has no room fails together, not each after its own wait

    Rig().run(scenario)


def test_a_message_without_room_for_a_trace_is_sent_without_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded():
            async with rig.producer() as producer, rig.consumer() as consumer:
                await producer.send_many("t", [b"a", b"b"], keys=["k", "l" * 30_690])
                found = await consumer.fetch("t", 0, 0, 10)
        assert [len(message.keys) for message in found] == [1, 30_690]
        assert [message.trace_context is None for message in found] == [False, True]

    Rig().run(scenario)


def test_a_trace_has_one_span_for_the_call_and_goes_on_in_every_message() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        with recorded() as spans:
            async with rig.producer() as producer, rig.consumer() as consumer:
                await producer.send_many("t", [b"a", b"x" * 5_000], keys=["k", "l"])
                found = await consumer.fetch("t", 0, 0, 10)
            span = spans.one("send t")
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == 2
        assert [message.keys for message in found] == ["k", "l"]
        contexts = {message.trace_context for message in found}
        assert {each.span_id for each in contexts if each is not None} == {f"{span.context.span_id:016x}"}

    Rig().run(scenario)


def test_a_call_without_a_key_goes_to_several_queues_in_runs() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer:

            async def counts(count: int, **given: Any) -> list[int]:
                result = await producer.send_many("t", numbers(0, count), **given)
                by_queue: dict[int, list[int]] = {}
                for each in result.ranges:
                    by_queue.setdefault(each.queue_id, []).append(each.count)
                assert result.count == count
                return sorted(sum(each) for each in by_queue.values())

            assert await counts(1000) == [250] * 4
            assert await counts(999) == [333] * 3
            assert await counts(500) == [250] * 2
            assert await counts(499) == [499]  # a batch for a few bodies costs as much as one for many
            assert await counts(20_000) == [5000] * 4
            assert await counts(2000, queue_key="k") == [2000]
            assert await counts(2000, queue_id=1) == [2000]
            # Calls that are not spread take turns.
            places = [(await producer.send_many("t", [b"x"] * 10)).ranges[0].queue_id for _ in range(4)]
            assert sorted(places) == [0, 1, 2, 3]

    Rig().run(scenario)


@pytest.mark.parametrize("count", [0, 1, 249, 250, 500, 1999, 2000, 10_001, 10_000_000])
def test_runs_are_of_about_the_same_length(count: int) -> None:
    run = run_length(count, None, None)
    runs = -(-count // run)
    assert runs <= max(MAX_RUNS, -(-count // MAX_MESSAGES))
    assert runs <= 1 or count // runs >= RUN_BODIES * 3 // 4
