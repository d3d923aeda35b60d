"""What the queues of one consumer do when their leader is gone: counted in questions and attempts, which a slow machine does not change."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dledger_client.cluster.node_metadata import NodeMetadata
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.leader_refresh import Turns
from dledger_wire._pb import broker_pb2
from tests.unit.client.push_rig import Group, send
from tests.unit.client.sim_rig import Rig, until


def counted(queues: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Questions to nodes, and attempts to read, of a consumer of so many idle queues from the leader's death on."""
    found: Counter[str] = Counter()
    ask, read = NodeMetadata.ask, Fetcher._read_once

    async def asked(self: NodeMetadata, *given: Any) -> broker_pb2.MetadataResponse:
        found["questions"] += 1
        return await ask(self, *given)

    async def attempted(self: Fetcher, *given: Any) -> Any:
        found["attempts"] += 1
        return await read(self, *given)

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=queues)
        group = Group(rig)
        await group.start("a")
        await until(lambda: len(group.share("a")) == queues)
        await asyncio.sleep(2)
        with monkeypatch.context() as patched:
            patched.setattr(NodeMetadata, "ask", asked)
            patched.setattr(Fetcher, "_read_once", attempted)
            rig.cluster.kill(rig.master)
            await until(lambda: rig.cluster.master("g0") is not None)
            await asyncio.sleep(2)
        await send(rig, queues, queues)
        await until(lambda: len(group.seen) >= queues)
        await group.stop()

    Rig().run(scenario)
    return found


def test_queues_that_lose_their_leader_share_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = counted(10, monkeypatch), counted(100, monkeypatch)
    assert many["questions"] <= 2 * few["questions"], (few, many)
    assert many["attempts"] <= 4 * 100, (few, many)


def test_many_reads_begin_some_in_each_turn_and_in_their_order() -> None:
    limit, begun = 7, list[int]()
    in_a_turn: list[int] = []

    async def read(turns: Turns, number: int) -> None:
        await turns.passed()
        begun.append(number)

    async def scenario() -> None:
        turns, loop = Turns(limit), asyncio.get_running_loop()

        def turn(before: int) -> None:
            in_a_turn.append(len(begun) - before)
            if len(begun) < 100:
                loop.call_soon(turn, len(begun))

        loop.call_soon(turn, 0)
        reads = [loop.create_task(read(turns, number), name=f"read {number}") for number in range(101)]
        reads.pop(50).cancel()
        await asyncio.wait_for(asyncio.gather(*reads), 30)
        await asyncio.sleep(0)
        await turns.passed()  # later on nobody waits

    asyncio.run(scenario())
    assert begun == [number for number in range(101) if number != 50]
    assert max(in_a_turn) <= limit
    assert sum(in_a_turn) == 100
