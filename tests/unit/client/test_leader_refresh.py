"""What the queues of one consumer do when their leader is gone: counted in questions and attempts, which a slow machine does not change."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from dledger_client.cluster.node_metadata import NodeMetadata
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.leader_refresh import READS_A_TURN, Turns
from dledger_client.fetch.replica_attempts import Source
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import UnreachableError
from dledger_wire.rpc.transport import ByteStream
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


class Broken:
    """A stream that ends when its node dies."""

    def __init__(self, died: asyncio.Event, error: UnreachableError | None) -> None:
        self._died, self._error = died, error

    async def read(self) -> bytes | None:
        await self._died.wait()
        if self._error is not None:
            raise self._error
        return None


@pytest.mark.parametrize("error", [None, UnreachableError("connection lost")])
def test_streams_that_end_at_once_are_given_up_some_in_each_turn(error: UnreachableError | None) -> None:
    """Those of 1600 queues end in one turn when their leader dies, and whoever else is on the loop waits for it."""
    given_up, in_a_turn = list[int](), list[int]()

    async def scenario(rig: Rig) -> None:
        router, loop, died = rig.router(), asyncio.get_running_loop(), asyncio.Event()
        fetcher = Fetcher(router, "leader", None)

        async def read(number: int) -> None:
            with pytest.raises(UnreachableError):
                await fetcher._read(cast("ByteStream", Broken(died, error)), Source("n0", "h:1", True), 30)
            given_up.append(number)

        def turn(before: int) -> None:
            in_a_turn.append(len(given_up) - before)
            if len(given_up) < 100:
                loop.call_soon(turn, len(given_up))

        reads = [loop.create_task(read(number), name=f"read {number}") for number in range(100)]
        await asyncio.sleep(1)
        died.set()
        loop.call_soon(turn, 0)
        await asyncio.gather(*reads)
        await fetcher.close()
        await router.close()

    Rig().run(scenario)
    assert len(given_up) == 100
    assert max(in_a_turn) <= 2 * READS_A_TURN


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
