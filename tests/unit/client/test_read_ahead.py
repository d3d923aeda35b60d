"""Reading ahead: when the next piece of a queue is fetched before it is asked for, and who gets it.  In virtual time.

docs/reference/semantics, row R9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from dledger_client.aio import PullConsumer
from dledger_client.fetch.read_ahead import LEAST_BYTES, MAX_AGE_S, MOST_BYTES, QUEUES, ReadAhead
from dledger_client.fetch.records import Chunk
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, OffsetOutOfRangeError, UnreachableError
from tests.sim.loop import SimLoop
from tests.unit.client.sim_rig import Rig

END, TOOK_S = 1000, 0.1


class Replica:
    """Answers with ten messages at a time out of ``END``; notes what it was asked, and how many answers were not waited for."""

    def __init__(self, piece_bytes: int = LEAST_BYTES) -> None:
        self.asked: list[tuple[int, int]] = []  # queue, offset
        self.given_up = 0
        self.error: DledgerError | None = None
        self.lags = False
        self._piece = bytes(piece_bytes)

    async def read(self, _group: str, request: broker_pb2.FetchRequest) -> list[Chunk]:
        self.asked.append((request.queue_id, request.offset))
        try:
            await asyncio.sleep(TOOK_S)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.error is not None:
            raise self.error
        offsets = np.arange(request.offset, min(END, request.offset + 10 * (not self.lags)))
        sizes = np.full(len(offsets), len(self._piece) // max(1, len(offsets)))
        return [Chunk("t", "g0", request.queue_id, "n0", offsets, sizes, self._piece, int(request.offset) + len(offsets), END)]


def piece(offset: int, queue_id: int = 0, **other: Any) -> broker_pb2.FetchRequest:
    return broker_pb2.FetchRequest(topic="t", queue_id=queue_id, offset=offset, **{"max_messages": 10, "max_bytes": 1 << 20, **other})


def run(scenario: Callable[[Replica, ReadAhead], Awaitable[None]], replica: Replica | None = None) -> None:
    async def main() -> None:
        replies = replica or Replica()
        ahead = ReadAhead(replies.read, is_on=True)
        await scenario(replies, ahead)
        await ahead.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop = SimLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_from_the_second_piece_on_the_next_one_is_there_when_it_is_asked_for() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await asyncio.sleep(TOOK_S)
        assert [offset for _, offset in replica.asked] == [0]  # once is no pattern
        await ahead.read("g0", piece(10))
        for offset in (20, 30, 40):
            await asyncio.sleep(2 * TOOK_S)  # what the caller does with a piece
            began_s = asyncio.get_running_loop().time()
            (chunk,) = await ahead.read("g0", piece(offset))
            assert asyncio.get_running_loop().time() == began_s
            assert chunk.offsets.tolist() == list(range(offset, offset + 10))
        await asyncio.sleep(0)
        assert [offset for _, offset in replica.asked] == [0, 10, 20, 30, 40, 50]

    run(scenario)


def test_a_piece_under_way_is_waited_for_and_not_asked_again() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        for offset in range(0, END, 10):
            (chunk,) = await ahead.read("g0", piece(offset))
            assert chunk.next_offset == offset + 10
        assert [offset for _, offset in replica.asked] == list(range(0, END, 10))  # and nothing behind the end

    run(scenario)


@pytest.mark.parametrize("other", [{"offset": 70}, {"max_bytes": 2 << 20}, {"linearizable": True}])
def test_another_request_is_not_given_what_was_fetched_ahead(other: dict[str, int]) -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await ahead.read("g0", piece(10))
        await asyncio.sleep(0)
        assert replica.asked[-1] == (0, 20)
        asked = {"offset": 20} | other
        (chunk,) = await ahead.read("g0", piece(**asked))
        assert chunk.offsets[0] == asked["offset"]
        assert len(replica.asked) == 4

    run(scenario)


def test_what_nobody_asks_for_is_dropped() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await ahead.read("g0", piece(10))
        await asyncio.sleep(MAX_AGE_S + TOOK_S)
        await ahead.read("g0", piece(20))
        assert [offset for _, offset in replica.asked][:4] == [0, 10, 20, 20]

    run(scenario)


def test_small_pieces_are_not_fetched_ahead() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        for offset in range(0, 50, 10):
            await ahead.read("g0", piece(offset))
            await asyncio.sleep(TOOK_S)
            assert replica.asked[-1] == (0, offset)

    run(scenario, Replica(LEAST_BYTES - 1))


@pytest.mark.parametrize("error", [UnreachableError("gone"), OffsetOutOfRangeError("expired")])
def test_what_fails_ahead_is_asked_again(error: DledgerError) -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await ahead.read("g0", piece(10))
        replica.error = error
        await asyncio.sleep(2 * TOOK_S)
        replica.error = None
        (chunk,) = await ahead.read("g0", piece(20))
        assert chunk.offsets[0] == 20
        assert [offset for _, offset in replica.asked][:4] == [0, 10, 20, 20]
        replica.error = error
        with pytest.raises(type(error)):
            await ahead.read("g0", piece(30))

    run(scenario)


def test_an_end_that_was_seen_ahead_is_looked_at_again() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await ahead.read("g0", piece(10))
        replica.lags = True  # another one is asked, and is behind
        await asyncio.sleep(2 * TOOK_S)
        replica.lags = False
        (chunk,) = await ahead.read("g0", piece(20))
        assert chunk.offsets.tolist() == list(range(20, 30))

    run(scenario)


def test_all_queues_together_have_a_bound() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        size = MOST_BYTES // 2
        for offset in (0, 10):
            for queue_id in range(5):
                await ahead.read("g0", piece(offset, queue_id, max_bytes=size))
        await asyncio.sleep(0)
        assert [asked for asked in replica.asked if asked[1] == 20] == [(0, 20), (1, 20)]
        await ahead.read("g0", piece(20, 0, max_bytes=size))  # which makes room for its own next one only
        await ahead.read("g0", piece(20, 4, max_bytes=size))
        await asyncio.sleep(0)
        assert [asked for asked in replica.asked if asked[1] == 30] == [(0, 30)]

    run(scenario)


def test_queues_read_long_ago_are_forgotten() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        for offset in (0, 10):
            await ahead.read("g0", piece(offset, max_bytes=MOST_BYTES))
        for queue_id in range(1, QUEUES + 1):
            await ahead.read("g0", piece(0, queue_id))
        assert len(ahead._next) == QUEUES
        assert ahead._bytes_ahead == 0

    run(scenario)


def test_closing_gives_up_what_is_under_way() -> None:
    async def scenario(replica: Replica, ahead: ReadAhead) -> None:
        await ahead.read("g0", piece(0))
        await ahead.read("g0", piece(10))
        await asyncio.sleep(0)
        await ahead.close()
        assert replica.given_up == 1

    run(scenario)


@pytest.mark.parametrize("read_ahead", [True, False])
def test_every_message_comes_once_while_the_master_changes(read_ahead: bool) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        count = 900
        async with rig.producer() as producer, rig.consumer(read_ahead=read_ahead) as consumer:
            await producer.send_many("t", [b"%03d" % number + bytes(1000) for number in range(count)])
            found = await _all_of(rig, consumer, count)
        assert found == list(range(count))

    Rig().run(scenario)


async def _all_of(rig: Rig, consumer: PullConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(message.body[:3]) for message in await consumer.fetch("t", 0, len(found), 100)]
        if len(found) in (300, 600):
            await rig.restart(rig.master)
    return found
