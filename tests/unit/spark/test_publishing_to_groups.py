"""Commits of writes to several replica groups at once: each row once, whichever group or driver fails when, and older manifests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dledger_client.aio import Message
from dledger_client.producer.idempotent_writer import IdempotentWriter, sequenced
from dledger_wire.checksum import crc32c
from dledger_wire.errors import CorruptBatchError, DledgerError
from pyspark_dledger.jobs.finish import finish_all
from pyspark_dledger.write import publisher as publishing
from pyspark_dledger.write import staged_batches
from pyspark_dledger.write.publisher import Publisher, StagedRange, WriteName
from pyspark_dledger.write.staged_batches import RowBatcher, StagedBatchReader, TargetQueue
from tests.unit.client.sim_rig import Rig, until
from tests.unit.spark.test_publisher import STAGING, TARGET, maker

QUEUES, ROWS, TASKS = 2, 300, 3
TARGETS = [TargetQueue(group, TARGET, number) for group in ("g0", "g1") for number in range(QUEUES)]
WRITE = WriteName("query", 0)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "STAGED_BATCH_BYTES", 1_000)


class Dying(IdempotentWriter):
    """Its process dies after some records."""

    left = 0

    async def send(self, replica_group: str, record: Any) -> None:
        if Dying.left == 0:
            raise ConnectionAbortedError("killed")
        Dying.left -= 1
        await super().send(replica_group, record)


async def stage(rig: Rig, attempt: str, *, turn: int = 0, topic: str = TARGET) -> list[StagedRange]:
    """What tasks stage of the numbers, in an order that depends on ``turn``: a stream for each group."""
    numbers = [(number + turn) % ROWS for number in range(ROWS)]
    targets = [replace(each, topic=topic) for each in TARGETS]
    parts = []
    async with rig.producer(send_timeout_ms=20_000) as producer:
        for task in range(TASKS):
            packer = RowBatcher(maker(rig, task + 10 * turn), lambda _: targets, topic, first_queue=task)
            rows = [{"body": b"%d" % n, "queue_key": f"k{n % 11}"} for n in sorted(numbers[task::TASKS])]
            batches = [*packer.add(pa.RecordBatch.from_pylist(rows)), *packer.finish()]
            for group in ("g0", "g1"):
                own = [each for each in batches if each.group == group]
                tag, whole = f"{attempt}-{task}-{group}", b"".join(each.data for each in own)
                placed = await producer.send(Message(STAGING, whole, tags=tag), queue_id=("g0", 1 + task % 2))
                place = (placed.replica_group, placed.queue_id, placed.queue_offset, placed.queue_offset + 1)
                parts.append(StagedRange(*place, tag, sum(each.rows for each in own), len(whole), crc32c(whole), group))
    return parts


@asynccontextmanager
async def publisher(
    rig: Rig, sender_class: type[IdempotentWriter] = IdempotentWriter, timeout_ms: int = 20_000
) -> AsyncIterator[Publisher]:
    staged = rig.consumer(read_from="follower")
    async with rig.consumer() as control, staged, sender_class(rig.router(), timeout_ms=timeout_ms) as sender:
        yield Publisher(control, staged, sender, maker(rig, 99), STAGING, "g0")


async def topics(rig: Rig) -> None:
    await rig.topic(STAGING, queues=6)
    await rig.topic(TARGET, queues=2 * QUEUES)


async def stored(rig: Rig, groups: tuple[str, ...] = ("g0", "g1"), topic: str = TARGET) -> list[int]:
    """The numbers in the queues of some groups; those with one key are in order."""
    found: list[int] = []
    async with rig.consumer() as consumer:
        for queue in TARGETS:
            if queue.group in groups:
                messages = await consumer.fetch(topic, queue.queue_id, 0, 10_000, replica_group=queue.group)
                found += [int(message.body) for message in messages]
    return found


@pytest.mark.parametrize("survived", [0, 1, 3, 8, 15, 22])
def test_a_commit_that_died_in_the_middle_of_all_groups_is_finished(survived: int) -> None:
    """The next attempt staged the rows in another order and other parts; those of the first manifest count."""

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        parts = await stage(rig, "first")
        Dying.left = survived + 1  # the manifest
        async with publisher(rig, Dying) as dying:
            with pytest.raises(ConnectionAbortedError):
                await dying.publish(WRITE, parts)
        again = await stage(rig, "again", turn=7)
        for _ in range(2):
            async with publisher(rig) as other:
                assert (await other.publish(WRITE, again)).resumed
        assert sorted(await stored(rig)) == list(range(ROWS))

    Rig(groups=2).run(scenario)


def test_two_commits_at_the_same_time_store_each_row_once() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        parts, others = await stage(rig, "first"), await stage(rig, "speculative", turn=5)
        async with publisher(rig) as one, publisher(rig) as two:
            await asyncio.gather(one.publish(WRITE, parts), two.publish(WRITE, others))
        assert sorted(await stored(rig)) == list(range(ROWS))

    Rig(groups=2).run(scenario)


def test_a_group_without_a_leader_stops_no_other_and_the_next_attempt_finishes_it() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        parts = await stage(rig, "first")
        own = sum(part.rows for part in parts if part.target == "g0")
        nodes = rig.cluster.groups["g1"].node_ids
        for node_id in nodes:
            rig.cluster.kill(node_id)
        async with publisher(rig, timeout_ms=2_000) as first:
            with pytest.raises(DledgerError) as caught:
                await first.publish(WRITE, parts)
        assert caught.value.retriable
        assert 0 < len(await stored(rig, ("g0",))) == own < ROWS
        for node_id in nodes:
            rig.cluster.start(node_id)
        await until(lambda: rig.is_group_up("g1"))
        async with publisher(rig) as second:
            assert (await second.publish(WRITE, parts)).resumed
        assert sorted(await stored(rig)) == list(range(ROWS))

    Rig(groups=2).run(scenario)


def test_more_groups_than_are_published_at_once_are_all_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "GROUPS_AT_ONCE", 1)

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        async with publisher(rig) as first:
            await first.publish(WRITE, await stage(rig, "first"))
        assert sorted(await stored(rig)) == list(range(ROWS))

    Rig(groups=2).run(scenario)


def test_a_group_may_be_begun_with_while_another_is_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        packer = RowBatcher(maker(rig, 1), lambda _: TARGETS, TARGET, first_queue=0)
        batches = packer.add(pa.RecordBatch.from_pylist([{"body": b"%d" % n, "queue_key": f"k{n}"} for n in range(20)]))
        by_group = {group: record for each in [*batches, *packer.finish()] for group, record in StagedBatchReader().feed(each.data)}
        async with IdempotentWriter(rig.router(), timeout_ms=20_000) as sender:
            await sender.send("g0", sequenced(by_group["g0"], WRITE.sequence(0)))
            waiting = asyncio.ensure_future(sender.flush("g0"))
            await asyncio.sleep(0)
            await sender.send("g1", sequenced(by_group["g1"], WRITE.sequence(0)))
            await waiting
            await sender.flush()
        for group in ("g0", "g1"):
            assert await stored(rig, (group,))

    Rig(groups=2).run(scenario)


def test_a_write_that_cannot_be_finished_leaves_nothing_that_the_next_one_would_send() -> None:
    """Its topic is gone, which one of its records is told while others are on their way: the write behind it is finished all the same."""

    async def scenario(rig: Rig) -> None:
        await topics(rig)
        other = "kept"
        await rig.topic(other, queues=2 * QUEUES)
        parts, later = await stage(rig, "first"), WriteName("later", 0)
        kept = await stage(rig, "kept", topic=other)
        for write, of_it in ((WRITE, parts), (later, kept)):
            Dying.left = 1  # the manifest
            async with publisher(rig, Dying) as dying:
                with pytest.raises(ConnectionAbortedError):
                    await dying.publish(write, of_it)
        async with rig.admin() as admin:
            await admin.delete_topic(TARGET)
        async with rig.consumer() as control, publisher(rig, timeout_ms=5_000) as one:
            found = await finish_all(one, control, STAGING, "g0", look_only=False)
        assert [each.result.partition(":")[0] for each in found] == ["cannot be finished", "finished"], found
        assert sorted(await stored(rig, topic=other)) == list(range(ROWS))

    Rig(groups=2).run(scenario)


def test_a_batch_for_another_group_than_its_part_says_is_refused() -> None:
    async def scenario(rig: Rig) -> None:
        await topics(rig)
        part = (await stage(rig, "first"))[0]
        async with publisher(rig) as first:
            with pytest.raises(CorruptBatchError, match="found a batch for g0"):
                await first.publish(WRITE, [replace(part, target="g1")])

    Rig(groups=2).run(scenario)
