"""The commit of a write against real nodes in virtual time: once, whoever commits how often, in whatever order rows come again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dledger_client import Message
from dledger_client.cluster.topic_lookup import may_not
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_wire._pb import admin_pb2
from dledger_wire.batches.batch import BatchView, check_batch
from dledger_wire.checksum import crc32c
from dledger_wire.errors import (
    CorruptBatchError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PermissionDeniedError,
    ProducerFencedError,
)
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frames import frame_positions
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_wire.rpc import methods
from pyspark_dledger.jobs.finish import Finished, finish_all, unfinished_writes
from pyspark_dledger.options.model import parse_write_options
from pyspark_dledger.write import staged_batches as packs
from pyspark_dledger.write import writer
from pyspark_dledger.write.publisher import Published, Publisher, StagedRange, WriteName
from pyspark_dledger.write.staged_batches import FrameStamp, RowBatcher, StagedBatchReader, TargetQueue
from pyspark_dledger.write.staging_topic import StagingTopic
from pyspark_dledger.write.targets import writable_queues
from pyspark_dledger.write.writer import StagedTask
from tests.sim.clock import SimClock
from tests.unit.client.sim_rig import Rig

STAGING, TARGET, QUEUES = "staging", "t", 3
LANES = [TargetQueue("g0", TARGET, queue) for queue in range(QUEUES)]


def maker(rig: Rig, seed: int) -> FrameStamp:
    clock = SimClock(rig.cluster.loop)
    return FrameStamp(UniqueIds(clock, random.Random(seed)), b"\x7f\0\0\x01\0\0\0\0", clock.wall_ms)


async def stage(rig: Rig, tag: str, numbers: list[int], *, queue_id: int = 1, piece: int = 700) -> StagedRange:
    """What a task does: rows to packs, packs to pieces, pieces to the staging topic."""
    packer = RowBatcher(maker(rig, hash(tag) & 0xFFFF), lambda _: LANES, TARGET, first_queue=0)
    out = []
    for first in range(0, len(numbers), 50):
        rows = [{"body": b"%d" % n, "queue_key": f"k{n % 7}", "keys": f"id-{n}"} for n in numbers[first : first + 50]]
        out += list(packer.add(pa.RecordBatch.from_pylist(rows)))
    whole = b"".join([each.data for each in [*out, *packer.finish()]])
    async with rig.producer(send_timeout_ms=20_000) as producer:
        pieces = [Message(STAGING, whole[at : at + piece], tags=tag) for at in range(0, len(whole), piece)]
        placed = [await future for future in [producer.send_async(message, queue_id=queue_id) for message in pieces]]
    first, last = placed[0].queue_offset, placed[-1].queue_offset
    return StagedRange("g0", queue_id, first, last + 1, tag, len(numbers), len(whole), crc32c(whole))


@asynccontextmanager
async def publisher(rig: Rig, sender_class: Any = IdempotentWriter) -> AsyncIterator[Publisher]:
    staged = rig.consumer(read_from="follower")
    async with rig.consumer() as control, staged, sender_class(rig.router(), timeout_ms=20_000) as sender:
        yield Publisher(control, staged, sender, maker(rig, 99), STAGING, "g0")


async def stored(rig: Rig) -> list[list[int]]:
    """The numbers in each queue, in order."""
    async with rig.consumer() as consumer:
        return [[int(m.body) for m in await consumer.fetch(TARGET, queue, 0, 10_000)] for queue in range(QUEUES)]


def flat(queues: list[list[int]]) -> list[int]:
    return [number for queue in queues for number in queue]


async def topics(rig: Rig) -> None:
    await rig.topic(STAGING, queues=2)
    await rig.topic(TARGET, queues=QUEUES)


class DyingSender(IdempotentWriter):
    """Its process dies after a few records."""

    left = 4

    async def send(self, group: str, record: Any) -> None:
        if DyingSender.left == 0:
            raise ConnectionAbortedError("killed")
        DyingSender.left -= 1
        await super().send(group, record)


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many packs of few rows."""
    monkeypatch.setattr(packs, "STAGED_BATCH_BYTES", 2_000)


def test_rows_are_stored_once_and_in_order_however_often_a_write_is_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        parts = [await stage(rig, "a0", list(range(100))), await stage(rig, "a1", list(range(100, 250)), queue_id=0)]
        async with publisher(rig) as first:
            done = await first.publish(WriteName("job", 0), parts)
        assert (done.rows, done.resumed) == (250, False)
        once = await stored(rig)
        assert sorted(flat(once)) == list(range(250))
        assert all(queue == sorted(queue) for queue in once)
        async with publisher(rig) as second:
            done = await second.publish(WriteName("job", 0), parts[:1])
        assert (done.rows, done.resumed) == (None, True)
        assert await stored(rig) == once

    Rig().run(scenario)


def test_rows_for_another_topic_are_not_taken_for_those_of_an_earlier_write() -> None:
    """Two writes of a foreachBatch under one name, as Delta Lake has them; two queries from copies of one checkpoint."""

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part, empty = await stage(rig, "a", list(range(100))), WriteName("txn:empty", 0)
        for topic in (TARGET, None):  # the second does not know it, as "dledger spark finish" does not
            async with publisher(rig) as one:
                assert (await one.publish(WriteName("txn:fe", 1), [part], topic)).resumed is (topic is None)
        async with publisher(rig) as other:
            with pytest.raises(InvalidArgumentError, match=f"write 1 of txn:fe was made to topic {TARGET}, so nothing .* in topic other"):
                await other.publish(WriteName("txn:fe", 1), [part], "other")
            with pytest.raises(InvalidArgumentError, match="so nothing was stored in the topics that its rows name; expected a txnAppId"):
                await other.publish(WriteName("txn:fe", 1), [part], "")
            assert (await other.publish(WriteName("txn:fe", 1), [], "other")).resumed  # it has nothing that could be lost
            assert not (await other.publish(empty, [], "")).resumed
        async with publisher(rig) as again:
            with pytest.raises(InvalidArgumentError, match=f"to the topics that its rows name, so nothing was stored in topic {TARGET}"):
                await again.publish(empty, [part], TARGET)
        named = WriteName("txn:rows", 1)
        async with publisher(rig) as by_rows:
            assert not (await by_rows.publish(named, [], "", {"a", "b"})).resumed
            assert (await by_rows.publish(named, [part], "", {"b"})).resumed
            with pytest.raises(
                InvalidArgumentError, match="was made to topics a, b, so nothing was stored in topic c; expected a txnAppId"
            ):
                await by_rows.publish(named, [part], "", {"c"})
            with pytest.raises(
                InvalidArgumentError, match=r"was made to topics a, b, so nothing was stored in topic c; .* or topics a, b if"
            ):
                await by_rows.publish(named, [part], "c", {"c"})
            assert (await by_rows.publish(named, [part], "b", {"b"})).resumed, "by its option now, to one of the same topics"
        DyingSender.left = 6
        with pytest.raises(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as dying:
                await dying.publish(WriteName("query:q", 7), [await stage(rig, "b", list(range(100, 300)))], TARGET)
        async with publisher(rig) as other:
            with pytest.raises(InvalidArgumentError, match=f"made to topic {TARGET}, .* expected topic {TARGET} until this batch is done"):
                await other.publish(WriteName("query:q", 7), [part], "other")
        async with publisher(rig) as same:
            assert (await same.publish(WriteName("query:q", 7), [part], TARGET)).rows == 200
        assert sorted(flat(await stored(rig))) == list(range(300))

    Rig().run(scenario)


@pytest.mark.parametrize("survived", range(1, 12))
def test_a_commit_that_died_is_finished_with_its_own_rows_not_with_those_of_the_replay(survived: int) -> None:
    """The replay gave other partitions and another order, and even other rows: what the first manifest named is what is stored."""

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        parts = [await stage(rig, "a0", list(range(120))), await stage(rig, "a1", list(range(120, 200)))]
        DyingSender.left = survived
        with pytest.raises(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as dying:
                await dying.publish(WriteName("query", 7), parts)
        again = [*range(200), 1000, 1001]
        random.Random(survived).shuffle(again)
        async with publisher(rig) as second:
            done = await second.publish(WriteName("query", 7), [await stage(rig, "b0", again)])
        assert (done.rows, done.resumed) == (200, True)
        assert sorted(flat(await stored(rig))) == list(range(200))

    Rig(seed=survived).run(scenario)


def test_a_replay_without_rows_finishes_what_the_first_attempt_began() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        DyingSender.left = 6
        with pytest.raises(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as dying:
                await dying.publish(WriteName("query", 7), [await stage(rig, "a", list(range(200)))])
        assert len(flat(await stored(rig))) < 200
        async with publisher(rig) as second:
            done = await second.publish(WriteName("query", 7), [])
            assert (done.rows, done.resumed) == (200, True)
            assert sorted(flat(await stored(rig))) == list(range(200))
            done = await second.publish(WriteName("query", 8), [])
            assert (done.rows, done.resumed) == (0, False)
        assert sorted(flat(await stored(rig))) == list(range(200))

    Rig().run(scenario)


@pytest.mark.parametrize("survived", [1, 3, 6, 10_000])
def test_a_job_without_a_name_whose_driver_died_in_its_commit_is_finished_from_its_manifest(survived: int) -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        async with publisher(rig) as other:
            await other.publish(WriteName("query:q", 1), [await stage(rig, "o", list(range(1000, 1100)))])
        DyingSender.left = survived
        with contextlib.suppress(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as dying:
                await dying.publish(WriteName("job:1", 0), [await stage(rig, "a", list(range(200)))])
        async with publisher(rig) as later, rig.consumer() as control:
            left = [] if survived > 100 else ["not finished", "finished"]
            for look_only, result in ((True, left[:1]), (False, left[1:]), (False, [])):
                told = await finish_all(later, control, STAGING, "g0", look_only=look_only)
                assert told == [Finished("a job without a name", 0, 200, each) for each in result]
            assert sorted(flat(await stored(rig))) == [*range(200), *range(1000, 1100)]
        found = await stored(rig)
        assert all([n for n in queue if n < 1000] == sorted(n for n in queue if n < 1000) for queue in found)

    Rig().run(scenario)


def test_finishing_beside_a_commit_that_lives_stores_nothing_twice_and_what_is_fenced_stays() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", list(range(300)))
        async with publisher(rig) as one, publisher(rig) as two, rig.consumer() as control:
            committing = asyncio.ensure_future(one.publish(WriteName("job:1", 0), [part]))
            while not (left := await unfinished_writes(control, STAGING, "g0")):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.001)
            await two.finish(*left[0][:2])
            assert (await committing).rows == 300
            assert not await two.finish(*left[0][:2])
        assert sorted(flat(await stored(rig))) == list(range(300))
        DyingSender.left = 1
        with pytest.raises(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as dying:
                await dying.publish(WriteName("txn:nightly", 3), [part])
        async with publisher(rig) as later, rig.consumer() as control:
            await later.publish(WriteName("txn:nightly", 4), [])
            told = await finish_all(later, control, STAGING, "g0", look_only=False)
            assert [(each.write, each.number, each.result[:20]) for each in told] == [("nightly", 3, "cannot be finished: ")]
            with pytest.raises(OffsetOutOfRangeError, match="too long ago"):
                await later.finish(WriteName("job:forgotten", 0), [part])
        assert sorted(flat(await stored(rig))) == list(range(300))

    Rig().run(scenario)


def test_a_commit_without_rows_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a job without a name: nobody can have begun it."""
    published: list[tuple[str, Any]] = []

    class Recorder:
        def __init__(self, *_rest: Any) -> None: ...

        async def publish(self, write: WriteName, parts: Any, *_rest: Any) -> Published:
            published.append((write.application, parts))
            return Published(0, resumed=False)

    monkeypatch.setattr(writer, "Publisher", Recorder)
    options = parse_write_options({"bootstrap": "127.0.0.1:1", "topic": TARGET})
    for application in ("query:x", "txn:nightly", "job:1"):
        writer.commit_write(options, StagingTopic(STAGING, "g0", 9), WriteName(application, 3), [StagedTask("x", []), None])
    assert published == [("query:x", []), ("txn:nightly", [])]


@pytest.mark.parametrize("done", [True, False])
def test_a_write_whose_notes_are_expired_is_known_as_done_or_an_error(done: bool) -> None:
    """The driver died before Spark noted the batch, and came back after the staging topic's retention."""

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", list(range(100)))
        DyingSender.left = 10_000 if done else 6
        with contextlib.suppress(ConnectionAbortedError):
            async with publisher(rig, DyingSender) as first:
                await first.publish(WriteName("query", 7), [part])
        async with rig.producer() as producer:
            for _ in range(100):
                producer.send_oneway(Message(STAGING, bytes(1500)), queue_id=1)
            await producer.flush()
        await asyncio.sleep(3)  # clocks differ
        for host in rig.cluster.running():
            assert host.node is not None
            await host.node.store.expiry.expire(0)
        async with publisher(rig) as second:
            if done:
                assert (await second.publish(WriteName("query", 7), [part])).resumed
            else:
                with pytest.raises(OffsetOutOfRangeError, match="expired; the write cannot be completed"):
                    await second.publish(WriteName("query", 7), [part])

    Rig().run(scenario)


def test_a_write_whose_staged_rows_are_gone_before_its_commit_may_be_made_again() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        write, numbers = WriteName("query:q", 3), list(range(100))
        part = await stage(rig, "a", numbers)
        async with rig.admin() as admin:
            await admin.delete_topic(STAGING)
            await admin.create_topic(STAGING, queues=2)
        async with publisher(rig) as late:
            with pytest.raises(OffsetOutOfRangeError, match=f"rows staged in {STAGING} are gone: .*; nothing was stored, so the write can"):
                await late.publish(write, [part], TARGET)
        again = await stage(rig, "b", numbers)
        async with publisher(rig) as second:
            assert not (await second.publish(write, [again], TARGET)).resumed
        assert sorted(flat(await stored(rig))) == numbers

    Rig().run(scenario)


def test_two_drivers_that_commit_at_the_same_time_store_every_row_once() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        mine, others = await stage(rig, "a", list(range(300))), await stage(rig, "b", list(range(299, -1, -1)))
        async with publisher(rig) as one, publisher(rig) as two:
            write = WriteName("query", 3)
            results = await asyncio.gather(one.publish(write, [mine]), two.publish(write, [others]))
        assert sorted(result.resumed for result in results) == [False, True]
        assert sorted(flat(await stored(rig))) == list(range(300))

    Rig().run(scenario)


def test_a_master_killed_in_the_middle_costs_no_row_and_no_order() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", list(range(2_000)))
        async with publisher(rig) as one:
            committing = asyncio.ensure_future(one.publish(WriteName("query", 0), [part]))
            while not flat(await stored(rig)):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.001)
            rig.cluster.kill(rig.master)
            await committing
        found = await stored(rig)
        assert sorted(flat(found)) == list(range(2_000))
        assert all(queue == sorted(queue) for queue in found)

    Rig().run(scenario)


def test_a_later_batch_fences_off_an_earlier_one() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", [1, 2])
        async with publisher(rig) as one:
            await one.publish(WriteName("query", 5), [part])
            with pytest.raises(ProducerFencedError, match="write 4 of query is older than a committed write"):
                await one.publish(WriteName("query", 4), [part])
            await one.publish(WriteName("query", 6), [await stage(rig, "b", [3])])
        assert sorted(flat(await stored(rig))) == [1, 2, 3]

    Rig().run(scenario)


def test_staged_rows_that_are_gone_or_damaged_are_an_error() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", list(range(50)))
        beyond = StagedRange("g0", 1, part.end + 5, part.end + 9, "a", 1, 1, 1)
        other = StagedRange(part.group, part.queue_id, part.first, part.end, part.tag, part.rows, part.size_bytes, part.crc ^ 1)
        staged = rig.consumer(timeout_ms=500)
        async with rig.consumer() as control, staged, IdempotentWriter(rig.router(), timeout_ms=500) as sender:
            bad = Publisher(control, staged, sender, maker(rig, 1), STAGING, "g0")
            with pytest.raises(OffsetOutOfRangeError, match="are gone"):
                await bad.publish(WriteName("one", 0), [beyond])
            with pytest.raises(CorruptBatchError, match="found"):
                await bad.publish(WriteName("two", 0), [other])

    Rig().run(scenario)


def test_a_topic_with_fewer_queues_than_before_says_what_to_do() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        write, part, router = WriteName("query:q", 3), await stage(rig, "a", list(range(100))), rig.router()

        async def resize(queues: int) -> None:
            spec = admin_pb2.TopicSpec(name=TARGET, write_queues=queues)
            await router.call_leader("g0", methods.UPDATE_TOPIC, spec, deadline_ms=router.clock.monotonic_ms() + 5000)

        await resize(1)
        async with publisher(rig) as one:
            with pytest.raises(InvalidArgumentError, match="expected 0 to 0; the topic had more write queues when this write began"):
                await one.publish(write, [part])
        await resize(QUEUES)
        async with publisher(rig) as two:
            assert (await two.publish(write, [part])).resumed
        assert sorted(flat(await stored(rig))) == list(range(100))

    Rig().run(scenario)


def test_nobody_to_send_to_ends_after_the_timeout() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = await stage(rig, "a", [1])
        async with rig.consumer() as control, rig.consumer() as staged, IdempotentWriter(rig.router(), timeout_ms=2_000) as sender:
            lonely = Publisher(control, staged, sender, maker(rig, 1), STAGING, "g0")
            for node_id in list(rig.cluster.hosts):
                rig.cluster.kill(node_id)
            with pytest.raises(DledgerError) as caught:
                await lonely.publish(WriteName("one", 0), [part])
            assert caught.value.retriable

    Rig().run(scenario)


def test_packs_survive_any_cutting() -> None:
    packer = RowBatcher(
        FrameStamp(UniqueIds(SimLess(), random.Random(1)), b"\x7f\0\0\x01\0\0\0\0", lambda: 1), lambda _: LANES, TARGET, first_queue=0
    )
    whole = b"".join(
        [each.data for each in [*packer.add(pa.RecordBatch.from_pylist([{"body": b"x" * n} for n in range(200)])), *packer.finish()]]
    )
    plain = list(StagedBatchReader().feed(whole))
    for step in (1, 7, 1000):
        reader, found = StagedBatchReader(), []
        for at in range(0, len(whole), step):
            found += list(reader.feed(whole[at : at + step]))
        reader.finish()
        assert found == plain
    reader = StagedBatchReader()
    list(reader.feed(whole[:-1]))
    with pytest.raises(CorruptBatchError, match="ends with an incomplete batch"):
        reader.finish()


def test_rows_that_brokers_would_refuse_are_refused_before_they_are_staged() -> None:
    def add(row: dict[str, Any]) -> None:
        made = FrameStamp(UniqueIds(SimLess(), random.Random(1)), b"\x7f\0\0\x01\0\0\0\0", lambda: 1_700_000_000_000)
        list(RowBatcher(made, lambda _: LANES, TARGET, first_queue=0).add(pa.RecordBatch.from_pylist([row])))

    for row, words in (
        ({"body": bytes(packs.MAX_BODY_BYTES + 1)}, "body of 4194305 bytes; expected at most 4194304"),
        ({"body": b"x", "deliver_timestamp": datetime(2030, 1, 1, tzinfo=UTC)}, "expected at most 40 days ahead"),
        ({"body": b"x", "delay_level": 1, "deliver_timestamp": datetime(2023, 11, 20, tzinfo=UTC)}, "are mutually exclusive"),
        ({"body": b"x", "queue_id": 9}, "queue 9 is not writable; expected one of 0, 1, 2"),
        ({"body": None}, "row without a body"),
        ({"body": b"x", "properties": [("TAGS", "x")]}, "property 'TAGS' is reserved"),
        ({"body": b"x", "tags": "a|b"}, "a message has one tag"),
        ({"body": b"x", "keys": ["a", None]}, "null in keys"),
        ({"body": b"x", "keys": "k" * 40_000}, "properties take"),
        ({"body": b"x", "properties": [("a", "x" * 40_000)]}, "properties take"),
        ({"body": b"x", "delay_level": 19}, "delay level 19: expected 0 to 18"),
    ):
        with pytest.raises(DledgerError, match=words) as caught:
            add(row)
        assert caught.value.message.startswith(f"topic {TARGET}: ")


def test_the_largest_body_is_what_the_cluster_says() -> None:
    made = FrameStamp(UniqueIds(SimLess(), random.Random(1)), b"\x7f\0\0\x01\0\0\0\0", lambda: 1)
    asked: list[str] = []
    batcher = RowBatcher(made, lambda _: LANES, TARGET, 0, lambda topic: asked.append(topic) or 5)
    assert list(batcher.add(pa.RecordBatch.from_pylist([{"body": b"12345"}]))) == []
    with pytest.raises(MessageTooLargeError, match="body of 6 bytes; expected at most 5"):
        list(batcher.add(pa.RecordBatch.from_pylist([{"body": b"123456"}])))
    assert set(asked) == {TARGET}


def test_who_may_do_nothing_with_a_topic_is_told_that_writing_is_missing() -> None:
    class Consumer:
        def topic(self, name: str) -> None:
            raise may_not("user mon", "read", name)

    with pytest.raises(PermissionDeniedError, match="user mon may not write topic orders") as refused:
        writable_queues(Consumer(), "orders")  # type: ignore[arg-type]
    assert refused.value.details["action"] == "write"


def test_properties_without_a_value_are_left_out() -> None:
    """Spark's maps have nulls by default; as the text "None" they would be read back."""
    kind = pa.map_(pa.string(), pa.string())
    rows = {"body": [b"1", b"2", b"3"], "properties": pa.array([[("p", None), ("q", "v")], [("p", None)], None], kind)}
    made = FrameStamp(UniqueIds(SimLess(), random.Random(1)), b"\x7f\0\0\x01\0\0\0\0", lambda: 1)
    packer = RowBatcher(made, lambda _: LANES, TARGET, first_queue=0)
    whole = b"".join([each.data for each in [*packer.add(pa.RecordBatch.from_pydict(rows)), *packer.finish()]])
    assert (whole.count(b"None"), whole.count(b"p\x01"), whole.count(b"q\x01v\x02")) == (0, 0, 1)


def test_trace_context_comes_as_columns_or_as_properties_and_a_row_has_one_or_none() -> None:
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    kind = pa.map_(pa.string(), pa.string())
    old = [("traceparent", "old"), ("tracestate", "old"), ("q", "v")]
    rows = {
        "body": [b"1", b"2", b"3", b"4"],
        "traceparent": ["P1", "P2", None, ""],
        "tracestate": ["S1", None, "S3", "S4"],
        "properties": pa.array([None, old, old, None], kind),
    }
    found = list(packs._messages({name: packs._values(pa.RecordBatch.from_pydict(rows)[name]) for name in rows}, TARGET, 4))
    assert [message.properties for message, _, _ in found] == [
        {"traceparent": "P1", "tracestate": "S1"},
        {"q": "v", "traceparent": "P2"},
        dict(old),
        None,
    ]
    fields = [StructField("body", BinaryType()), StructField("tracestate", StringType())]
    with pytest.raises(InvalidArgumentError, match="column 'tracestate' requires column 'traceparent'"):
        packs.check_schema(StructType(fields), "t")
    packs.check_schema(StructType([*fields, StructField("traceparent", StringType())]), "t")


def test_columns_that_kafka_has_get_the_name_they_have_here() -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    with pytest.raises(InvalidArgumentError, match="column 'value' is unknown; use body for Kafka's value; expected some of body, topic"):
        packs.check_schema(StructType([StructField("value", BinaryType())]), "t")


class SimLess:
    """A clock that stands still."""

    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1


def frames_by_queue(rows: pa.RecordBatch, *, first_queue: int = 0) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What a task makes of rows: the messages of each queue, decoded."""
    made = FrameStamp(UniqueIds(SimLess(), random.Random(1)), b"\x7f\0\0\x01\0\0\0\0", lambda: 1)
    packer = RowBatcher(made, lambda _: LANES, TARGET, first_queue=first_queue)
    batches = [part for start in range(0, rows.num_rows, 50) for part in packer.add(rows.slice(start, 50))] + [*packer.finish()]
    whole = b"".join(each.data for each in batches)
    assert sum(each.rows for each in batches) == rows.num_rows
    assert packer.rows == rows.num_rows
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for group, record in StagedBatchReader().feed(whole):
        view = BatchView(memoryview(record))
        check_batch(view, packs.MAX_BODY_BYTES)
        frames = [decode_frame(bytes(view.frames), int(position)) for position in frame_positions(view.sizes.astype(np.int64))]
        told = [{"body": each.body} | {name: each.properties.get(name) for name in ("TAGS", "KEYS")} for each in frames]
        assert all(len(each.properties["UNIQ_KEY"]) == 32 for each in frames)
        found.setdefault((group, view.queue_id), []).extend(told)
    return found


@pytest.mark.parametrize("chooser", ["", "queue_key", "queue_id"])
@pytest.mark.parametrize("varied", [False, True])
def test_plain_rows_are_packed_as_messages_made_one_by_one(chooser: str, varied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "STAGED_BATCH_BYTES", 5_000)
    count = 230
    rows = {
        "body": pa.array([b"x" * (number % 7 if varied else 5) + b"%03d" % number for number in range(count)], pa.binary()),
        "tags": pa.array([["a", None, "b"][number % 3] if varied else "a" for number in range(count)]),
        "keys": pa.array([f"k{number}" if number % 2 and varied else None for number in range(count)], pa.string()),
    }
    if chooser == "queue_key":
        rows["queue_key"] = pa.array([None if number % 5 == 0 else f"q{number % 11}" for number in range(count)])
    elif chooser == "queue_id":
        rows["queue_id"] = pa.array([number % 3 for number in range(count)], pa.int32())
    batch = pa.RecordBatch.from_pydict(rows)
    plain = frames_by_queue(batch)
    monkeypatch.setattr(packs, "PLAIN_COLUMNS", frozenset())
    one_by_one = frames_by_queue(batch)
    assert plain == one_by_one
    assert sum(map(len, plain.values())) == count


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC])
def test_a_topic_where_messages_wait_takes_no_rows(topic: str) -> None:
    """Brokers would refuse them at the commit, again and again, when rows for other topics are stored already."""
    consumer: Any = None  # nobody is asked
    with pytest.raises(InvalidArgumentError, match=f"topic {topic} belongs to the system"):
        writable_queues(consumer, topic)
