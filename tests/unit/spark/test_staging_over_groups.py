"""The staging topic over several replica groups: rows in all of them, the control queue in one, and a group that does not answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from dledger_client import SendResult, SendStatus, TopicQueues
from dledger_client.aio import Message
from dledger_client.producer.idempotent_writer import IdempotentWriter
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError, NotLeaderError
from pyspark_dledger.write.publisher import Publisher, StagedRange, WriteName
from pyspark_dledger.write.staged_batches import RowBatcher, StagedBatch, TargetQueue
from pyspark_dledger.write.staging_sender import StagingSender
from pyspark_dledger.write.staging_topic import STAGING_QUEUES, StagingTopic, staging_of
from tests.unit.client.sim_rig import Rig
from tests.unit.spark.test_publisher import STAGING, TARGET, maker

if TYPE_CHECKING:
    from dledger_client import Producer


class Sending:
    """A producer that says what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def send_async(self, message: Message, *, queue_id: tuple[str, int]) -> Future[SendResult]:
        self.bodies.append(bytes(message.body))
        future = Future[SendResult]()
        future.set_result(SendResult(SendStatus.SEND_OK, "", STAGING, *queue_id, len(self.bodies) - 1, 0))
        return future

    def flush(self) -> None: ...


def part(group: str, queues: int, perm: int = 6) -> TopicQueues:
    return TopicQueues(STAGING, group, queues, queues, perm, "")


def test_rows_are_spread_over_all_groups_and_manifests_stay_in_one() -> None:
    staging = staging_of(STAGING, [part("g1", 4), part("g0", 5)], {})
    assert (staging.group, staging.queues) == ("g0", 5)
    places = [staging.place(partition) for partition in range(7)]
    assert places == [("g0", 1), ("g1", 1), ("g0", 2), ("g1", 2), ("g0", 3), ("g1", 3), ("g0", 4)]
    assert staging.place(7) == places[0]
    assert StagingTopic(STAGING, "g0", 3).place(1) == ("g0", 2)
    without = staging_of(STAGING, [part("g1", 4), part("g0", 5)], {"g1"})
    assert {without.place(partition)[0] for partition in range(20)} == {"g0"}
    assert {staging_of(STAGING, [part("g0", 5), part("g1", 4, 4)], {}).place(n)[0] for n in range(20)} == {"g0"}


def test_a_batch_larger_than_a_producer_sends_by_itself_is_staged_in_pieces_that_join_again() -> None:
    producer, staged = Sending(), StagedBatch("g0", 1, b"%09d" % 7 * 600_000)
    sender = StagingSender(cast("Producer", producer), StagingTopic(STAGING, "g0", 3), 0, max_bytes=16 << 20)
    sender.add(staged)
    (found,) = sender.finish()
    largest = ProducerOptions.of("spark", {}).max_message_bytes
    assert max(map(len, producer.bodies)) <= largest < len(staged.data)
    assert b"".join(producer.bodies) == staged.data
    assert (found.rows, found.size_bytes, found.crc, found.end - found.first) == (1, len(staged.data), crc32c(staged.data), 2)


def test_a_write_waits_for_the_group_of_its_manifests() -> None:
    with pytest.raises(NotLeaderError, match="its control queue is in g0, which has no leader"):
        staging_of(STAGING, [part("g0", 5), part("g1", 5)], {"g0"})
    with pytest.raises(InvalidArgumentError, match="has 1 queue; expected at least 2"):
        staging_of(STAGING, [part("g0", 1)], {})


def test_what_was_staged_in_one_group_is_published_in_all_once() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(STAGING, queues=STAGING_QUEUES)
        await rig.topic(TARGET, queues=4)
        async with rig.consumer() as consumer, rig.producer() as producer:
            staging = staging_of(STAGING, await consumer.topic(STAGING), {})
            targets = [TargetQueue(p.replica_group, TARGET, n) for p in await consumer.topic(TARGET) for n in range(p.write_queues)]
            parts = []
            for task in range(4):
                packer = RowBatcher(maker(rig, task), lambda _: targets, TARGET, first_queue=task)
                rows = pa.RecordBatch.from_pylist(
                    [{"body": b"%d" % n, "queue_key": f"k{n % 11}"} for n in range(task * 10, task * 10 + 10)]
                )
                whole = b"".join(each.data for each in [*packer.add(rows), *packer.finish()])
                place = staging.place(task)
                result = await producer.send(Message(STAGING, whole, tags=f"task{task}"), queue_id=place)
                assert (result.replica_group, result.queue_id) == place
                offset = result.queue_offset
                parts.append(StagedRange(*place, offset, offset + 1, f"task{task}", 10, len(whole), crc32c(whole)))
            assert {each.group for each in parts} == {"g0", "g1"}
            for _ in range(2):
                async with rig.consumer(read_from="follower") as staged, IdempotentWriter(rig.router(), timeout_ms=20_000) as sender:
                    publisher = Publisher(consumer, staged, sender, maker(rig, 99), STAGING, staging.group)
                    await publisher.publish(WriteName("txn:one", 1), parts)
            bodies = []
            for queue in targets:
                found = await consumer.fetch(TARGET, queue.queue_id, 0, 1000, replica_group=queue.group)
                bodies += [int(message.body) for message in found]
            assert sorted(bodies) == list(range(40))
            await asyncio.sleep(0)

    Rig(groups=2).run(scenario)
