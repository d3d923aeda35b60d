"""Turns: one at a time for a key, also behind a caller who left before the log had decided; nothing is kept of keys nobody uses."""

from __future__ import annotations

import asyncio

import pytest

from broker.keyed_lock import Turns
from dledger.core.types import EntryId


def test_the_next_turn_waits_for_what_was_left_behind() -> None:
    async def scenario() -> None:
        turns = Turns()
        proposal: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        steps: list[str] = []

        async def leaves_early() -> None:
            async with turns.take("k"):
                steps.append("first")
                await turns.decide("k", proposal)

        async def follows(name: str) -> None:
            async with turns.take("k"):
                steps.append(name)

        first = asyncio.create_task(leaves_early())
        await asyncio.sleep(0)
        others = [asyncio.create_task(follows(name)) for name in ("second", "third")]
        async with turns.take("other"):
            steps.append("other")
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        for _ in range(5):
            await asyncio.sleep(0)
        assert steps == ["first", "other"]
        assert not proposal.done()
        proposal.set_exception(ValueError("whatever the log says"))
        await asyncio.gather(*others)
        assert steps == ["first", "other", "second", "third"]
        assert len(turns) == 0

    asyncio.run(scenario())
