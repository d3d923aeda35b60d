"""Positions of a pull consumer's group when the topic is deleted and created again: those of the topic before mean nothing in it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest

from broker.api.fetch import FetchService
from broker.groups.group_offsets import GroupOffsetsService
from broker.node import BrokerNode
from dledger.core.types import EntryId
from dledger_client.aio import Message, PullConsumer
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.read_ahead import LEAST_BYTES
from dledger_client.fetch.records import Chunk
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.rpc import methods
from store.commands.consumer_groups import OffsetRow, ResetOffsets
from tests.unit.client.push_rig import numbers, send
from tests.unit.client.sim_rig import Rig, until

GROUP = "g"


async def make_anew(rig: Rig, count: int = 60) -> None:
    """Other messages are in the topic from then on."""
    async with rig.admin() as admin:
        await admin.delete_topic("t")
        await admin.create_topic("t", queues=1)
    await send(rig, count, first=100)


async def drain(consumer: PullConsumer, offset: int) -> list[bytes]:
    """What a user's loop reads, which commits behind each piece."""
    bodies = []
    while found := await consumer.fetch("t", 0, offset, 20):
        bodies += [message.body for message in found]
        offset = found[-1].queue_offset + 1
        await consumer.commit({("t", 0): offset})
    return bodies


def test_what_was_read_of_the_topic_before_is_not_committed() -> None:
    """docs/reference/semantics, row G9.  Neither are those of other topics in the same call held up by it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 50)) == 50
            assert await consumer.fetch("other", 0, 0) == []
            await make_anew(rig)
            with pytest.raises(TopicNotFoundError, match="recreated"):
                await consumer.commit({("t", 0): 50, ("other", 0): 0})
            with pytest.raises(TopicNotFoundError):
                await consumer.send_back("t", 0, [49])
            assert (await consumer.committed("t"), await consumer.committed("other")) == ({}, {("g0", 0): 0})
            assert await drain(consumer, 0) == numbers(60, 100)
            assert await consumer.committed("t") == {("g0", 0): 60}

    Rig().run(scenario)


@pytest.mark.parametrize("read_from", ["leader", "follower"])
@pytest.mark.parametrize("count", [10, 60])
def test_a_consumer_of_a_group_does_not_read_on_in_a_topic_made_anew(read_from: str, count: int) -> None:
    """docs/reference/semantics, row G9; ``count``: the new topic ends in front of what was read, or behind it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP, read_from=read_from) as consumer:
            assert await drain(consumer, 0) == numbers(50)
            await make_anew(rig, count)
            for _ in range(2):  # it does not get through by trying again
                with pytest.raises(TopicNotFoundError):
                    await drain(consumer, 50)
            held = await consumer.offsets("t")
            assert await consumer.committed("t") == {}
            assert await drain(consumer, held["g0", 0].min_offset) == numbers(count, 100)
            assert await consumer.committed("t") == {("g0", 0): count}

    Rig().run(scenario)


@pytest.mark.parametrize("read_from", ["leader", "follower"])
def test_a_committed_position_of_the_topic_before_is_not_begun_at(read_from: str) -> None:
    """docs/reference/semantics, row G9."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as before:
            await before.commit({("t", 0): 50})
        async with rig.consumer(GROUP, read_from=read_from) as consumer:
            committed = await consumer.committed("t")
            assert committed == {("g0", 0): 50}
            await make_anew(rig)
            with pytest.raises(TopicNotFoundError):
                await drain(consumer, committed["g0", 0])
            assert await consumer.committed("t") == {}
            assert await drain(consumer, 0) == numbers(60, 100)

    Rig().run(scenario)


def ends(node: BrokerNode) -> list[int]:
    """Where the queues of the topic end on this replica."""
    return [queue.max_offset for queue in node.store.queues if queue.key[0] == "t"]


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_replica_that_lags_does_not_move_a_group_in_the_topic_made_anew(seed: int) -> None:
    """docs/reference/semantics, row G9.  What it gives is of the topic before."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        lagging = rig.followers[0]
        lags = rig.cluster.hosts[lagging]
        await until(lambda: lags.node is not None and ends(lags.node) == [50])
        for other in rig.cluster.hosts.values():
            if other is not lags:
                rig.cluster.net.cut(other.ip, lags.ip)
                rig.cluster.net.cut(lags.ip, other.ip)
        await make_anew(rig)
        async with rig.consumer(GROUP, replica=lagging) as stale, rig.consumer(GROUP, read_from="follower") as consumer:
            assert len(await stale.fetch("t", 0, 0, 50)) == 50
            with pytest.raises(TopicNotFoundError):
                await stale.commit({("t", 0): 50})
            await consumer.commit({("t", 0): 10})
            for _ in range(4):  # whichever replica's turn it is
                offset = (await consumer.committed("t"))["g0", 0]
                assert [message.body for message in await consumer.fetch("t", 0, offset)] == numbers(32, 110)

    Rig(seed).run(scenario)


def test_what_waits_at_the_start_of_a_topic_goes_on_in_the_one_made_anew() -> None:
    """Nothing is in front of it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer(GROUP) as consumer:
            assert await consumer.fetch("t", 0, 0) == []
            await make_anew(rig)
            await consumer.commit({("t", 0): 0})
            assert await drain(consumer, 0) == numbers(60, 100)

    Rig().run(scenario)


def test_who_reads_for_no_group_reads_what_there_is_at_the_offset() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer("") as consumer:
            (before,) = await consumer.fetch("t", 0, 40, 1)
            await make_anew(rig)
            (after,) = await consumer.fetch("t", 0, 40, 1)
            assert [before.body, after.body] == [*numbers(1, 40), *numbers(1, 140)]
            assert before.topic_epoch != after.topic_epoch
            with pytest.raises(TopicNotFoundError):
                await consumer.fetch("t", 0, 41, topic_epoch=before.topic_epoch)
            assert len(await consumer.fetch("t", 0, 41, 1, topic_epoch=after.topic_epoch)) == 1

    Rig().run(scenario)


def test_a_commit_can_name_the_topic_that_its_positions_are_of() -> None:
    """For who has read on meanwhile."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            before = (await consumer.fetch("t", 0, 0, 50))[-1]
            await make_anew(rig)
            assert len(await consumer.fetch("t", 0, 0)) == 32
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 50}, topic_epoch=before.topic_epoch)
            await consumer.commit({("t", 0): 32})
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 50}, topic_epoch=before.topic_epoch, reset=True)
            assert await consumer.committed("t") == {("g0", 0): 32}

    Rig().run(scenario)


@pytest.mark.parametrize("count", [0, 60])
def test_a_topic_made_anew_while_the_commit_is_on_its_way_takes_no_position_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    checked = GroupOffsetsService._check_ends

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        await send(rig, 50)
        remade: list[DledgerError] = []

        async def and_made_anew(self: GroupOffsetsService, request: broker_pb2.CommitOffsetsRequest) -> None:
            await checked(self, request)
            if not remade:
                remade.append(TopicNotFoundError(""))
                await make_anew(rig, count)

        async with rig.consumer(GROUP) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 50)) == 50
            monkeypatch.setattr(GroupOffsetsService, "_check_ends", and_made_anew)
            with pytest.raises(TopicNotFoundError, match="recreated"):
                await consumer.commit({("t", 0): 50, ("other", 0): 0})
            assert await consumer.committed("t") == {}
            assert await consumer.committed("other") == {("g0", 0): 0}

    Rig().run(scenario)


def test_replicas_of_before_tell_nothing_and_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = FetchService._header

    def untold(self: FetchService, request: broker_pb2.FetchRequest, next_offset: int, *, end: bool) -> broker_pb2.FetchResponse:
        request.incarnation = ""
        return encoded(self, request, next_offset, end=end)

    async def scenario(rig: Rig) -> None:
        monkeypatch.setattr(FetchService, "_header", untold)
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            assert await drain(consumer, 0) == numbers(50)
            await make_anew(rig)
            assert await drain(consumer, 50) == numbers(10, 150)
            assert await consumer.committed("t") == {("g0", 0): 60}

    Rig().run(scenario)


def test_a_long_read_does_not_go_on_in_a_topic_made_anew() -> None:
    """docs/reference/semantics, row T2, also for who names no topic."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer("") as consumer:
            chunks = consumer.read_chunks("t", 0, 0, 50, chunk_bytes=1)
            assert [message.body for message in (await anext(chunks)).messages()] == numbers(1)
            await make_anew(rig)
            with pytest.raises(TopicNotFoundError):
                await anext(chunks)

    Rig().run(scenario)


def test_a_topic_that_is_gone_holds_no_commits_of_others_up() -> None:
    """Nobody names a topic here, as push consumers and clients of before do."""

    async def scenario(rig: Rig) -> None:
        for topic in ("t", "other"):
            await rig.topic(topic)
        await send(rig, 50)
        async with rig.admin() as admin, rig.consumer(GROUP) as consumer:
            await admin.delete_topic("t")
            request = broker_pb2.CommitOffsetsRequest(group=GROUP)
            for topic in ("t", "other"):
                request.offsets.add(topic=topic, queue_id=0, offset=0)
            answer = await consumer._router.call_leader("g0", methods.COMMIT_OFFSETS, request, deadline_ms=10_000_000)
            assert [(each.topic, each.error.code) for each in answer.refused] == [("t", TopicNotFoundError.code)]
            assert await consumer.committed("other") == {("g0", 0): 0}
            del request.offsets[1:]
            with pytest.raises(TopicNotFoundError, match="'t' does not exist"):
                await consumer._router.call_leader("g0", methods.COMMIT_OFFSETS, request, deadline_ms=10_000_000)

    Rig().run(scenario)


def test_a_reset_while_the_commit_is_on_its_way_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of a pull consumer names no generation."""
    made_rows = GroupOffsetsService._rows

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        resets: list[asyncio.Future[EntryId]] = []

        def and_reset(self: GroupOffsetsService, group: str, rows: Iterable[broker_pb2.GroupOffset]) -> tuple[OffsetRow, ...]:
            found = made_rows(self, group, rows)
            if not resets:
                reset = ResetOffsets(group=group, offsets=(OffsetRow("t", 0, 10),))
                resets.append(self._context.raft.propose(self._context.store.command(reset)))
            return found

        async with rig.consumer(GROUP) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 20)) == 20
            monkeypatch.setattr(GroupOffsetsService, "_rows", and_reset)
            await consumer.commit({("t", 0): 20})
            assert (await consumer.committed("t"), len(resets)) == ({("g0", 0): 20}, 1)

    Rig().run(scenario)


def test_what_is_refused_ahead_of_the_caller_does_not_move_its_position_into_the_topic_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know of that, and looks how much there is to read, as a loop does that tells its lag."""
    asked = Fetcher.read

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for _ in range(30):
                await producer.send(Message("t", random.Random(0).randbytes(LEAST_BYTES // 8)))
        refused = asyncio.Event()

        async def and_made_anew(self: Fetcher, group: str, request: broker_pb2.FetchRequest, deadline_ms: int) -> list[Chunk]:
            if request.offset != 20:
                return await asked(self, group, request, deadline_ms)
            await make_anew(rig)
            try:
                return await asked(self, group, request, deadline_ms)
            finally:
                refused.set()

        monkeypatch.setattr(Fetcher, "read", and_made_anew)
        async with rig.consumer(GROUP) as consumer:
            for offset in (0, 10):
                assert len(await consumer.fetch("t", 0, offset, 10)) == 10
            await refused.wait()
            await consumer.offsets("t")
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 20})
            assert await consumer.committed("t") == {}

    Rig().run(scenario)


def test_a_topic_that_is_gone_holds_no_commits_in_other_replica_groups_up() -> None:
    """docs/reference/semantics, row G9."""

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin, rig.consumer(GROUP) as consumer:
            await admin.create_topic("t", queues=1, replica_groups=["g0"])
            await admin.create_topic("other", queues=1, replica_groups=["g1"])
            await send(rig, 50)
            assert len(await consumer.fetch("t", 0, 0, 50)) == 50
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1, replica_groups=["g0"])
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 50, ("other", 0): 0})
            assert await consumer.committed("other") == {("g1", 0): 0}

    Rig(groups=2).run(scenario)


def test_a_refused_topic_lets_positions_in_others_be_of_what_was_read() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("gone")
        await send(rig, 50)
        async with rig.admin() as admin, rig.consumer(GROUP) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 50)) == 50
            assert await consumer.fetch("gone", 0, 0) == []
            await admin.delete_topic("gone")
            with pytest.raises(TopicNotFoundError, match="'gone' does not exist"):
                await consumer.commit({("t", 0): 10, ("gone", 0): 0})
            await make_anew(rig)
            await consumer.offsets("t")
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 50})

    Rig().run(scenario)


def test_who_reads_the_topic_made_anew_from_its_start_has_begun_again() -> None:
    """Looks at its end do not count as one more beginning, in a third topic of that name."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            assert await drain(consumer, 0) == numbers(50)
            await make_anew(rig)
            with pytest.raises(TopicNotFoundError):
                await consumer.fetch("t", 0, 50)
            assert await drain(consumer, 0) == numbers(60, 100)
            await make_anew(rig)
            await consumer.offsets("t")
            with pytest.raises(TopicNotFoundError):
                await consumer.commit({("t", 0): 60})

    Rig().run(scenario)


def test_a_group_without_a_position_in_the_topic_made_anew_begins_where_its_caller_says() -> None:
    """Its positions are those of another consumer, or in a database: ``committed`` has none of the queue to tell an epoch with."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            await consumer.commit({("t", 0): 50})
            assert await consumer.committed("t") == {("g0", 0): 50}
            await make_anew(rig)
            for _ in range(2):
                with pytest.raises(TopicNotFoundError):
                    await consumer.commit({("t", 0): 50})
            assert await consumer.committed("t") == {}
            await consumer.commit({("t", 0): 20})
            assert await consumer.committed("t") == {("g0", 0): 20}

    Rig().run(scenario)


@pytest.mark.parametrize("names", [False, True])
def test_a_message_sent_back_to_the_topic_before_tells_as_well(names: bool) -> None:
    """Whoever asks where to begin after that begins there."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        async with rig.consumer(GROUP) as consumer:
            assert len(await consumer.fetch("t", 0, 0, 50)) == 50
            await make_anew(rig)
            with pytest.raises(TopicNotFoundError):
                await consumer.send_back("t", 0, [49])
            if names:
                end = (await consumer.offsets("t"))["g0", 0].max_offset
            else:
                assert await consumer.committed("t") == {}
                end = 60
            assert await consumer.fetch("t", 0, end) == []

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_fetch_that_has_passed_over_messages_does_not_go_on_in_the_topic_made_anew(seed: int) -> None:
    """Its filter left them out, and it waits for others: a replica that lags learns at once that the topic was made anew."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        lagging = rig.followers[0]
        lags = rig.cluster.hosts[lagging]
        await until(lambda: lags.node is not None and ends(lags.node) == [50])
        async with rig.consumer(GROUP, replica=lagging) as consumer:
            waiting = asyncio.create_task(consumer.fetch("t", 0, 0, 100, wait_ms=9_000, tags="wanted"), name="fetch")
            await asyncio.sleep(1)
            others = [other for other in rig.cluster.hosts.values() if other is not lags]
            for other in others:
                rig.cluster.net.cut(other.ip, lags.ip)
                rig.cluster.net.cut(lags.ip, other.ip)
            await make_anew(rig, 0)
            async with rig.producer() as producer:
                for body in numbers(60):
                    await producer.send(Message("t", body, tags="wanted"))
            rig.cluster.net.heal_all()
            found = await waiting
            assert found
            assert [message.body for message in found] == numbers(len(found))

    Rig(seed).run(scenario)
