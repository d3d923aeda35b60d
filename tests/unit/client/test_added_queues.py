"""Queues that a topic gets while a pull consumer reads it, in its replica group and in another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dledger_cli.queue_readers import Place, QueueReaders
from dledger_client.aio import Message, PullConsumer
from dledger_client.fetch.records import QueueOffsets
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_consuming_over_groups import grow, send_to
from tests.unit.client.test_topics_over_groups import kill_group, start_group


async def read_all(consumer: PullConsumer, positions: dict[Place, int]) -> list[bytes]:
    """One turn of a user's loop."""
    bodies = []
    for (group, queue_id), offset in positions.items():
        found = await consumer.fetch("t", queue_id, offset, replica_group=group)
        positions[group, queue_id] = offset + len(found)
        bodies += [message.body for message in found]
    return bodies


@pytest.mark.parametrize("told_s", [0, 10])
def test_a_pull_consumer_is_given_the_queues_that_its_topic_gets(told_s: int) -> None:
    """docs/reference/semantics, row G5; ``told_s``: later a name server tells of changes."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1, replica_group="g0")
        async with rig.consumer() as consumer, rig.admin() as admin:
            positions = {place: held.min_offset for place, held in (await consumer.offsets("t")).items()}
            sent = await send_to(rig, "g0", 3)
            seen = await read_all(consumer, positions)
            await asyncio.sleep(told_s)
            assert await consumer.new_queues("t", positions) == {}
            await admin.update_topic("t", queues=2)
            found = await consumer.new_queues("t", positions, wait_ms=10_000)
            assert list(found) == [("g0", 1)]
            positions |= {place: held.min_offset for place, held in found.items()}
            await grow(rig)
            sent += await send_to(rig, "g1", 4)
            found = await consumer.new_queues("t", positions, wait_ms=10_000)
            assert {group for group, _ in found} == {"g1"}
            positions |= {place: held.min_offset for place, held in found.items()}
            seen += await read_all(consumer, positions)
            assert sorted(seen) == sorted(sent)
            assert await consumer.new_queues("t", positions, wait_ms=3_000) == {}
            with pytest.raises(InvalidArgumentError, match="queue 0 is in replica groups g0, g1; expected replica_group=one"):
                await consumer.fetch("t", 0, 0)
            with pytest.raises(TopicNotFoundError):
                await consumer.new_queues("nowhere", ())

    Rig(groups=2).run(scenario)


def test_a_replica_group_that_does_not_answer_holds_no_pull_loop_up() -> None:
    """docs/reference/semantics, row G8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        old = await send_to(rig, "g1", 3)
        async with rig.consumer() as consumer:
            known = {("g0", 0)}
            kill_group(rig, "g1")
            clock = consumer._router.clock
            for limit_ms in (1_000, 10, 10):
                began_ms = clock.monotonic_ms()
                assert await consumer.new_queues("t", known) == {}
                assert clock.monotonic_ms() - began_ms <= limit_ms
            await start_group(rig, "g1")
            found = await consumer.new_queues("t", known, wait_ms=20_000)
            assert list(found) == [("g1", 0)]
            assert found["g1", 0].max_offset == len(old)

    Rig(groups=2).run(scenario)


async def begin(found: Mapping[Place, QueueOffsets]) -> Mapping[Place, int]:
    return {place: held.min_offset for place, held in found.items()}


def test_what_reads_all_queues_follows_a_topic_that_moves_to_another_replica_group() -> None:
    """What ``dledger consume`` does: added queues are read, queues that were taken away are left."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2, replica_group="g0")
        seen: list[bytes] = []
        async with rig.consumer() as consumer, rig.admin() as admin:
            readers = QueueReaders(consumer, "t", tags="*", sql="", wait_ms=500)
            readers.read(await begin(await consumer.offsets("t")))
            readers.follow(begin)

            async def follow() -> None:
                while True:
                    seen.extend(message.body for message in (await readers.next()).messages)

            following = asyncio.get_running_loop().create_task(follow(), name="follow")
            sent = await send_to(rig, "g0", 5)
            await grow(rig)
            sent += await send_to(rig, "g1", 5)
            await until(lambda: sorted(seen) == sorted(sent))
            await admin.update_topic("t", perm=4, replica_group="g0")
            ends = {place: held.max_offset for place, held in (await consumer.offsets("t")).items() if place[0] == "g0"}
            await consumer.commit({("t", queue_id): end for (_, queue_id), end in ends.items()}, replica_group="g0")
            await admin.update_topic("t", replica_groups=["g1"])
            await until(lambda: {group for group, _ in readers.queues} == {"g1"})
            sent += await send_to(rig, "g1", 5, 100)
            await until(lambda: sorted(seen) == sorted(sent))
            assert not following.done()
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError, match="topic t does not exist"):
                await following
            await readers.close()

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("read_from", ["leader", "follower"])
@pytest.mark.parametrize("count", [10, 60])
def test_what_reads_all_queues_reads_a_topic_made_anew_from_its_start(group: str, read_from: str, count: int) -> None:
    """docs/reference/semantics, row G9; ``count``: it ends in front of what was read, or behind it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        sent = await send_to(rig, "g0", 50)
        seen: list[bytes] = []
        async with rig.consumer(group, read_from=read_from) as consumer, rig.admin() as admin:
            readers = QueueReaders(consumer, "t", tags="*", sql="", wait_ms=500)
            readers.read(await begin(await consumer.offsets("t")))
            readers.follow(begin)
            while len(seen) < 50:
                seen.extend(message.body for message in (await readers.next()).messages)
            await until(readers._answers.full)  # nobody takes them, so nothing is fetched until the topic is there again
            await admin.delete_topic("t")
            await rig.topic()
            sent += await send_to(rig, "g0", count, 100)
            while len(seen) < len(sent):
                seen.extend(message.body for message in (await readers.next()).messages)
            assert seen == sent
            await readers.close()

    Rig().run(scenario)


async def _all(readers: QueueReaders) -> None:
    while True:
        await readers.next()


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_reads_all_queues_ends_with_its_topic(seed: int) -> None:
    """Also when a node that lags still tells of the topic: nobody was left who would notice."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer() as consumer, rig.admin() as admin:
            readers = QueueReaders(consumer, "t", tags="*", sql="", wait_ms=500)
            readers.read(await begin(await consumer.offsets("t")))
            readers.follow(begin)
            assert (await readers.next()).at_end
            lagging = rig.cluster.hosts[rig.followers[0]]
            for other in rig.cluster.hosts.values():
                if other is not lagging:
                    rig.cluster.net.cut(other.ip, lagging.ip)
                    rig.cluster.net.cut(lagging.ip, other.ip)
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await _all(readers)
            await readers.close()

    Rig(seed).run(scenario)


@pytest.mark.parametrize("how", [{"tags": "none", "sql": ""}, {"tags": "*", "sql": "amount > 10"}])
def test_a_filter_that_leaves_everything_out_is_answered_while_other_messages_come(how: dict[str, str]) -> None:
    """``dledger consume`` notices then that it is idle, or that nobody reads its output."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        await send_to(rig, "g0", 5)

        async def send_on() -> None:
            async with rig.producer() as producer:
                while True:
                    await producer.send(Message("t", b"other", tags="some"))
                    await asyncio.sleep(0.05)

        sending = asyncio.get_running_loop().create_task(send_on(), name="send on")
        async with rig.consumer() as consumer:
            readers = QueueReaders(consumer, "t", wait_ms=500, **how)
            readers.read(await begin(await consumer.offsets("t")))
            answers = [await asyncio.wait_for(readers.next(), 5) for _ in range(3)]
            assert all(answer.messages == [] and answer.at_end for answer in answers)
            await readers.close()
        sending.cancel()
        await asyncio.wait([sending])

    Rig().run(scenario)
