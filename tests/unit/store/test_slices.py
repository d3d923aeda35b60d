"""Work of requests on the event loop: one slice in a turn of the loop, and owners take turns."""

from __future__ import annotations

import asyncio

import pytest

from dledger_wire.errors import InvalidArgumentError
from store.queues.slices import Slices
from store.queues.sql92 import MAX_TERMS, SLICE_TOKENS
from store.queues.sql_filter import compiled


class Turns:
    """Counts turns of the loop while it exists."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._count)

    def end(self) -> None:
        self._next.cancel()


def test_owners_take_turns_however_much_each_of_them_wants() -> None:
    async def scenario() -> None:
        slices, order = Slices(), []

        async def work(owner: str) -> None:
            for _ in range(3):
                await slices.turn(owner)
                order.append(owner)

        await asyncio.gather(*(work("greedy") for _ in range(50)), work("modest"))
        assert [number for number, owner in enumerate(order) if owner == "modest"][-1] < 3 * 3
        assert len(order) == 51 * 3

    asyncio.run(scenario())


def test_whoever_is_cancelled_holds_up_nobody() -> None:
    async def scenario() -> None:
        slices = Slices()
        waiting = [asyncio.ensure_future(slices.turn("a")) for _ in range(5)]
        await asyncio.sleep(0)
        for each in waiting[:4]:
            each.cancel()
        await waiting[4]
        await slices.turn("b")

    asyncio.run(scenario())


def test_many_expressions_are_compiled_one_slice_in_a_turn() -> None:
    """50 streams with a fresh filter each took the loop for seconds."""

    async def scenario() -> None:
        slices, turns, at = Slices(), Turns(), []

        async def turn() -> None:
            await slices.turn("mallory")
            at.append(turns.number)

        texts = [" OR ".join(f"a = '{stream} {term}'" for term in range(MAX_TERMS)) for stream in range(20)]
        found = await asyncio.gather(*(compiled(text, turn) for text in texts))
        turns.end()
        assert [each.matches({"a": "7 5"}) for each in found].count(True) == 1
        assert len(at) >= len(texts) * 4 * MAX_TERMS // SLICE_TOKENS
        assert len(set(at)) == len(at), "two slices in one turn"
        before = len(at)
        await compiled(texts[-1], turn)
        assert len(at) == before, "it was compiled before"
        with pytest.raises(InvalidArgumentError, match="column 5: unexpected"):
            await compiled("a = = 1", turn)

    asyncio.run(scenario())
