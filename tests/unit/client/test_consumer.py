"""The pull consumer against real nodes in virtual time: replicas, lag, long polls, chunks across failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.api.read_advice import ReadAdvice
from dledger_client.aio import Message
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError, TopicNotFoundError, UnreachableError
from tests.unit.client.sim_rig import Rig, node_of


async def fill(rig: Rig, count: int, queues: int = 1) -> None:
    await rig.topic(queues=queues)
    async with rig.producer() as producer:
        futures = []
        for number in range(count):
            message = Message("t", b"%d" % number, tags="odd" if number % 2 else "even")
            futures.append(producer.send_async(message, queue_id=0))
        await producer.flush()
        assert all(future.exception() is None for future in futures)


@pytest.mark.parametrize("read_from", ["leader", "follower", "any"])
def test_every_replica_gives_the_same(read_from: str) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 300)
        async with rig.consumer(read_from=read_from) as consumer:
            messages = await consumer.fetch("t", 0, 100, 50)
            assert [message.body for message in messages] == [b"%d" % number for number in range(100, 150)]
            assert [message.queue_offset for message in messages] == list(range(100, 150))
            replicas = {message.replica for message in messages}
            wanted = {"leader": {rig.master}, "follower": set(rig.followers), "any": set(rig.cluster.hosts)}
            assert replicas <= wanted[read_from]

    Rig().run(scenario)


def test_a_pinned_replica_is_the_only_one_asked() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 10)
        follower = rig.followers[0]
        async with rig.consumer(replica=follower, timeout_ms=1500) as consumer:
            assert (await consumer.fetch("t", 0, 0, 1))[0].replica == follower
            rig.cluster.kill(follower)
            with pytest.raises(UnreachableError):
                await consumer.fetch("t", 0, 0, 1)
        async with rig.consumer(replica="n9") as consumer:
            with pytest.raises(InvalidArgumentError, match="no replica 'n9' in replica group g0; expected one of n0, n1, n2"):
                await consumer.fetch("t", 0, 0, 1)

    Rig().run(scenario)


def test_a_lagging_follower_is_gone_around() -> None:
    """docs/reference/semantics, row R2."""

    async def scenario(rig: Rig) -> None:
        await fill(rig, 10)
        for follower in rig.followers:
            rig.cluster.net.cut(rig.cluster.hosts[rig.master].ip, rig.cluster.hosts[follower].ip)
            break
        async with rig.producer() as producer, rig.consumer(read_from="follower") as consumer:
            for number in range(10, 20):
                await producer.send(Message("t", b"%d" % number))
            for _ in range(6):
                assert [message.body for message in await consumer.fetch("t", 0, 15, 5)] == [b"%d" % number for number in range(15, 20)]

    Rig().run(scenario)


def test_a_reader_far_behind_is_sent_to_a_follower_and_back_when_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row R4."""
    memory_bytes = 200_000  # of which 40 % count
    monkeypatch.setattr("broker.node.ReadAdvice", lambda face, _known: ReadAdvice(face, memory_bytes))

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for number in range(300):
                producer.send_oneway(Message("t", b"%d " % number + bytes(1000)))
            await producer.flush()
        async with rig.consumer() as consumer:
            read_at: list[str] = []
            bodies: list[bytes] = []
            while len(bodies) < 300:
                messages = await consumer.fetch("t", 0, len(bodies), 10)
                bodies += [message.body.partition(b" ")[0] for message in messages]
                read_at.append(messages[0].replica)
            assert bodies == [b"%d" % number for number in range(300)]
            assert read_at[0] == rig.master
            assert read_at[1] in rig.followers
            assert set(read_at[1:20]) == {read_at[1]}
            assert read_at[-1] == rig.master
            await consumer.fetch("t", 0, 0, 10)
            rig.cluster.kill(read_at[1])
            assert len(await consumer.fetch("t", 0, 10, 10)) == 10, "the master serves when the one it advised is gone"

    Rig().run(scenario)


def test_a_reader_far_behind_in_two_replica_groups_is_sent_to_a_follower_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/semantics, row R4: queues of one number in several replica groups are advised apart."""
    monkeypatch.setattr("broker.node.ReadAdvice", lambda face, _known: ReadAdvice(face, 50_000))

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer() as producer:
            for number in range(400):
                producer.send_oneway(Message("t", bytes(1000)), queue_id=(f"g{number % 2}", 0))
            await producer.flush()
        async with rig.consumer() as consumer:
            read_at = {"g0": "", "g1": ""}
            for offset in (0, 10):
                for group in read_at:
                    read_at[group] = (await consumer.fetch("t", 0, offset, 10, replica_group=group))[0].replica
            for group, replica in read_at.items():
                assert replica in rig.followers_of(group)

    Rig(groups=2).run(scenario)


def test_mistakes_are_typed() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 10)
        async with rig.consumer() as consumer:
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await consumer.fetch("t", 0, 11)
            assert (caught.value.min_offset, caught.value.max_offset) == (0, 10)
            assert await consumer.fetch("t", 0, 10) == []
            with pytest.raises(TopicNotFoundError):
                await consumer.fetch("nowhere", 0, 0)
            with pytest.raises(InvalidArgumentError, match="queue 3, expected 0 to 0"):
                await consumer.fetch("t", 3, 0)
            with pytest.raises(InvalidArgumentError):
                await consumer.fetch("t", 0, -1)
            with pytest.raises(InvalidArgumentError, match="a tag is missing"):
                await consumer.fetch("t", 0, 0, tags="|| || ")

    Rig().run(scenario)


def test_tags_are_filtered_and_reading_moves_on() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 100)
        async with rig.consumer(read_from="follower") as consumer:
            messages = await consumer.fetch("t", 0, 0, 1000, tags="odd || purple")
            assert [message.queue_offset for message in messages] == list(range(1, 100, 2))
            chunks = await consumer.fetch_chunks("t", 0, 0, 1000, tags="purple")
            assert chunks[-1].next_offset == 100
            assert sum(chunk.count for chunk in chunks) == 0

    Rig().run(scenario)


def test_a_long_poll_wakes_with_the_message_and_ends_without() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 1)
        loop = rig.cluster.loop
        async with rig.producer() as producer, rig.consumer(read_from="follower") as consumer:
            start = loop.now_s
            assert await consumer.fetch("t", 0, 1, wait_ms=400) == []
            assert 0.4 <= loop.now_s - start < 0.6
            poll = asyncio.ensure_future(consumer.fetch("t", 0, 1, wait_ms=10_000))
            await asyncio.sleep(0.3)
            sent_at = loop.now_s
            await producer.send(Message("t", b"news"))
            assert [message.body for message in await poll] == [b"news"]
            assert loop.now_s - sent_at < 0.2

    Rig().run(scenario)


def test_chunks_go_on_at_another_replica_when_one_dies() -> None:
    """docs/reference/semantics, row R1."""

    async def scenario(rig: Rig) -> None:
        await fill(rig, 3000)
        async with rig.consumer(read_from="follower") as consumer:
            offsets, killed = [], False
            async for chunk in consumer.read_chunks("t", 0, 0, 3000, chunk_bytes=20_000):
                offsets += chunk.offsets.tolist()
                if not killed:
                    killed = True
                    rig.cluster.kill(chunk.replica)
            assert offsets == list(range(3000))

    Rig().run(scenario)


def test_chunks_of_small_messages_have_as_many_as_fit_a_cores_cache() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 12)
        for node_id in rig.cluster.hosts:
            store = node_of(rig, node_id).store
            store.settings = replace(store.settings, chunk_messages=5)
        async with rig.consumer() as consumer:
            chunks = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 12)]
            assert [chunk.offsets.tolist() for chunk in chunks] == [[*range(5)], [*range(5, 10)], [10, 11]]
            assert [message.queue_offset for message in await consumer.fetch("t", 0, 1, 7)] == [*range(1, 8)]

    Rig().run(scenario)


def test_offsets_and_times() -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig, 5, queues=2)
        async with rig.consumer() as consumer:
            held = await consumer.offsets("t")
            assert {key: (value.min_offset, value.max_offset) for key, value in held.items()} == {("g0", 0): (0, 5), ("g0", 1): (0, 0)}
            message = (await consumer.fetch("t", 0, 3, 1))[0]
            found = await consumer.offsets("t", message.store_timestamp)
            assert found["g0", 0].at_time <= 3
            assert (await consumer.offsets("t", message.store_timestamp + 3_600_000))["g0", 0].at_time == 5

    Rig().run(scenario)


def test_a_linearizable_read_on_a_follower_sees_the_newest_write() -> None:
    """docs/reference/semantics, row R2."""

    async def scenario(rig: Rig) -> None:
        await fill(rig, 1)
        async with rig.producer() as producer, rig.consumer(read_from="follower") as consumer:
            for number in range(1, 30):
                result = await producer.send(Message("t", b"%d" % number))
                messages = await consumer.fetch("t", 0, result.queue_offset, linearizable=True)
                assert messages[0].body == b"%d" % number

    Rig().run(scenario)


def test_a_reader_of_one_incarnation_gets_nothing_of_the_next() -> None:
    """docs/reference/semantics, row T2: deleted and made again while it is read."""

    async def scenario(rig: Rig) -> None:
        await fill(rig, 300)
        async with rig.consumer(read_from="follower") as consumer, rig.admin() as admin:
            made = (await consumer.offsets("t"))["g0", 0].topic_epoch
            assert made == (await consumer.topic("t"))[0].topic_epoch
            reading = consumer.read_chunks("t", 0, 0, 300, chunk_bytes=5_000, topic_epoch=made)
            first = await anext(reading)
            assert first.offsets[0] == 0
            await admin.delete_topic("t")
            await fill(rig, 310)
            assert (await consumer.offsets("t"))["g0", 0].topic_epoch != made
            with pytest.raises(TopicNotFoundError, match="of epoch"):
                [chunk async for chunk in reading]
            with pytest.raises(TopicNotFoundError, match="of epoch"):
                await anext(consumer.read_chunks("t", 0, 1000, 1010, topic_epoch=made))

    Rig().run(scenario)
