"""Messages sent back, against real nodes in virtual time: each attempt once, with all the message had, across every death of a master."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from dledger_client.admin.send_back import DEAD_LETTER, SendBackResult, SentBack, ask_to_take_back, send_back_request
from dledger_client.aio import Message, ReceivedMessage
from dledger_client.cluster.router import Router
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import BusyError, InvalidArgumentError, OffsetOutOfRangeError, TopicNotFoundError, TopicPermissionError
from store.state.offset_runs import OffsetRuns
from store.store import MessageStore
from tests.sim.cluster import SMALL_LOG
from tests.unit.client.sim_rig import Rig, until

GROUP = "g"
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


async def back(rig: Rig, offsets: list[int], topic: str = "t", *, level: int = 0, most: int = 0) -> list[SendBackResult]:
    async with rig.consumer(group=GROUP) as consumer:
        return await consumer.send_back(topic, 0, offsets, delay_level=level, max_reconsume_times=most)


async def take_back(router: Router, rig: Rig, offsets: list[int], topic: str, level: int, most: int, wait_ms: int) -> list[SendBackResult]:
    deadline_ms = router.clock.monotonic_ms() + wait_ms
    return await ask_to_take_back(router, send_back_request(GROUP, topic, 0, offsets, level, most), "g0", deadline_ms)


def stores(rig: Rig) -> list[MessageStore]:
    return [host.node.store for host in rig.cluster.running() if host.node is not None]


def outcomes(results: list[SendBackResult]) -> list[SentBack]:
    return [result.outcome for result in results]


async def send(rig: Rig, count: int) -> list[str]:
    async with rig.producer() as producer:
        sent = [await producer.send(Message("t", b"%d" % number, tags="a", keys=f"k{number}"), queue_id=0) for number in range(count)]
    return [result.msg_id for result in sent]


def test_what_was_read_before_the_topic_was_made_anew_sends_nothing_of_the_new_one_back() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 1)
        async with rig.admin() as admin, rig.consumer(group=GROUP) as consumer:
            (row,) = await admin.describe_topic("t")
            request = retry_pb2.SendBackRequest(group=GROUP, topic="t", offsets=[0], incarnation=row.topic_epoch)
            take_it = partial(ask_to_take_back, consumer._router, request, "g0", 10_000_000)
            assert outcomes(await take_it()) == [SentBack.RETRY]
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await take_it()
            await rig.topic()
            await send(rig, 1)
            with pytest.raises(TopicNotFoundError, match="recreated"):
                await take_it()

    Rig().run(scenario)


def test_a_message_sent_back_comes_again_later_with_all_it_had() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        ids = await send(rig, 2)
        async with rig.consumer() as consumer:
            (original,) = await consumer.fetch("t", 0, 1, 1)
            start = rig.cluster.loop.now_s
            assert await back(rig, [1]) == [SendBackResult(1, SentBack.RETRY, 1)]
            (again,) = await consumer.fetch(RETRY, 0, 0, wait_ms=20_000)
            assert 10.0 <= rig.cluster.loop.now_s - start < 10.5  # level 3 for the first
            assert (again.body, again.tags, again.keys, again.msg_id) == (b"1", "a", "k1", ids[1])
            assert (again.reconsume_times, again.born_timestamp) == (1, original.born_timestamp)
            assert again.properties["RETRY_TOPIC"] == "t"
            assert again.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id
            assert await back(rig, [0], RETRY) == [SendBackResult(0, SentBack.RETRY, 2)]
            assert await consumer.fetch(RETRY, 0, 1, wait_ms=29_000) == []  # level 4 for the second
            (third,) = await consumer.fetch(RETRY, 0, 1, wait_ms=2_000)
            assert (third.reconsume_times, third.properties["RETRY_TOPIC"]) == (2, "t")
            assert third.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id

    Rig().run(scenario)


def test_after_the_last_attempt_it_is_a_dead_letter_that_nobody_may_read_yet() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 3)
        async with rig.consumer() as consumer, rig.admin() as admin:
            assert await back(rig, [0], level=1, most=1) == [SendBackResult(0, SentBack.RETRY, 1)]
            assert len(await consumer.fetch(RETRY, 0, 0, wait_ms=5_000)) == 1
            assert await back(rig, [0], RETRY, most=1) == [SendBackResult(0, SentBack.DEAD, 2)]
            assert outcomes(await back(rig, [1], level=DEAD_LETTER)) == [SentBack.DEAD]
            with pytest.raises(TopicPermissionError):
                await consumer.fetch(DEAD, 0, 0)
            await admin.update_topic(DEAD, perm=6)
            found = await consumer.fetch(DEAD, 0, 0)
            assert [(each.body, each.properties["DLQ_ORIGIN_TOPIC"]) for each in found] == [(b"0", "t"), (b"1", "t")]

    Rig().run(scenario)


def test_repeated_and_late_calls_store_nothing() -> None:
    """docs/reference/semantics, row B2."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 6)
        assert outcomes(await back(rig, [1, 2, 1], level=1)) == [SentBack.RETRY] * 3
        assert outcomes(await back(rig, [2, 3, 1], level=1)) == [SentBack.DUPLICATE, SentBack.RETRY, SentBack.DUPLICATE]
        both = await asyncio.gather(*(back(rig, [4], level=1) for _ in range(5)))
        assert Counter(outcomes([each for results in both for each in results])) == {SentBack.RETRY: 1, SentBack.DUPLICATE: 4}
        async with rig.consumer(group=GROUP) as consumer:
            await consumer.commit({("t", 0): 5})
            assert outcomes(await back(rig, [0, 1, 5], level=1)) == [SentBack.BEHIND, SentBack.DUPLICATE, SentBack.RETRY]
            assert outcomes(await back(rig, [1, 5])) == [SentBack.BEHIND, SentBack.DUPLICATE]  # what lies behind is forgotten
            await asyncio.sleep(3)
            assert sorted(each.body for each in await consumer.fetch(RETRY, 0, 0)) == [b"1", b"2", b"3", b"4", b"5"]
            await consumer.commit({("t", 0): 1}, reset=True)
            assert outcomes(await back(rig, [1, 0], level=1)) == [SentBack.RETRY, SentBack.BEHIND]
        with pytest.raises(OffsetOutOfRangeError):
            await back(rig, [6])
        with pytest.raises(InvalidArgumentError):
            await back(rig, [])
        with pytest.raises(InvalidArgumentError):
            await back(rig, [0], level=19)

    Rig().run(scenario)


def test_as_many_runs_may_be_sent_back_again_once_they_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on what lies beyond the committed offset; runs behind it stay until the next mark is applied."""
    monkeypatch.setattr("broker.groups.send_back.MAX_RUNS", 3)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 8)
        router = rig.router()
        assert outcomes(await back(rig, [0, 2, 4], level=1)) == [SentBack.RETRY] * 3
        with pytest.raises(BusyError, match="has sent back 3 runs of t/0 beyond its committed offset 0; expected a commit first"):
            await take_back(router, rig, [6], "t", 1, 0, 1_000)
        assert outcomes(await take_back(router, rig, [0, 4], "t", 1, 0, 1_000)) == [SentBack.DUPLICATE] * 2, "an answer was lost"
        async with rig.consumer(group=GROUP) as consumer:
            await consumer.commit({("t", 0): 1})
            assert outcomes(await take_back(router, rig, [4, 6], "t", 1, 0, 1_000)) == [SentBack.DUPLICATE, SentBack.RETRY]
            with pytest.raises(BusyError, match="beyond its committed offset 1"):
                await take_back(router, rig, [1], "t", 1, 0, 1_000)
            await consumer.commit({("t", 0): 7})
            assert outcomes(await take_back(router, rig, [6, 7], "t", 1, 0, 1_000)) == [SentBack.DUPLICATE, SentBack.RETRY]
        await router.close()

    Rig().run(scenario)


@pytest.mark.parametrize("committed", [True, False], ids=["with a position elsewhere", "without any position"])
def test_a_deleted_group_has_sent_back_nothing(committed: bool) -> None:
    """docs/reference/semantics, row B2: also in a queue of which it has committed nothing, on every replica."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, 3)
        assert outcomes(await back(rig, [1], level=1)) == [SentBack.RETRY]
        async with rig.admin() as admin, rig.consumer(group=GROUP) as consumer:
            if committed:
                await consumer.commit({("t", 1): 0})
            await admin.delete_group(GROUP)
            await admin.delete_topic(RETRY)
            await until(lambda: all(store.topics.get(RETRY) is None for store in stores(rig)))
            for store in stores(rig):
                assert (store.send_backs.queues_of(GROUP), store.consumer_offsets.groups()) == ([], [])
            with pytest.raises(InvalidArgumentError, match="has no settings and no positions"):
                await admin.delete_group(GROUP)
            assert outcomes(await back(rig, [1], level=1)) == [SentBack.RETRY]
            assert [each.body for each in await consumer.fetch(RETRY, 0, 0, wait_ms=5_000)] == [b"1"]

    Rig().run(scenario)


COUNT = 24


async def send_all_back(rig: Rig, topic: str, first: int, *, level: int) -> set[SentBack]:
    """Every message in small calls; whoever hears nothing asks again, as often as it takes."""
    found: set[SentBack] = set()
    router = rig.router()
    for number in range(first, first + COUNT, 3):
        results = await take_back(router, rig, list(range(number, number + 3)), topic, level, 2, 60_000)
        found |= set(outcomes(results))
        await asyncio.sleep(0.02)
    await router.close()
    return found


async def kill_masters(rig: Rig) -> None:
    for _ in range(3):
        await asyncio.sleep(rig.cluster.random.random() * 0.4)
        await until(lambda: rig.cluster.master() is not None)
        victim = rig.master
        rig.cluster.kill(victim)
        await asyncio.sleep(0.3)
        rig.cluster.start(victim)


async def times_consumed(rig: Rig, topic: str, first: int) -> set[int]:
    """Reads every message once and no more; returns their counts of attempts."""
    async with rig.consumer() as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < COUNT:
            found += await consumer.fetch(topic, 0, first + len(found), 100, wait_ms=10_000)
        assert await consumer.fetch(topic, 0, first + COUNT, wait_ms=3_000) == []
    assert sorted(message.body for message in found) == sorted(b"%d" % number for number in range(COUNT))
    return {message.reconsume_times for message in found}


@pytest.mark.parametrize("seed", range(8))
def test_each_attempt_is_stored_once_whoever_dies(seed: int) -> None:
    """docs/reference/semantics, row B1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, COUNT)
        found, _ = await asyncio.gather(send_all_back(rig, "t", 0, level=1), kill_masters(rig))
        assert found <= {SentBack.RETRY, SentBack.DUPLICATE}
        assert await times_consumed(rig, RETRY, 0) == {1}
        await asyncio.gather(send_all_back(rig, RETRY, 0, level=1), kill_masters(rig))
        assert await times_consumed(rig, RETRY, COUNT) == {2}
        found, _ = await asyncio.gather(send_all_back(rig, RETRY, COUNT, level=0), kill_masters(rig))
        assert found <= {SentBack.DEAD, SentBack.DUPLICATE}
        async with rig.admin() as admin:
            await admin.update_topic(DEAD, perm=6)
        assert await times_consumed(rig, DEAD, 0) == {3}

    Rig(seed).run(scenario)


def test_runs_are_a_set_of_offsets() -> None:
    runs = OffsetRuns([(5, 7), (9, 10), (7, 9), (1, 2), (20, 30)])
    assert list(runs) == [(1, 2), (5, 10), (20, 30)]
    assert [runs.count_beyond(offset) for offset in (0, 2, 9, 10, 29, 30)] == [3, 2, 2, 1, 1, 0]
    runs.add(2, 25)
    assert list(runs) == [(1, 30)]
    assert 1 in runs
    assert 30 not in runs
    runs.forget_below(12)
    assert list(runs) == [(12, 30)]
    runs.forget_below(30)
    assert list(runs) == []


def test_many_messages_are_sent_back_and_redriven_through_small_segments() -> None:
    """docs/reference/semantics, rows B1 and B3."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.admin() as admin:
            for number in range(80):
                await producer.send(Message("t", b"%d" % number * 1000), queue_id=0)
            assert set(outcomes(await back(rig, list(range(40)), level=1))) == {SentBack.RETRY}
            assert set(outcomes(await back(rig, list(range(40, 80)), level=DEAD_LETTER))) == {SentBack.DEAD}
            (letters,) = await admin.dead_letters(GROUP)
            assert await admin.redrive(letters) == 40

    Rig(log=replace(SMALL_LOG, segment_bytes=64 << 10), store="mappedFileSizeCommitLog: 64KiB, maxMessageSize: 16KiB").run(scenario)
