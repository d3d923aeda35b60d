"""KeyedLock: one holder a key, also after a holder that was cancelled before its proposal was decided; unused keys take no memory."""

from __future__ import annotations

import asyncio

import pytest

from broker.support.keyed_lock import KeyedLock
from dledger.core.types import EntryId


def test_the_next_holder_waits_for_what_was_left_behind() -> None:
    async def scenario() -> None:
        locks = KeyedLock()
        proposal: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        steps: list[str] = []

        async def leaves_early() -> None:
            async with locks.hold("k"):
                steps.append("first")
                await locks.commit("k", proposal)

        async def follows(name: str) -> None:
            async with locks.hold("k"):
                steps.append(name)

        first = asyncio.create_task(leaves_early())
        await asyncio.sleep(0)
        others = [asyncio.create_task(follows(name)) for name in ("second", "third")]
        async with locks.hold("other"):
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
        assert len(locks) == 0

    asyncio.run(scenario())
