"""SQL92 property filters through the whole way: evaluated at any replica, offsets move on over what nobody wants, long polls go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import broker.api.fetch
from dledger_client.aio import Message
from dledger_client.fetch.subscription import parse_tags
from dledger_wire.errors import InvalidArgumentError
from store.queues import queue_reader
from store.queues.fetch_filter import choose
from tests.unit.client.sim_rig import Rig


def order(number: int) -> Message:
    properties = {"amount": str(number), "region": ("eu", "us", "asia")[number % 3]}
    return Message("t", b"%d" % number, tags="odd" if number % 2 else "even", properties=properties)


async def fill(rig: Rig, first: int, upto: int) -> None:
    async with rig.producer() as producer:
        futures = [producer.send_async(order(number), queue_id=0) for number in range(first, upto)]
        await producer.flush()
        assert [future.result().queue_offset for future in futures] == list(range(first, upto))


@pytest.mark.parametrize("read_from", ["leader", "follower"])
def test_only_messages_that_the_expression_is_true_of_arrive(read_from: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 300)
        async with rig.consumer(read_from=read_from) as consumer:
            found = await consumer.fetch("t", 0, 0, 1000, sql="amount BETWEEN 100 AND 199 AND region IN ('eu', 'asia')")
            wanted = [number for number in range(100, 200) if number % 3 != 1]
            assert [message.body for message in found] == [b"%d" % number for number in wanted]
            assert [message.queue_offset for message in found] == wanted
            both = await consumer.fetch("t", 0, 0, 1000, tags="odd", sql="amount < 10")
            assert [message.queue_offset for message in both] == [1, 3, 5, 7, 9]
            few = await consumer.fetch_chunks("t", 0, 0, 4, sql="region = 'us'")
            assert [offset for chunk in few for offset in chunk.offsets.tolist()] == [1, 4, 7, 10]
            assert few[-1].next_offset == 11
            small = await consumer.fetch_chunks("t", 0, 11, 100, max_bytes=1, sql="region = 'us'")
            assert [offset for chunk in small for offset in chunk.offsets.tolist()] == [13]
            assert small[-1].next_offset == 14

    Rig().run(scenario)


def test_everything_filtered_out_still_moves_on() -> None:
    """docs/reference/semantics, row R7."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 500)
        async with rig.consumer() as consumer:
            chunks = await consumer.fetch_chunks("t", 0, 0, 1000, sql="region = 'moon'")
            assert sum(chunk.count for chunk in chunks) == 0
            assert chunks[-1].next_offset == 500
            seen = [chunk async for chunk in consumer.read_chunks("t", 0, 0, 500, sql="amount = 499 OR amount = 0")]
            assert [offset for chunk in seen for offset in chunk.offsets.tolist()] == [0, 499]

    Rig().run(scenario)


def test_a_request_looks_at_a_bounded_part_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.api.fetch, "MAX_SCANNED_BYTES", 5000)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 20_000)
        async with rig.consumer() as consumer:
            filters: tuple[dict[str, Any], ...] = ({"sql": "amount < 0"}, {"tags": "purple"})
            for how in filters:
                at, requests = 0, 0
                while at < 20_000:
                    chunks = await consumer.fetch_chunks("t", 0, at, 1000, wait_ms=60_000, **how)
                    assert sum(chunk.count for chunk in chunks) == 0
                    assert at < chunks[-1].next_offset <= 20_000
                    at, requests = chunks[-1].next_offset, requests + 1
                    assert requests < 100
                if "sql" in how:
                    assert requests > 2  # a chunk's worth of frames at a time
            assert [each async for each in consumer.read_chunks("t", 0, 0, 20_000, sql="amount < 0")] == []

    Rig().run(scenario)


def test_a_node_that_looks_at_messages_slowly_answers_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readers with filters share its processor: each has to come forward, or all begin anew for ever."""

    async def looked_slowly(*given: Any) -> Any:
        await asyncio.sleep(0.4)
        return await choose(*given)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 20_000)
        costly = f"amount IN (-1, {', '.join(['-20000000000000'] * 120)})"  # few messages at a time, by its length
        monkeypatch.setattr(queue_reader, "choose", looked_slowly)
        async with rig.consumer() as consumer:
            at, loop = 0, rig.cluster.loop
            while at < 20_000:
                began_s = loop.now_s
                chunks = await consumer.fetch_chunks("t", 0, at, 1000, sql=costly)
                assert loop.now_s - began_s < 1.5
                assert chunks[-1].next_offset > at
                at = chunks[-1].next_offset

    Rig().run(scenario)


@pytest.mark.parametrize("how", [{"sql": "region = 'moon'"}, {"tags": "moon"}], ids=["sql", "tags"])
def test_a_long_poll_goes_on_behind_messages_nobody_wants(how: dict[str, Any]) -> None:
    """docs/reference/semantics, row R7."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 1)
        loop = rig.cluster.loop
        async with rig.producer() as producer, rig.consumer() as consumer:
            poll = asyncio.ensure_future(consumer.fetch_chunks("t", 0, 0, 10, wait_ms=5000, **how))
            start = loop.now_s
            for number in range(1, 6):
                await asyncio.sleep(0.2)
                await producer.send(order(number), queue_id=0)
                assert not poll.done()
            sent_at = loop.now_s
            await producer.send(Message("t", b"rock", tags="moon", properties={"region": "moon"}), queue_id=0)
            chunks = await poll
            assert loop.now_s - sent_at < 0.2
            assert [message.body for chunk in chunks for message in chunk.messages()] == [b"rock"]
            assert chunks[-1].next_offset == 7

            start = loop.now_s
            poll = asyncio.ensure_future(consumer.fetch_chunks("t", 0, 7, 10, wait_ms=1000, **how))
            await asyncio.sleep(0.5)
            await producer.send(order(9), queue_id=0)
            chunks = await poll
            assert 0.999 <= loop.now_s - start < 1.3  # a node counts whole milliseconds
            assert (sum(chunk.count for chunk in chunks), chunks[-1].next_offset) == (0, 8)

    Rig().run(scenario)


def test_a_mistake_in_an_expression_is_typed_and_points_at_its_column() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer(read_from="follower") as consumer:
            with pytest.raises(InvalidArgumentError, match=r"filter: column 10: unexpected 'x'; expected AND, OR") as caught:
                await consumer.fetch("t", 0, 0, sql="amount=1 x")
            assert caught.value.details["column"] == "10"
            with pytest.raises(InvalidArgumentError, match="5000 characters, expected at most 4096"):
                await consumer.fetch("t", 0, 0, sql="a" * 5000)
            assert await consumer.fetch("t", 0, 0, sql="amount=1") == []  # the stream goes on

    Rig().run(scenario)


def test_a_tag_that_is_missing_is_refused() -> None:
    assert parse_tags("a||b || a") == ["a", "b"]
    for text in ("a ||", "|| a", "a||||b", "||", " || || "):
        with pytest.raises(InvalidArgumentError, match=r"a tag is missing beside \|\|; expected tag \|\| tag"):
            parse_tags(text)
    with pytest.raises(InvalidArgumentError, match=r"expected tag \|\| tag"):
        parse_tags("a && b")


@pytest.mark.parametrize("filters", [{"sql": "a = '\ud800'"}, {"tags": "\ud800"}])
def test_a_filter_that_no_request_can_hold_is_named(filters: dict[str, str]) -> None:
    """As an argument of a command line that is not UTF-8."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.consumer() as consumer:
            with pytest.raises(InvalidArgumentError, match=rf"^{next(iter(filters))} .*: not encodable as UTF-8"):
                await consumer.fetch("t", 0, 0, **filters)  # type: ignore[arg-type]

    Rig().run(scenario)
