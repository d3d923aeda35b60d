"""A task of a direct write against real nodes in virtual time: each row once, however often the task is tried and whoever else writes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import pyarrow as pa
import pytest

from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError, OutOfOrderSequenceError, ProducerFencedError
from dledger_wire.rpc import methods
from pyspark_dledger.write import staged_batches as packs
from pyspark_dledger.write.direct_task import DirectTarget, DirectTask, task_ids
from pyspark_dledger.write.direct_writer import ends_of
from pyspark_dledger.write.staged_batches import FrameStamp, RowBatcher, StagedBatch, TargetQueue
from store.state.shared_places import SharedPlaces
from tests.unit.client.sim_rig import Rig
from tests.unit.spark.test_publisher import SimLess

TARGET, QUEUES = "t", 3
ROWS = list(range(300))
_seeds = count()


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many packs of few rows."""
    monkeypatch.setattr(packs, "STAGED_BATCH_BYTES", 2_000)


async def target_of(rig: Rig, groups: Sequence[str] = ("g0",)) -> DirectTarget:
    queues = tuple(TargetQueue(group, TARGET, queue) for group in groups for queue in range(QUEUES))
    async with rig.consumer() as consumer:
        held = await consumer.offsets(TARGET)
    ends = {queue: held[queue.group, queue.queue_id].max_offset for queue in queues}
    return DirectTarget("w1", TARGET, queues, ends, 4 << 20)


def batches(target: DirectTarget, numbers: Sequence[int], partition: int = 0) -> list[StagedBatch]:
    """What the batcher of an attempt makes: by key to queues, with keys and properties."""
    ids = task_ids(target.name(partition), SimLess(), random.Random(next(_seeds)))
    stamp = FrameStamp(ids, b"\x7f\0\0\x01\0\0\0\0", lambda: 1_700_000_000_000)
    batcher = RowBatcher(stamp, lambda _: target.queues, TARGET, partition)
    made = []
    for first in range(0, len(numbers), 50):
        rows = [{"body": b"%d" % n, "queue_key": f"k{n % 7}", "keys": f"id-{n}"} for n in numbers[first : first + 50]]
        made += list(batcher.add(pa.RecordBatch.from_pylist(rows)))
    return [*made, *batcher.finish()]


class Attempt:
    """One attempt of a task, in a process of its own."""

    def __init__(self, rig: Rig, target: DirectTarget, partition: int = 0, *, is_repeated: bool = False) -> None:
        self.target, self.partition = target, partition
        self.sender = IdempotentWriter(rig.router(), timeout_ms=20_000)
        self.task = DirectTask(rig.router(), self.sender, rig.consumer, target, partition, 20_000, is_repeated)

    async def run(self, numbers: Sequence[int], *, dies_behind: int | None = None) -> None:
        await self.task.begin()
        for number, batch in enumerate(batches(self.target, numbers, self.partition)):
            if number == dies_behind:
                await self.sender.flush()
                return
            await self.task.add(batch)
        await self.task.finish()


async def stored(rig: Rig) -> list[list[int]]:
    """The numbers in each queue, in order."""
    async with rig.consumer() as consumer:
        held = await consumer.offsets(TARGET)
        return [
            [int(m.body) for m in await consumer.fetch(TARGET, queue, 0, 10_000, replica_group=group)] if offsets.max_offset else []
            for (group, queue), offsets in sorted(held.items())
        ]


def once_and_in_order(queues: list[list[int]], numbers: Sequence[int] = ROWS) -> bool:
    return sorted(chain(*queues)) == list(numbers) and all(queue == sorted(queue) for queue in queues)


@pytest.mark.parametrize("dies_behind", [0, 1, 5, 11])
def test_a_task_that_is_tried_again_stores_only_what_is_missing(dies_behind: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        target = await target_of(rig)
        await Attempt(rig, target).run(ROWS, dies_behind=dies_behind)
        before = sum(map(len, await stored(rig)))
        assert before < len(ROWS)
        await Attempt(rig, target).run(ROWS, dies_behind=dies_behind + 4)
        assert before < sum(map(len, await stored(rig))) < len(ROWS)
        await Attempt(rig, target).run(ROWS)
        assert once_and_in_order(await stored(rig))
        await Attempt(rig, target).run(ROWS)  # its success was not heard of
        assert once_and_in_order(await stored(rig))

    Rig().run(scenario)


@pytest.mark.parametrize("rows", [1, 49, 51, 150, 299])
def test_rows_of_a_task_that_failed_end_anywhere_in_a_batch(rows: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        target = await target_of(rig)
        await Attempt(rig, target).run(ROWS[:rows])
        assert once_and_in_order(await stored(rig), ROWS[:rows])
        await Attempt(rig, target).run(ROWS)
        async with rig.consumer() as consumer, rig.admin() as admin:
            found = [m for queue in range(QUEUES) for m in await consumer.fetch(TARGET, queue, 0, 1000)]
            asked = [await admin.query_by_key(TARGET, f"id-{number}") for number in (0, rows - 1, rows, 299)]
        assert once_and_in_order(await stored(rig))
        assert [m.keys for m in sorted(found, key=lambda m: int(m.body))] == [f"id-{n}" for n in ROWS]
        assert len({m.msg_id for m in found}) == len(ROWS)
        assert [[int(m.body) for m in each.messages] for each in asked] == [[0], [rows - 1], [rows], [299]]

    Rig().run(scenario)


def test_tasks_share_queues_with_each_other_and_with_other_producers() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        async with rig.producer() as producer:
            await producer.send_many(TARGET, [b"%d" % n for n in range(1000, 1200)])
            target = await target_of(rig)
            await Attempt(rig, target).run(ROWS[:150], dies_behind=5)
            await Attempt(rig, target, 1).run(ROWS[150:], dies_behind=3)
            await producer.send_many(TARGET, [b"%d" % n for n in range(1200, 1400)])
            await Attempt(rig, target).run(ROWS[:150])
            await Attempt(rig, target, 1).run(ROWS[150:])
        found = await stored(rig)
        assert sorted(chain(*found)) == [*ROWS, *range(1000, 1400)]
        for part in (range(150), range(150, 300)):
            assert once_and_in_order([[n for n in queue if n in part] for queue in found], part)

    Rig().run(scenario)


def test_rows_go_to_the_queues_of_all_replica_groups() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=2 * QUEUES)
        target = await target_of(rig, ("g0", "g1"))
        await Attempt(rig, target).run(ROWS, dies_behind=7)
        await rig.restart(rig.master_of("g1"))
        await Attempt(rig, target).run(ROWS)
        found = await stored(rig)
        assert once_and_in_order(found)
        assert all(found), "a queue without rows"

    Rig(groups=2).run(scenario)


def test_an_attempt_that_still_runs_is_ended_by_the_next_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        target = await target_of(rig)
        slow = Attempt(rig, target)
        await slow.task.begin()
        made = batches(target, ROWS)

        async def go_on(more: list[StagedBatch]) -> None:
            for batch in more:
                await slow.task.add(batch)
            await slow.task.finish()

        await go_on(made[:6])
        await Attempt(rig, target).run(ROWS)
        with pytest.raises(ProducerFencedError, match="partition 0: a later attempt of this task has begun and ends this one"):
            await go_on(made[6:])
        assert once_and_in_order(await stored(rig))

    Rig().run(scenario)


OTHERS: dict[str, Any] = {
    "another order": ROWS[:40][::-1] + ROWS[40:],
    "other rows": [*ROWS[:3], 7777, *ROWS[4:]],
    "a row more": [ROWS[0], *ROWS],
    "none": [],
    "fewer": ROWS[:9],
}


@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS)
def test_an_attempt_with_other_rows_is_refused_before_it_stores_any(rows: list[int]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        target = await target_of(rig)
        await Attempt(rig, target).run(ROWS, dies_behind=10)
        before = await stored(rig)
        with pytest.raises(InvalidArgumentError, match="expects the same rows in the same order from each attempt"):
            await Attempt(rig, target).run(rows)
        assert await stored(rig) == before

    Rig().run(scenario)


def test_rows_that_cannot_be_read_back_are_not_taken_for_equal() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        target = await target_of(rig)
        await Attempt(rig, target).run(ROWS, dies_behind=10)
        expired = dataclasses.replace(target, ends=dict.fromkeys(target.queues, 20))
        with pytest.raises(OffsetOutOfRangeError, match=r"topic t, queue g0:\d: an earlier attempt of partition 0 stored \d+ rows"):
            await Attempt(rig, expired).run(ROWS)

    Rig().run(scenario)


def test_rows_of_an_attempt_that_the_cluster_has_forgotten_are_not_stored_again() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        for host in rig.cluster.hosts.values():
            assert host.node is not None
            host.node.store.sequences._named_places = SharedPlaces(5)
        target = await target_of(rig)
        await Attempt(rig, target).run(ROWS, dies_behind=5)
        for partition in range(1, 9):
            await Attempt(rig, target, partition).run([])
        before = await stored(rig)
        for is_repeated in (False, True):  # the first of them is known to the cluster when the second comes
            with pytest.raises(OutOfOrderSequenceError, match=r"stored \d+ rows, but the replica group has forgotten that attempt"):
                await Attempt(rig, target, is_repeated=is_repeated).run(ROWS)
        assert await stored(rig) == before
        await Attempt(rig, target, 9, is_repeated=True).run([7777])  # nothing of its own is there
        assert sorted(chain(*await stored(rig))) == [*sorted(chain(*before)), 7777]

    Rig().run(scenario)


def test_a_topic_with_queues_that_cannot_be_read_back_is_refused_before_a_task_starts() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET)
        async with rig.admin() as admin:
            await admin.update_topic(TARGET, write_queues=3, force=True)
        queues = [TargetQueue("g0", TARGET, queue) for queue in range(3)]
        async with rig.consumer() as consumer:
            held = await consumer.offsets(TARGET)
        assert ends_of(queues[:1], held) == {queues[0]: 0}
        with pytest.raises(InvalidArgumentError, match=r"queues g0:1, g0:2 are written to and not read.*expected writeMode=staged"):
            ends_of(queues, held)

    Rig().run(scenario)


def test_a_topic_that_is_made_anew_while_a_task_writes_ends_the_attempt() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        attempt = Attempt(rig, target := await target_of(rig))
        await attempt.task.begin()
        made = batches(target, ROWS)
        for batch in made[:6]:
            await attempt.task.add(batch)
        await attempt.task.finish()
        async with rig.admin() as admin:
            await admin.delete_topic(TARGET)
            await admin.create_topic(TARGET, queues=QUEUES)
        for batch in made[6:]:
            await attempt.task.add(batch)
        with pytest.raises(OutOfOrderSequenceError, match="the topic was deleted and created again"):
            await attempt.task.finish()

    Rig().run(scenario)


def test_a_topic_that_got_fewer_queues_while_a_task_writes_says_what_to_do() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        attempt = Attempt(rig, target := await target_of(rig))
        await attempt.task.begin()
        spec, router = admin_pb2.TopicSpec(name=TARGET, write_queues=1), rig.router()
        await router.call_leader("g0", methods.UPDATE_TOPIC, spec, deadline_ms=router.clock.monotonic_ms() + 5000)
        for batch in batches(target, ROWS):
            await attempt.task.add(batch)
        with pytest.raises(InvalidArgumentError, match="expected 0 to 0; the topic had more write queues when this write began: give it"):
            await attempt.task.finish()

    Rig().run(scenario)


def test_a_leader_that_is_killed_while_a_task_writes_costs_no_row() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(TARGET, queues=QUEUES)
        attempt = Attempt(rig, target := await target_of(rig))
        await attempt.task.begin()
        for number, batch in enumerate(batches(target, ROWS)):
            if number in (4, 9):
                await rig.restart(rig.master)
            await attempt.task.add(batch)
        await attempt.task.finish()
        assert once_and_in_order(await stored(rig))

    Rig().run(scenario)
