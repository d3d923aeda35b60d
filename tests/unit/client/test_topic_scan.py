"""Whole topics, as chunks and as tables of Arrow: against real nodes in virtual time, and how far the readers go ahead of their caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from dledger_client.aio import PullConsumer
from dledger_client.fetch.records import Chunk
from dledger_client.fetch.topic_scan import Span, TopicScan
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError, OffsetOutOfRangeError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_other_replicas import COUNT, bounds, expire, fill

Bodies = dict[tuple[str, int], list[bytes]]


async def scan(consumer: PullConsumer, positions: dict[tuple[str, int], int] | None = None, **how: Any) -> Bodies:
    """The bodies of ``t`` by queue; ``positions`` are moved on as users do."""
    found: Bodies = {}
    async for table in consumer.scan_arrow("t", positions=positions, columns=["queue_offset", "body"], **how):
        place = table.schema.metadata
        queue = place[b"replica_group"].decode(), int(place[b"queue_id"])
        bodies = table["body"].to_pylist()
        found.setdefault(queue, []).extend(bodies)
        if positions is not None:
            assert not bodies or table["queue_offset"].to_pylist()[0] >= positions.get(queue, 0)
            positions[queue] = int(place[b"next_offset"])
    return found


async def fetched(consumer: PullConsumer) -> Bodies:
    return {
        (group, number): [message.body for message in await consumer.fetch("t", number, 0, 10_000, replica_group=group, max_bytes=0)]
        for group, number in await consumer.offsets("t")
    }


def test_a_scan_gives_all_of_every_queue_in_order_and_goes_on_where_it_ended() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with rig.producer() as producer, rig.consumer() as consumer:
            for first in range(0, 900, 10):
                await producer.send_many("t", [b"%d" % number for number in range(first, first + 10)])
            positions: dict[tuple[str, int], int] = {}
            found = await scan(consumer, positions, queues_at_once=2)
            assert found == await fetched(consumer)
            assert len(found) == 3
            assert sum(map(len, found.values())) == 900
            assert positions == {queue: held.max_offset for queue, held in (await consumer.offsets("t")).items()}
            assert await scan(consumer, positions) == {queue: [] for queue in found}
            new = [b"new %d" % number for number in range(30)]
            await producer.send_many("t", new)
            assert sorted(body for bodies in (await scan(consumer, positions)).values() for body in bodies) == sorted(new)

    Rig(groups=2).run(scenario)


def test_what_a_filter_leaves_out_is_behind_the_position_all_the_same() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"%d" % number for number in range(60)], tags=["a"] * 30 + ["b"] * 30)
            positions: dict[tuple[str, int], int] = {}
            found = await scan(consumer, positions, tags="a")
            assert sorted(int(body) for bodies in found.values() for body in bodies) == list(range(30))
            assert positions == {queue: held.max_offset for queue, held in (await consumer.offsets("t")).items()}
            assert await scan(consumer, positions, tags="a") == {("g0", 0): [], ("g0", 1): []}

    Rig().run(scenario)


def test_chunks_of_a_scan_are_messages_of_their_queue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with rig.producer() as producer, rig.consumer() as consumer:
            for _ in range(3):
                await producer.send_many("t", [b"%d" % number for number in range(20)], tags=["a", "b"] * 10)
            found: Bodies = {}
            async for chunk in consumer.scan_chunks("t", tags="b", queues_at_once=3):
                messages = consumer.with_tags(chunk, "b")
                assert {message.queue_id for message in messages} <= {chunk.queue_id}
                found.setdefault((chunk.replica_group, chunk.queue_id), []).extend(message.body for message in messages)
            assert set(found) == set(await consumer.offsets("t"))
            assert sorted(body for bodies in found.values() for body in bodies) == sorted(
                b"%d" % number for number in range(1, 20, 2) for _ in range(3)
            )

    Rig().run(scenario)


def test_a_scan_ends_when_its_consumer_is_closed() -> None:
    """docs/reference/semantics, row R10: chunks that were ready by then were given out."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer:
            for number in range(4):
                await producer.send_many("t", [b"x"] * 10, queue_id=number)
        consumer = rig.consumer()
        chunks = consumer.scan_chunks("t", queues_at_once=4)
        await anext(chunks)
        await asyncio.sleep(1)  # until the others are ready
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await anext(chunks)

    Rig().run(scenario)


def test_a_scan_from_a_time_on_begins_with_the_first_message_since() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"old"] * 10)
            await asyncio.sleep(5)
            since_ms = consumer._router.clock.wall_ms()
            positions: dict[tuple[str, int], int] = {}
            assert await scan(consumer, positions, since_ms=since_ms) == {("g0", 0): [], ("g0", 1): []}
            await producer.send_many("t", [b"new"] * 10)
            for how in ({"since_ms": since_ms}, {"positions": positions}):
                assert [body for bodies in (await scan(consumer, **how)).values() for body in bodies] == [b"new"] * 10

    Rig().run(scenario)


def test_without_the_body_none_is_sent() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [bytes(1000)] * 20, keys=[str(number) for number in range(20)])
            (table,) = [each async for each in consumer.scan_arrow("t", columns=["keys", "body_size"])]
            assert table["keys"].to_pylist() == [str(number) for number in range(20)]
            assert table["body_size"].to_pylist() == [1000] * 20

    Rig().run(scenario)


def test_a_scan_goes_on_at_another_replica_when_one_dies() -> None:
    """docs/reference/semantics, row R11."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with rig.producer() as producer, rig.consumer(read_from="any") as consumer:
            for first in range(0, 6000, 100):
                await producer.send_many("t", [b"%05d" % number + bytes(100) for number in range(first, first + 100)])
            expected = {queue: held.max_offset for queue, held in (await consumer.offsets("t")).items()}
            seen: dict[int, list[int]] = {}
            killed = ""
            async for table in consumer.scan_arrow("t", columns=["queue_offset", "queue_id", "replica"]):
                seen.setdefault(table["queue_id"][0].as_py(), []).extend(table["queue_offset"].to_pylist())
                if not killed:
                    killed = table["replica"][0].as_py()
                    rig.cluster.kill(killed)
            assert seen == {queue_id: list(range(end)) for (_, queue_id), end in expected.items()}

    Rig().run(scenario)


def test_a_scan_reads_nothing_of_a_topic_that_was_made_again_nor_what_came_later() -> None:
    """docs/reference/semantics, row R11."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=8)
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            for _ in range(8):
                await producer.send_many("t", [b"old"] * 50)
            held = await consumer.offsets("t")
            tables = consumer.scan_arrow("t", columns=["body"], queues_at_once=1)
            found = [await anext(tables)]
            await producer.send_many("t", [b"late"] * 50)
            found += [table async for table in tables]
            assert sum(table.num_rows for table in found) == sum(each.max_offset for each in held.values())

            tables = consumer.scan_arrow("t", columns=["body"], queues_at_once=1)
            found = [await anext(tables)]
            await admin.delete_topic("t")
            await rig.topic(queues=8)
            await producer.send_many("t", [b"new"] * 400)
            with pytest.raises(TopicNotFoundError):
                found += [table async for table in tables]
            assert {body for table in found for body in table["body"].to_pylist()} <= {b"old", b"late"}

    Rig().run(scenario)


def test_a_position_that_expired_is_an_error_and_without_one_what_is_left_is_read() -> None:
    """docs/reference/semantics, row R11."""

    async def scenario(rig: Rig) -> None:
        await fill(rig)
        least = [await expire(rig, node_id, 3) for node_id in rig.cluster.hosts]
        async with rig.consumer() as consumer:
            with pytest.raises(OffsetOutOfRangeError) as caught:
                [_ async for _ in consumer.scan_arrow("t", positions={("g0", 0): 0})]
            assert caught.value.min_offset == min(least) > 0
            found = [table["queue_offset"].to_pylist() async for table in consumer.scan_arrow("t")]
            assert [offset for offsets in found for offset in offsets] == list(range(bounds(rig, rig.master)[0], COUNT))

    Rig().run(scenario)


def test_positions_that_no_queue_has_are_typed_errors() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"x"] * 5)
            with pytest.raises(OffsetOutOfRangeError, match="t/0 in g0: position 6 is behind the end, 5") as raised:
                await scan(consumer, {("g0", 0): 6})
            assert (raised.value.min_offset, raised.value.max_offset) == (0, 5)
            with pytest.raises(InvalidArgumentError, match=r"\('g0', 7\) is no queue of t"):
                await scan(consumer, {("g0", 7): 0})
            with pytest.raises(InvalidArgumentError, match="queues_at_once 0: expected 1 to 64"):
                await scan(consumer, queues_at_once=0)
            with pytest.raises(InvalidArgumentError, match="expected a list of"):
                [_ async for _ in consumer.scan_arrow("t", columns=["nobody"])]
            with pytest.raises(TopicNotFoundError):
                [_ async for _ in consumer.scan_arrow("u")]

    Rig().run(scenario)


class Reads:
    """Readers of parts whose chunks are counted as they are made."""

    def __init__(self, chunks: int, fails_at: int = -1) -> None:
        self.made = self.open = 0
        self._chunks, self._fails_at = chunks, fails_at

    async def __call__(self, part: Span) -> AsyncGenerator[Chunk]:
        self.open += 1
        try:
            for number in range(self._chunks):
                if number == self._fails_at:
                    raise DledgerError(f"queue {part.queue_id} failed")
                self.made += 1
                yield Chunk("t", "g0", part.queue_id, "n0", np.zeros(0, np.int64), np.zeros(0, np.int64), b"", number + 1, self._chunks)
        finally:
            self.open -= 1


def scan_of(reads: Reads, *, queues: int = 8, chunks: int, at_once: int) -> TopicScan:
    return TopicScan("t", [Span("g0", number, 0, chunks, "") for number in range(queues)], reads, at_once)


def test_readers_wait_for_a_caller_that_takes_its_time() -> None:
    async def scenario(_rig: Rig) -> None:
        reads = Reads(100)
        async with aclosing(scan_of(reads, chunks=100, at_once=3).chunks()) as chunks:
            taken = 0
            async for _ in chunks:
                taken += 1
                await asyncio.sleep(1)
                assert reads.made <= taken + 2 * 3
                if taken == 20:
                    break
            assert reads.open == 3
        assert reads.open == 0

    Rig().run(scenario)


def test_the_error_of_one_queue_ends_the_scan_and_its_other_readers() -> None:
    async def scenario(_rig: Rig) -> None:
        reads = Reads(100, fails_at=50)
        with pytest.raises(DledgerError, match=r"queue \d failed"):
            [_ async for _ in scan_of(reads, chunks=100, at_once=4).chunks()]
        assert 50 <= reads.made <= 4 * 51
        await until(lambda: reads.open == 0)

    Rig().run(scenario)


def test_fewer_queues_than_readers_and_none_at_all() -> None:
    async def scenario(_rig: Rig) -> None:
        assert len([each async for each in scan_of(Reads(3), queues=2, chunks=3, at_once=64).chunks()]) == 6
        assert [each async for each in scan_of(Reads(3), queues=0, chunks=3, at_once=4).chunks()] == []

    Rig().run(scenario)
