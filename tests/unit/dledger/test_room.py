"""Whose request is next when a leader has no room for all, and how much it takes on at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dledger.replica.room import LEAST_BYTES, PROBE_EVERY_S, RESERVE_BYTES, Flow, Room, Window

KIB = 1 << 10


class Leader:
    """Takes ``window`` bytes at a time, and commits when the test says so."""

    def __init__(self, window: int) -> None:
        self.window, self.under_way = window, 0
        self.room = Room(lambda granted: self.under_way + granted < self.window)
        self.served: list[str] = []

    async def send(self, name: str, flow: Flow, size: int, times: int = 1) -> None:
        for _ in range(times):
            await self.room.wait(flow, size)
            self.under_way += size
            self.served.append(name)

    def commit(self, size: int) -> None:
        self.under_way -= size
        self.room.grant()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def drain(leader: Leader, size: int, times: int) -> None:
    for _ in range(times):
        leader.commit(size)
        await settle()


def test_streams_that_always_wait_take_turns_by_bytes() -> None:
    async def scenario() -> None:
        leader = Leader(1)
        tasks = [
            asyncio.ensure_future(leader.send("small", Flow("a"), 64 * KIB, 40)),
            asyncio.ensure_future(leader.send("large", Flow("b"), 256 * KIB, 10)),
        ]
        await settle()
        while not all(task.done() for task in tasks):
            leader.commit(leader.under_way)
            await settle()
        half = leader.served[:25]
        assert half.count("large") == 5  # as many bytes as the 20 small ones
        assert len(leader.served) == 50

    run(scenario())


@pytest.mark.parametrize("others", [1, 10])
@pytest.mark.parametrize("large_kib", [256, 1024])
def test_flows_of_small_and_of_large_requests_get_the_same_bytes(large_kib: int, others: int) -> None:
    """Also where they wait only now and then: commits make room for many small ones or for one large one."""

    async def scenario() -> None:
        leader, small, large = Leader(1 << 20), 16 * KIB, large_kib * KIB
        tasks = [asyncio.ensure_future(leader.send(f"small {number}", Flow(""), small, 20_000)) for number in range(others)]
        tasks.append(asyncio.ensure_future(leader.send("large", Flow(""), large, 2000)))
        await settle()
        for _ in range(100):
            leader.commit(min(leader.under_way, 512 * KIB))
            for _ in range(50):
                await settle()
        served = [leader.served.count(f"small {number}") * small for number in range(others)]
        served.append(leader.served.count("large") * large)
        assert max(served) <= 1.2 * min(served) + 2 * large, f"{[each >> 10 for each in served]} KiB"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario())


def test_what_is_taken_while_there_is_room_is_paid_for() -> None:
    async def scenario() -> None:
        leader, paid, other = Leader(RESERVE_BYTES), Flow("paid"), Flow("other")
        await leader.send("paid", paid, RESERVE_BYTES)
        tasks = [asyncio.ensure_future(leader.send(name, flow, RESERVE_BYTES)) for name, flow in (("paid", paid), ("other", other))]
        await settle()
        await drain(leader, RESERVE_BYTES, 2)
        assert leader.served == ["paid", "other", "paid"]
        await asyncio.gather(*tasks)

    run(scenario())


def test_a_stream_that_sends_little_goes_ahead_of_those_that_always_wait() -> None:
    async def scenario() -> None:
        leader = Leader(1)
        heavy = [asyncio.ensure_future(leader.send("heavy", Flow(""), 1 << 20, 5)) for _ in range(20)]
        await settle()
        await drain(leader, 1 << 20, 30)
        light = asyncio.ensure_future(leader.send("light", Flow(""), KIB))
        await settle()
        before = len(leader.served)
        await drain(leader, 1 << 20, 1)
        assert leader.served[before : before + 1] == ["light"]
        await light
        for task in heavy:
            task.cancel()
        await asyncio.gather(*heavy, return_exceptions=True)

    run(scenario())


def test_a_small_request_need_not_wait_while_its_stream_has_had_less_than_its_share() -> None:
    async def scenario() -> None:
        leader = Leader(4 * RESERVE_BYTES)
        heavy = asyncio.ensure_future(leader.send("heavy", Flow("a"), 2 * RESERVE_BYTES, 5))
        await settle()
        assert leader.served == ["heavy", "heavy"]  # and the third one waits
        flow = Flow("b")
        await asyncio.wait_for(leader.send("light", flow, KIB), 1)
        again = asyncio.ensure_future(leader.send("light", flow, KIB))
        await settle()
        assert not again.done(), "it has had its share: the others have not gone on since"
        for task in (heavy, again):
            task.cancel()
        await asyncio.gather(heavy, again, return_exceptions=True)

    run(scenario())


def test_a_tenant_gains_nothing_by_more_connections() -> None:
    async def scenario() -> None:
        leader = Leader(1)
        many = [asyncio.ensure_future(leader.send("many", Flow("many"), 64 * KIB, 200)) for _ in range(10)]
        one = asyncio.ensure_future(leader.send("one", Flow("one"), 64 * KIB, 200))
        await settle()
        await drain(leader, 64 * KIB, 200)
        share = leader.served.count("one") / len(leader.served)
        assert 0.4 <= share <= 0.6
        for task in (*many, one):
            task.cancel()
        await asyncio.gather(*many, one, return_exceptions=True)

    run(scenario())


def test_a_stream_that_ends_while_it_waits_keeps_nobody_out() -> None:
    async def scenario() -> None:
        leader, size = Leader(1), RESERVE_BYTES
        await leader.send("first", Flow(""), size)
        tasks = [asyncio.ensure_future(leader.send(name, Flow(""), size)) for name in ("gone before", "gone after", "stays")]
        await settle()
        tasks[0].cancel()
        leader.commit(size)  # grants to the second one, which ends before it takes that up
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert leader.served == ["first", "stays"]
        leader.commit(size)
        assert leader.room.enters(Flow(""), 1)

    run(scenario())


@pytest.mark.parametrize("sync_s", [0.002, 0.5])
def test_the_window_follows_the_rate_of_commits_and_their_time(sync_s: float) -> None:
    """A disk of 100 MB/s whose syncs take so long is kept busy, and holds no more than a few syncs' worth."""
    window, now_s = Window(256 << 20), 0.0
    for _ in range(200):
        took_s = sync_s + window.size_bytes / 2 / 100e6  # one half is written while the other one arrives
        now_s += took_s
        window.committed(now_s, took_s, window.size_bytes // 2)
    rate = window.size_bytes / 2 / (sync_s + window.size_bytes / 2 / 100e6)
    assert rate >= 0.5 * 100e6
    assert window.size_bytes <= 2 * max(LEAST_BYTES, 2 * 100e6 * sync_s)


def test_the_window_is_small_now_and_then_to_learn_what_a_commit_takes_alone() -> None:
    window, now_s, sizes = Window(64 << 20), 0.0, []
    for _ in range(2000):
        took_s = 0.05 + window.size_bytes / 200e6
        now_s += took_s
        window.committed(now_s, took_s, window.size_bytes)
        sizes.append(window.size_bytes)
    probes = sum(size == LEAST_BYTES for size in sizes[100:])
    assert 1 <= probes <= 4 * now_s / PROBE_EVERY_S
