"""One order over several queues: across writers that die, leaders that die and readers that start anywhere."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dledger_client.aio import LogicalQueueReader, LogicalQueueWriter, Message
from dledger_client.fetch.records import NumberedMessage
from dledger_client.runtime.environment import use_environment
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotSentError, ProducerFencedError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig, until


def writer(rig: Rig, **settings: object) -> LogicalQueueWriter:
    with use_environment(**rig.around()):
        return LogicalQueueWriter(rig.cluster.bootstrap, "t", **settings)  # type: ignore[arg-type]


def reader(rig: Rig, group: str = "") -> LogicalQueueReader:
    with use_environment(**rig.around()):
        return LogicalQueueReader(rig.cluster.bootstrap, "t", group)


async def read_all(found: LogicalQueueReader) -> list[NumberedMessage]:
    numbered: list[NumberedMessage] = []
    while more := await found.read(7, wait_ms=300):
        numbered += more
    return numbered


def test_messages_sent_at_once_come_in_the_order_of_their_numbers() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with writer(rig) as one:
            numbers = await asyncio.gather(*[one.send(Message("t", b"%d" % number)) for number in range(50)])
            assert numbers == list(range(50))
        async with writer(rig) as two:
            assert await two.send(Message("t", b"50")) == 50
        async with reader(rig) as found:
            assert [(each.number, each.message.body) for each in await read_all(found)] == [(n, b"%d" % n) for n in range(51)]
            await found.seek(13)
            assert [each.number for each in await found.read(5)] == [13, 14, 15, 16, 17]
            assert found.next_number == 18

    Rig().run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_a_successor_fences_the_writer_and_closes_the_gaps_it_left(seed: int) -> None:
    """docs/reference/semantics, row L1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        acknowledged: dict[int, bytes] = {}

        async def send(one: LogicalQueueWriter, body: bytes) -> None:
            try:
                acknowledged[await one.send(Message("t", body))] = body
            except DledgerError:
                return

        for life in range(4):
            one = writer(rig, send_timeout_ms=8000)
            await one.open()
            sends = [asyncio.ensure_future(send(one, b"%d-%d" % (life, number))) for number in range(30)]
            await asyncio.sleep(rig.cluster.random.random() * 0.02)
            if life % 2:
                rig.cluster.kill(rig.master)
                await asyncio.sleep(rig.cluster.random.random() * 0.3)
            async with writer(rig, send_timeout_ms=20_000) as two:
                await send(two, b"%d-after" % life)
                for _ in range(3):
                    with pytest.raises(DledgerError):  # fenced, or broken by then
                        await one.send(Message("t", b"late"))
            await asyncio.gather(*sends)
            await one.close()
            for node_id in rig.cluster.hosts:
                rig.cluster.ensure_running(node_id)
            await until(lambda: rig.cluster.master() is not None)
        async with reader(rig) as found:
            numbered = {each.number: each.message.body for each in await read_all(found)}
        assert {number: numbered.get(number) for number in acknowledged} == acknowledged
        lives = [body.partition(b"-") for body in numbered.values()]
        for life in range(4):
            mine = [int(number) for own, _, number in lives if own == b"%d" % life and number != b"after"]
            assert mine == sorted(mine)

    Rig(seed).run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_and_a_reader_go_on_while_masters_die(seed: int) -> None:
    """docs/reference/semantics, row L1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        acknowledged: dict[int, bytes] = {}
        done = asyncio.Event()

        async def write() -> None:
            """As an application does: a writer that broke is replaced."""
            sent = 0
            while not done.is_set():
                async with contextlib.AsyncExitStack() as stack:
                    try:
                        one = await stack.enter_async_context(writer(rig, send_timeout_ms=2000))
                        while not done.is_set():
                            body, sent = b"%d" % sent, sent + 1
                            acknowledged[await one.send(Message("t", body))] = body
                            await asyncio.sleep(0.01)
                    except DledgerError:
                        await asyncio.sleep(0.1)

        async def read(found: LogicalQueueReader, numbered: list[NumberedMessage]) -> None:
            while not (writing.done() and acknowledged and found.next_number > max(acknowledged)):
                try:
                    numbered += await found.read(7, wait_ms=200)
                except DledgerError:
                    await asyncio.sleep(0.1)

        writing, numbered = asyncio.ensure_future(write()), list[NumberedMessage]()
        async with reader(rig) as found:
            reading = asyncio.ensure_future(read(found, numbered))
            for _ in range(4):
                before = len(acknowledged)
                await until(lambda before=before: len(acknowledged) > before + 20)
                await rig.restart(rig.master)
            done.set()
            await asyncio.gather(writing, reading)
        numbers = [each.number for each in numbered]
        assert numbers == sorted(set(numbers))
        bodies = {each.number: each.message.body for each in numbered}
        assert {number: bodies.get(number) for number in acknowledged} == acknowledged
        assert len(acknowledged) > 80

    Rig(seed).run(scenario)


def test_a_writer_that_is_fenced_says_so_and_stays_broken() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with writer(rig) as one:
            await one.send(Message("t", b"a"))
            async with writer(rig) as two:
                await two.send(Message("t", b"b"))
                with pytest.raises(ProducerFencedError):
                    await one.send(Message("t", b"c"))
                with pytest.raises(DledgerError, match="the writer broke"):
                    await one.send(Message("t", b"d"))
            async with reader(rig) as found:
                assert [each.message.body for each in await read_all(found)] == [b"a", b"b"]

    Rig().run(scenario)


def test_a_writer_that_is_not_open_says_so() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        one = writer(rig)
        with pytest.raises(InvalidArgumentError, match="not open yet"):
            await one.send(Message("t", b"a"))
        assert await one.open() == 0
        assert await one.send(Message("t", b"a")) == 0
        await one.close()

    Rig().run(scenario)


def test_a_message_that_fails_after_its_send_was_cancelled_breaks_the_writer() -> None:
    """docs/reference/semantics, row L1: there is no message of its number, so nothing may follow it."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with writer(rig, send_timeout_ms=1_000) as one:
            assert await one.send(Message("t", b"a")) == 0
            for node_id in rig.cluster.hosts:
                rig.cluster.kill(node_id)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.send(Message("t", b"b")), 0.2)
            await asyncio.sleep(3)  # it has failed
            for node_id in rig.cluster.hosts:
                rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g0"))
            with pytest.raises(NotSentError, match="the writer broke"):
                await one.send(Message("t", b"c"))

    Rig().run(scenario)


def test_a_send_that_was_cancelled_and_is_stored_breaks_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with writer(rig) as one, reader(rig) as found:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.send(Message("t", b"a")), 0.0001)
            assert await one.send(Message("t", b"b")) == 1
            assert [each.message.body for each in await read_all(found)] == [b"a", b"b"]

    Rig().run(scenario)


def test_a_group_goes_on_where_it_committed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        async with writer(rig) as one:
            for number in range(20):
                await one.send(Message("t", b"%d" % number))
        async with reader(rig, "readers") as found:
            await found.seek_committed()
            assert len(await found.read(11)) == 11
            await found.commit()
        async with reader(rig, "readers") as found:
            await found.seek_committed()
            assert [each.number for each in await read_all(found)] == list(range(11, 20))

    Rig().run(scenario)


def test_a_read_that_is_cancelled_loses_nothing() -> None:
    """docs/reference/semantics, row L1."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with writer(rig) as one, reader(rig, "readers") as found:
            for number in range(10):
                await one.send(Message("t", b"%d" % number))
            assert [each.number for each in await found.read(3)] == [0, 1, 2]
            for node_id in rig.cluster.hosts:  # the seven messages that are held are taken, then the read waits for an answer
                rig.cluster.kill(node_id)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(found.read(), 0.2)
            assert found.next_number == 3
            assert [each.number for each in await found.read(2)] == [3, 4]
            for node_id in rig.cluster.hosts:
                rig.cluster.start(node_id)
            await until(lambda: rig.is_group_up("g0"))
            assert [(each.number, each.message.body) for each in await read_all(found)] == [(n, b"%d" % n) for n in range(5, 10)]

    Rig().run(scenario)


def test_what_others_wrote_is_no_logical_queue() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with writer(rig) as one:
            await one.send(Message("t", b"a"))
            async with rig.producer() as other:
                await other.send(Message("t", b"foreign"), queue_id=1)
            with pytest.raises(InvalidArgumentError, match="another producer writes"):
                await one.send(Message("t", b"b"))
            with pytest.raises(InvalidArgumentError, match="expected t"):
                await one.send(Message("u", b"b"))

    Rig().run(scenario)


def test_a_logical_queue_lies_over_several_replica_groups() -> None:
    """docs/reference/semantics, rows L1, P11."""

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=3)
        async with writer(rig, send_timeout_ms=4000) as one:
            await asyncio.gather(*[one.send(Message("t", b"%d" % number)) for number in range(20)])
            for node_id in rig.cluster.groups["g1"].node_ids:
                rig.cluster.kill(node_id)
            results = await asyncio.gather(*[one.send(Message("t", b"%d" % number)) for number in range(20, 26)], return_exceptions=True)
            assert [n for n, result in enumerate(results) if isinstance(result, int)] == [1, 2, 4, 5]  # 20 and 23 belong to g1
            with pytest.raises(DledgerError):  # it does not begin without all queues: numbers would be wrong
                await writer(rig, send_timeout_ms=2000).open()
        for node_id in rig.cluster.groups["g1"].node_ids:
            rig.cluster.start(node_id)
        await until(lambda: rig.is_group_up("g1"))
        async with writer(rig) as two, reader(rig, "audit") as found:
            assert two.next_number == 26
            assert await two.send(Message("t", b"26")) == 26
            numbers = [*range(20), 21, 22, 24, 25, 26]
            assert [(each.number, each.message.body) for each in await read_all(found)] == [(n, b"%d" % n) for n in numbers]
            await found.seek(9)
            await found.read(3)
            await found.commit()
        async with reader(rig, "audit") as again:
            await again.seek_committed()
            assert [each.number for each in await again.read(2)] == [12, 13]

    Rig(groups=2).run(scenario)


@pytest.mark.parametrize("how", ["seek", "seek_committed"])
def test_a_reader_of_a_group_begins_again_in_a_topic_made_anew_where_it_is_told_to(how: str) -> None:
    """All its queues at once: each of them was of the topic before.  docs/reference/semantics, row G9."""

    async def fill(rig: Rig, first: int) -> None:
        async with writer(rig) as one:
            for number in range(30):
                await one.send(Message("t", b"%d" % (first + number)))

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=4)
        await fill(rig, 0)
        async with reader(rig, "g") as found, rig.admin() as admin:
            await found.seek_start()
            assert len(await found.read(30)) == 30
            await admin.delete_topic("t")
            await rig.topic(queues=4)
            await fill(rig, 100)
            await found.seek(20)
            with pytest.raises(TopicNotFoundError):
                await found.read(1)
            async with reader(rig, "g") as other:
                await other.seek(10)
                await other.commit()
            await (found.seek(10) if how == "seek" else found.seek_committed())
            assert [each.message.body for each in await found.read(20)] == [b"%d" % number for number in range(110, 130)]
            await found.commit()

    Rig().run(scenario)
