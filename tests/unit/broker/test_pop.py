"""Messages leased and acknowledged one by one, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from broker.groups.pop import PopService
from broker.groups.pop_leases import Leases
from dledger_client.aio import Message, QueueLeases
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    NotLeaderError,
    StaleLockError,
    StorageDamagedError,
    TopicNotFoundError,
    TopicPermissionError,
    UnreachableError,
)
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.java_hash import java_hash
from dledger_wire.rpc import envelope, methods
from store.commands.queue_locks import LockQueues
from store.queues.queue_reader import QueueReader
from tests.unit.client.sim_rig import Rig, context_of, until

GROUP = "g"


@dataclass
class Got:
    """A message as a consumer received it."""

    lease: pop_pb2.Lease
    frame: Frame

    @property
    def body(self) -> bytes:
        return self.frame.body

    @property
    def receipt(self) -> pop_pb2.Receipt:
        return pop_pb2.Receipt(queue_id=self.lease.queue_id, offset=self.lease.offset, lease=self.lease.lease)


class Consumer:
    """Calls the service at the master."""

    def __init__(self, rig: Rig, topic: str = "t") -> None:
        self._rig, self._topic = rig, topic
        self._router = rig.router()

    async def call(self, method: Any, request: Any) -> bytes:
        channel = self._router.channel(self._rig.cluster.hosts[self._rig.master].address)
        return await method.call_bytes(channel, request, timeout_s=70)

    async def receive(self, most: int = 10, *, wait_ms: int = 0, invisible_ms: int = 5_000, **more: Any) -> list[Got]:
        given: dict[str, Any] = {
            "group": GROUP,
            "topic": self._topic,
            "max_messages": most,
            "wait_ms": wait_ms,
            "invisible_ms": invisible_ms,
        } | more
        header, payload = envelope.decode(pop_pb2.ReceiveResponse, await self.call(methods.RECEIVE, pop_pb2.ReceiveRequest(**given)))
        data, at, found = bytes(payload), 0, []
        for lease in header.leases:
            found.append(Got(lease, decode_frame(data, at)))
            assert found[-1].frame.queue_offset == lease.offset
            at += lease.size
        assert at == len(data)
        return found

    async def _settle(self, method: Any, request: Any) -> list[str]:
        return [result.error.code for result in method.parse_response(await self.call(method, request)).results]

    async def acknowledge(self, got: Sequence[Got], **more: Any) -> list[str]:
        request = pop_pb2.ReceiptsRequest(group=GROUP, topic=self._topic, receipts=[each.receipt for each in got], **more)
        return await self._settle(methods.ACKNOWLEDGE, request)

    async def change(self, got: Sequence[Got], invisible_ms: int, **more: Any) -> list[str]:
        given: dict[str, Any] = {
            "group": GROUP,
            "topic": self._topic,
            "receipts": [each.receipt for each in got],
            "invisible_ms": invisible_ms,
        } | more
        return await self._settle(methods.CHANGE_INVISIBLE, pop_pb2.ChangeInvisibleRequest(**given))

    async def bury(self, got: Sequence[Got]) -> list[str]:
        request = pop_pb2.ReceiptsRequest(group=GROUP, topic=self._topic, receipts=[each.receipt for each in got])
        return await self._settle(methods.MOVE_TO_DEAD_LETTERS, request)


async def send(rig: Rig, bodies: Sequence[bytes], *, queue_id: int | None = 0, tags: str = "", group: str = "", **properties: str) -> None:
    properties |= {"__SHARDINGKEY": group} if group else {}
    async with rig.producer() as producer:
        for body in bodies:
            await producer.send(Message("t", body, tags=tags, properties=properties), queue_id=queue_id)


def bodies(got: Sequence[Got]) -> list[bytes]:
    return [each.body for each in got]


def test_messages_are_the_consumers_until_their_time_ends_or_they_are_acknowledged() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0", b"1", b"2"])
        one, other = Consumer(rig), Consumer(rig)
        got = await one.receive(2)
        assert (bodies(got), [each.lease.attempt for each in got]) == ([b"0", b"1"], [1, 1])
        rest = await other.receive()
        assert bodies(rest) == [b"2"]
        assert await other.receive() == []
        assert await one.acknowledge([got[1]]) == [""]
        assert await one.acknowledge([got[1], *rest]) == ["STALE_RECEIPT", ""], "any consumer with the receipt"
        start_s = rig.cluster.loop.now_s
        (again,) = await other.receive(wait_ms=20_000)
        assert rig.cluster.loop.now_s - start_s < 5.5
        assert (again.body, again.lease.attempt) == (b"0", 2)
        assert await one.acknowledge(got) == ["STALE_RECEIPT"] * 2
        assert await other.acknowledge([again]) == [""]
        assert await other.receive(wait_ms=6_000) == []
        store = context_of(rig, rig.master).store
        assert store.consumer_offsets.known_position(GROUP, "t", 0) == 3

    Rig().run(scenario)


def test_a_group_is_described_with_what_its_consumers_have() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, [b"%d" % number for number in range(6)])
        async with rig.admin() as admin:

            async def seen() -> tuple[int, int, int, int, str]:
                found = await admin.describe_group(GROUP)
                (progress,) = await admin.group_progress([found])
                assert progress.unread == []
                assert found.leases is not None
                ages.append(found.leases.oldest_ms)
                return found.leases.in_flight, found.leases.again, found.leases.attempts, found.lag, progress.state().text

            ages: list[int] = []
            consumer = Consumer(rig)
            got = await consumer.receive(4, invisible_ms=20_000)
            assert await seen() == (4, 0, 1, 6, "is reading: 4 in flight")
            await consumer.acknowledge(got[1:3])
            await consumer.change(got[3:], 0)
            assert await seen() == (1, 1, 1, 6, "is reading: 1 in flight"), "the lag begins at the oldest that is not done"
            await asyncio.sleep(21)
            assert (await seen())[:4] == (0, 2, 1, 6)
            assert 20_000 <= ages[-1] <= 22_000
            await consumer.acknowledge(await consumer.receive(1))
            assert await seen() == (0, 1, 1, 3, "is reading"), "it has moved"
            await asyncio.sleep(301)
            assert (await seen())[-1] == "no consumer receives messages"
            rest = await consumer.receive()
            assert await seen() == (3, 0, 2, 3, "is reading: 3 in flight")
            assert ages[-1] > 320_000, "it was first delivered that long ago"
            await consumer.acknowledge(rest)
            assert (await seen(), ages[-1]) == ((0, 0, 0, 0, "has read everything"), 0)
            (listed,) = await admin.describe_groups()
            assert {row.queue_id: row.leases for row in listed.queues} == {0: QueueLeases(0, 0, 0, 0), 1: None}

    Rig().run(scenario, limit_s=600)


def test_giving_back_and_keeping_longer() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0", b"1"])
        consumer = Consumer(rig)
        got = await consumer.receive()
        waits = asyncio.create_task(consumer.receive(wait_ms=30_000))
        await asyncio.sleep(0.5)
        assert await consumer.change([got[1]], 0, uncounted=True) == [""]
        (back,) = await waits
        assert (back.body, back.lease.attempt) == (b"1", 1), "at once, and this delivery did not count"
        assert await consumer.change([got[0]], 60_000) == [""]
        assert await consumer.change([back], 10_000) == [""]
        start_s = rig.cluster.loop.now_s
        (again,) = await consumer.receive(wait_ms=30_000)
        assert again.body == b"1"
        assert 9.5 < rig.cluster.loop.now_s - start_s < 10.5
        assert await consumer.acknowledge([got[0], back]) == ["", "STALE_RECEIPT"]

    Rig().run(scenario)


def test_after_its_attempts_a_message_is_a_dead_letter() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0", b"1", b"2"])
        consumer = Consumer(rig)
        for attempt in (1, 2):
            got = await consumer.receive(1, max_attempts=2)
            assert (bodies(got), got[0].lease.attempt) == ([b"0"], attempt)
            await consumer.change(got, 0)
        assert bodies(await consumer.receive(1, max_attempts=2)) == [b"1"]
        (last,) = await consumer.receive(1, max_attempts=2)
        assert await consumer.bury([last]) == [""]
        assert await consumer.bury([last]) == await consumer.acknowledge([last]) == ["STALE_RECEIPT"]
        async with rig.admin() as admin, rig.consumer() as reader:
            await admin.update_topic("%DLQ%g", perm=6)
            dead = await reader.fetch("%DLQ%g", 0, 0)
            assert [(each.body, each.reconsume_times, each.properties["DLQ_ORIGIN_TOPIC"]) for each in dead] == [
                (b"0", 2, "t"),
                (b"2", 1, "t"),
            ]
            assert dead[0].properties["DLQ_ORIGIN_MESSAGE_ID"]

    Rig().run(scenario)


def test_a_group_that_is_set_to_consume_in_order_does() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
            await send(rig, [body], group=key)
        async with rig.admin() as admin:
            assert (await admin.update_group(GROUP, consume_in_order=True)).consume_in_order
        consumer = Consumer(rig)
        first = await consumer.receive()
        assert bodies(first) == [b"a1", b"b1"]
        await consumer.acknowledge(first)
        assert bodies(await consumer.receive()) == [b"a2"]

    Rig().run(scenario)


def test_in_order_a_message_waits_for_those_of_its_message_group_only() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"a3", "a"), (b"b2", "b"), (b"-1", ""), (b"-2", "")):
            await send(rig, [body], group=key)
        consumer = Consumer(rig)
        first = await consumer.receive(fifo=True)
        assert bodies(first) == [b"a1", b"b1", b"-1"]
        assert await consumer.receive(fifo=True) == []
        waits = asyncio.create_task(consumer.receive(fifo=True, wait_ms=30_000, invisible_ms=60_000))
        await asyncio.sleep(0.5)
        await consumer.acknowledge([first[1]])
        assert bodies(await waits) == [b"b2"]
        await consumer.change([first[0]], 0)
        (again,) = await consumer.receive(fifo=True)
        assert (again.body, again.lease.attempt) == (b"a1", 2)
        await consumer.acknowledge([again])
        assert bodies(await consumer.receive(fifo=True)) == [b"a2"]
        assert bodies(await consumer.receive(fifo=True, wait_ms=10_000)) == [b"-1"], "its time ended first"

    Rig().run(scenario)


def test_what_does_not_pass_the_filter_is_done() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for number in range(6):
            await send(rig, [b"%d" % number], tags="ab"[number % 2], number=str(number))
        consumer = Consumer(rig)
        got = await consumer.receive(tag_hashes=[java_hash("b")])
        assert bodies(got) == [b"1", b"3", b"5"]
        await consumer.acknowledge(got)
        await until(lambda: context_of(rig, rig.master).store.consumer_offsets.position(GROUP, "t", 0) == 6)
        await send(rig, [b"%d" % number for number in range(3)], number="7")
        await send(rig, [b"last"], number="8")
        got = await consumer.receive(sql="number > 7")
        assert bodies(got) == [b"last"]
        await consumer.change(got, 0)
        assert await consumer.receive(sql="number > 8") == []
        assert context_of(rig, rig.master).store.consumer_offsets.position(GROUP, "t", 0) == 10
        with pytest.raises(InvalidArgumentError):
            await consumer.receive(sql="number >")

    Rig().run(scenario)


def test_many_queues_many_consumers_and_a_group_that_begins_at_the_end() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await send(rig, [b"before"] * 4, queue_id=None)
        consumers = [Consumer(rig) for _ in range(20)]
        assert await consumers[0].receive(from_end=True) == []
        receiving = [asyncio.create_task(each.receive(3, wait_ms=20_000)) for each in consumers]
        async with rig.producer() as producer:
            for number in range(60):
                await producer.send(Message("t", b"%d" % number), queue_id=number % 4)
        found = [got for each in await asyncio.gather(*receiving) for got in each]
        while more := await consumers[0].receive(100):
            found += more
        assert sorted(int(each.body) for each in found) == list(range(60))
        assert set(await consumers[0].acknowledge(found)) == {""}
        position = context_of(rig, rig.master).store.consumer_offsets.position
        assert sum(position(GROUP, "t", queue_id) for queue_id in range(4)) == 64
        assert bodies(await consumers[0].receive(queue_ids=[2])) == []

    Rig().run(scenario)


def test_bytes_are_bounded_and_what_does_not_fit_comes_next() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"x" * 1_000] * 6)
        consumer = Consumer(rig)
        both = await asyncio.gather(consumer.receive(max_bytes=2_500), consumer.receive(max_bytes=2_500))
        assert [len(each) for each in both] == [2, 2]
        assert len(await consumer.receive(max_bytes=1)) == 1
        assert len(await consumer.receive()) == 1

    Rig().run(scenario)


def test_leases_and_acknowledgements_survive_every_death() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % number for number in range(10)])
        consumer = Consumer(rig)
        got = await consumer.receive(10, invisible_ms=60_000)
        assert await consumer.acknowledge(got[:4]) == [""] * 4
        await rig.restart(rig.master)
        assert await consumer.receive() == [], "the leases hold"
        assert await consumer.acknowledge([got[0], got[4]]) == ["STALE_RECEIPT", ""]
        for host in rig.cluster.running():
            rig.cluster.kill(host.node_id)
        rig.cluster.start_all()
        await until(rig._is_up)
        assert await consumer.receive() == []
        assert await consumer.acknowledge([got[4], got[5]]) == ["STALE_RECEIPT", ""]
        await asyncio.sleep(60)
        assert bodies(await consumer.receive()) == [b"6", b"7", b"8", b"9"]

    Rig().run(scenario)


def test_a_request_that_waits_ends_when_its_node_is_not_the_master_any_more() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = Consumer(rig)
        waits = asyncio.create_task(consumer.receive(wait_ms=60_000))
        await asyncio.sleep(1)
        async with rig.admin() as admin:
            await admin.transfer_leader(rig.followers[0])
        with pytest.raises((NotLeaderError, UnreachableError)):
            await asyncio.wait_for(waits, 10)

    Rig().run(scenario)


def test_a_queue_that_a_session_locked_gives_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await send(rig, [b"0"], queue_id=0)
        await send(rig, [b"1"], queue_id=1)
        consumer = Consumer(rig)
        assert bodies(await consumer.receive(queue_ids=[0])) == [b"0"]
        context = context_of(rig, rig.master)
        await context.command(LockQueues(group=GROUP, owner="s", client="c", queues=(("t", 0),)), 5)
        assert bodies(await consumer.receive()) == [b"1"]
        with pytest.raises(StaleLockError, match="locked every queue of t"):
            await consumer.receive(queue_ids=[0])

    Rig().run(scenario)


def test_a_reset_begins_again_and_a_topic_made_again_takes_no_receipts() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0", b"1"])
        consumer = Consumer(rig)
        got = await consumer.receive()
        await consumer.acknowledge(got)
        async with rig.consumer(group=GROUP) as puller:
            await puller.commit({("t", 0): 0}, reset=True)
        again = await consumer.receive()
        assert bodies(again) == [b"0", b"1"]
        async with rig.admin() as admin:
            (row,) = await admin.describe_topic("t")
            await admin.delete_topic("t")
            await rig.topic()
            await send(rig, [b"new"])
            with pytest.raises(TopicNotFoundError, match="recreated"):
                await consumer.acknowledge(again, incarnation=row.topic_epoch)
        assert await consumer.acknowledge(again) == ["STALE_RECEIPT"] * 2
        assert bodies(await consumer.receive()) == [b"new"]

    Rig().run(scenario)


def test_a_message_that_cannot_be_read_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    read = QueueReader.read

    async def failing(self: QueueReader, topic: str, queue_id: int, offset: int, **limits: Any) -> Any:
        if topic == "t" and offset <= 2 < offset + limits["max_messages"] and rig.cluster.loop.now_s < heals_s[0]:
            raise StorageDamagedError("no frame", queue_offset="2")
        return await read(self, topic, queue_id, offset, **limits)

    monkeypatch.setattr(QueueReader, "read", failing)
    heals_s = [1e9]
    rig = Rig()

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % number for number in range(5)])
        consumer = Consumer(rig)
        found: list[Got] = []
        while got := await consumer.receive():
            found += got
        assert bodies(found) == [b"0", b"1", b"3", b"4"]
        await consumer.acknowledge(found)
        assert context_of(rig, rig.master).store.consumer_offsets.position(GROUP, "t", 0) == 2
        heals_s[0] = 0
        assert bodies(await consumer.receive(wait_ms=60_000)) == [b"2"]

    rig.run(scenario)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"most": 0}, InvalidArgumentError),
        ({"most": 1025}, InvalidArgumentError),
        ({"invisible_ms": 999}, InvalidArgumentError),
        ({"invisible_ms": 12 * 3_600_000 + 1}, InvalidArgumentError),
        ({"queue_ids": [1]}, InvalidArgumentError),
        ({"group": "no group"}, DledgerError),
        ({"tag_hashes": [1] * 1025}, InvalidArgumentError),
        ({"topic": "other"}, TopicNotFoundError),
        ({"group": "off"}, TopicPermissionError),
    ],
)
def test_wrong_requests_are_refused(wrong: dict[str, Any], error: type[DledgerError]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.admin() as admin:
            await admin.update_group("off", consume_enable=False)
        consumer = Consumer(rig)
        with pytest.raises(error):
            await consumer.receive(**wrong)
        with pytest.raises(InvalidArgumentError):
            await consumer.acknowledge([])

    Rig().run(scenario)


def test_receipts_out_of_this_world_are_stale() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"0"])
        consumer = Consumer(rig)
        await consumer.receive()
        largest = (1 << 64) - 1
        strange = [(0, 0, 0), (0, largest, 1), (7, 0, largest), ((1 << 32) - 1, 5, 5), (0, 0, 1)]
        receipts = [pop_pb2.Receipt(queue_id=queue_id, offset=offset, lease=lease) for queue_id, offset, lease in strange]
        for method, kind in (
            (methods.ACKNOWLEDGE, pop_pb2.ReceiptsRequest),
            (methods.CHANGE_INVISIBLE, pop_pb2.ChangeInvisibleRequest),
            (methods.MOVE_TO_DEAD_LETTERS, pop_pb2.ReceiptsRequest),
        ):
            assert await consumer._settle(method, kind(group=GROUP, topic="t", receipts=receipts)) == ["STALE_RECEIPT"] * 5

    Rig().run(scenario)


def test_requests_at_the_same_time_share_commands() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, [b"%d" % number for number in range(200)])
        consumer = Consumer(rig)
        await consumer.receive(1)
        store = context_of(rig, rig.master).store
        before = store.applied_index
        got = [each for part in await asyncio.gather(*(consumer.receive(1) for _ in range(100))) for each in part]
        assert len({each.body for each in got}) == 100
        results = await asyncio.gather(*(consumer.acknowledge([each]) for each in got))
        assert results == [[""]] * 100
        assert store.applied_index - before < 20

    Rig().run(scenario)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The group of each look of a request at its queues, as they are made."""
    made: list[str] = []
    look = PopService._round

    async def counted(self: PopService, request: pop_pb2.ReceiveRequest, *more: Any) -> Any:
        made.append(request.group)
        return await look(self, request, *more)

    monkeypatch.setattr(PopService, "_round", counted)
    return made


def waiting(consumer: Consumer, count: int, wait_ms: int = 30_000, **more: Any) -> list[asyncio.Task[list[Got]]]:
    return [asyncio.create_task(consumer.receive(1, wait_ms=wait_ms, **more)) for _ in range(count)]


async def next_of(tasks: list[asyncio.Task[list[Got]]]) -> list[bytes]:
    """The bodies that the next one got; it is no longer among the tasks."""
    (ended, *_), _ = await asyncio.wait(tasks, timeout=6, return_when=asyncio.FIRST_COMPLETED)
    tasks.remove(ended)
    return bodies(ended.result())


def test_a_message_wakes_as_many_of_the_requests_that_wait_as_it_needs(rounds: list[str]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = Consumer(rig)
        tasks = waiting(consumer, 100) + waiting(consumer, 100, group="other")
        await until(lambda: len(rounds) == 200)
        for number in range(20):
            await send(rig, [b"%d" % number])
            await until(lambda number=number: sum(task.done() for task in tasks) == 2 * number + 2)
        assert len(rounds) < 300
        assert sorted(bodies([got for task in tasks if task.done() for got in task.result()])) == sorted([b"%d" % n for n in range(20)] * 2)
        for task in tasks:
            task.cancel()

    Rig().run(scenario)


def test_many_messages_wake_all_that_wait_and_they_share_commands() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = Consumer(rig)
        await consumer.receive(1)
        tasks = waiting(consumer, 100)
        await asyncio.sleep(1)
        store = context_of(rig, rig.master).store
        async with rig.producer() as producer:
            await producer.send_batch([Message("t", b"%d" % number) for number in range(100)], queue_id=0)
        before = store.applied_index
        got = [each for part in await asyncio.gather(*tasks) for each in part]
        assert len({each.body for each in got}) == 100
        assert store.applied_index - before < 10

    Rig().run(scenario)


def test_those_behind_one_that_gave_up_get_what_comes_and_what_is_due() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        consumer = Consumer(rig)
        given_up = waiting(consumer, 2, wait_ms=500)
        await asyncio.sleep(0.1)
        tasks = waiting(consumer, 3)
        assert await asyncio.gather(*given_up) == [[], []]
        await send(rig, [b"0"])
        assert await next_of(tasks) == [b"0"]
        given_at = asyncio.get_running_loop().time()
        assert await next_of(tasks) == [b"0"]  # its invisible time has ended
        assert asyncio.get_running_loop().time() - given_at < 5.1
        await send(rig, [b"1"])
        assert await next_of(tasks) == [b"1"]

    Rig().run(scenario)


def test_one_that_is_slow_does_not_hold_up_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        consumer = Consumer(rig)
        await consumer.receive(1)
        tasks = waiting(consumer, 2)
        await asyncio.sleep(1)
        take, slow = Leases.take, asyncio.Event()

        async def taken(self: Leases, queue: Any, *more: Any) -> Any:
            if queue[2] == 0:
                await slow.wait()
            return await take(self, queue, *more)

        monkeypatch.setattr(Leases, "take", taken)
        await send(rig, [b"0"], queue_id=0)
        await send(rig, [b"1"], queue_id=1)
        assert await next_of(tasks) == [b"1"]
        slow.set()
        assert await next_of(tasks) == [b"0"]

    Rig().run(scenario)
