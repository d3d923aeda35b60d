"""Master-only services go on only when the tail is applied, go off before anything newer starts, and never run in two terms."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.context import RoleState
from broker.leadership.role_manager import RoleManager
from dledger.core.effects import RoleChanged
from dledger.core.types import NodeId, Role
from dledger_wire.errors import NotReadyError
from dledger_wire.tasks import BackgroundTasks
from tests.sim.clock import SimClock
from tests.sim.loop import SimLoop

LEASE_MS = 600


class Service:
    def __init__(self, name: str, journal: list[str]) -> None:
        self.name = name
        self.journal = journal
        self.hold: asyncio.Event | None = None
        self.ticks = 0

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self.journal.append(f"{self.name} start {term}")
        self.ticks = 0
        tasks.spawn(self._tick(), "tick")
        if self.hold is not None:
            await self.hold.wait()

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.journal.append(f"{self.name} stop")


class World:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.journal: list[str] = []
        self.tail = asyncio.Event()
        self.majority = asyncio.Event()
        self.majority.set()
        self.failures: list[BaseException] = []
        self.tail_errors: list[Exception] = []
        self.roles = RoleManager(SimClock(loop), self, lambda _text: None, lease_ms=LEASE_MS)
        self.first = Service("first", self.journal)
        self.second = Service("second", self.journal)
        self.roles.register(self.first)
        self.roles.register(self.second)
        self.roles.start()

    def become_master(self, term: int) -> None:
        self.journal.append(f"master {term}")

    def resign(self) -> None:
        self.journal.append("resign")

    async def confirm_leader(self) -> None:
        await self.majority.wait()

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    async def wait_tail_applied(self, term: int) -> None:
        if self.tail_errors:
            raise self.tail_errors.pop(0)
        await self.tail.wait()

    def leader(self, term: int, *, confirmed: bool = False) -> None:
        self.roles.role_changed(RoleChanged(Role.LEADER, term, NodeId("n0"), confirmed))

    def follower(self, term: int) -> None:
        self.roles.role_changed(RoleChanged(Role.FOLLOWER, term, NodeId("n1")))


async def settle() -> None:
    """Longer than a new master waits for the one before."""
    await asyncio.sleep(LEASE_MS * 1.5 / 1000)


def run(story: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    loop = SimLoop(shuffle=random.Random(1))

    async def main() -> World:
        world = World(loop)
        await story(world)
        await world.roles.stop()
        return world

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_services_wait_for_the_tail_and_start_in_order() -> None:
    async def story(w: World) -> None:
        w.leader(3)
        await settle()
        assert (w.roles.state, w.roles.master_term, w.journal) == (RoleState.CATCHING_UP, 0, [])
        w.tail.set()
        w.leader(3, confirmed=True)
        await settle()
        assert (w.roles.state, w.roles.master_term) == (RoleState.MASTER, 3)
        assert w.journal == ["master 3", "first start 3", "second start 3"]

    world = run(story)
    assert world.journal[3:] == ["resign", "second stop", "first stop"]
    assert world.roles.state is RoleState.REPLICA


def test_losing_leadership_takes_effect_at_once_and_stops_in_reverse() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await settle()
        w.journal.clear()
        w.follower(4)
        assert w.roles.master_term == 0
        assert w.journal == ["resign"]
        await settle()
        assert w.journal == ["resign", "second stop", "first stop"]
        assert w.roles.state is RoleState.REPLICA

    run(story)


def test_leader_for_a_moment_leaves_everything_off() -> None:
    async def story(w: World) -> None:
        w.leader(3)
        await settle()
        w.follower(4)
        w.tail.set()
        await settle()
        assert w.journal == []
        assert w.roles.state is RoleState.REPLICA

    run(story)


def test_a_newer_term_cancels_a_rising_handler_and_stops_what_it_had_started() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.second.hold = asyncio.Event()
        w.leader(3)
        await settle()
        assert w.roles.state is RoleState.STARTING
        assert w.roles.master_term == 3
        w.second.hold.set()
        w.leader(5)  # a term in between was led by somebody else
        await settle()
        assert w.roles.master_term == 5
        assert w.journal == [
            "master 3",
            "first start 3",
            "second start 3",
            "resign",
            "second stop",
            "first stop",
            "master 5",
            "first start 5",
            "second start 5",
        ]

    run(story)


def test_what_a_cancelled_handler_had_started_is_stopped() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.second.hold = asyncio.Event()
        w.leader(3)
        await settle()
        w.follower(4)
        await settle()
        assert w.journal == ["master 3", "first start 3", "second start 3", "resign", "second stop", "first stop"]
        assert (w.roles.state, w.roles.master_term) == (RoleState.REPLICA, 0)

    run(story)


def test_the_same_term_told_again_changes_nothing() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await settle()
        before = list(w.journal)
        w.leader(3, confirmed=True)
        await settle()
        assert w.journal == before

    run(story)


def test_an_operating_error_while_catching_up_is_tried_again() -> None:
    async def story(w: World) -> None:
        w.tail_errors = [NotReadyError("no majority")]
        w.tail.set()
        w.leader(3)
        await settle()
        assert w.roles.master_term == 3
        assert any("no majority" in step for step in w.roles.steps)

    run(story)


def test_a_handler_that_breaks_is_reported() -> None:
    async def story(w: World) -> None:
        w.tail_errors = [ZeroDivisionError()]
        w.leader(3)
        await settle()
        assert [type(error) for error in w.failures] == [ZeroDivisionError]
        assert w.roles.master_term == 0

    run(story)


@pytest.mark.parametrize("flips", [[3, 0, 4, 0], [3, 4, 5], [3, 0, 0, 7], [0, 0], [2, 0, 3]])
def test_any_quick_sequence_ends_where_the_last_event_says(flips: list[int]) -> None:
    async def story(w: World) -> None:
        w.tail.set()
        for number, term in enumerate(flips):
            w.leader(term) if term else w.follower(number)
            for _ in range(number):
                await asyncio.sleep(0)
        await settle()
        assert w.roles.master_term == flips[-1]
        terms = [int(line.split()[-1]) for line in w.journal if "first start" in line]
        assert terms == sorted(set(terms))

    run(story)


def test_clients_are_served_before_the_lease_of_the_master_before_is_over_and_services_after() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await asyncio.sleep(LEASE_MS / 1000)
        assert (w.roles.master_term, w.roles.services_term, w.roles.state) == (3, 0, RoleState.WAITING)
        assert w.journal == ["master 3"]
        await asyncio.sleep(0.01)
        assert (w.roles.services_term, w.roles.state) == (3, RoleState.MASTER)

    run(story)


def test_services_go_off_when_no_majority_confirms_and_on_again_when_one_does() -> None:
    """docs/reference/semantics, row M1."""

    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await settle()
        w.majority.clear()
        before_s = w.loop.now_s
        while w.roles.services_term:
            assert w.loop.now_s < before_s + 2 * LEASE_MS / 1000, "they go on although nobody confirms this leader"
            await asyncio.sleep(0.001)
        assert LEASE_MS * 0.7 <= (w.loop.now_s - before_s) * 1000 <= LEASE_MS
        ticks = w.first.ticks
        await settle()
        assert w.first.ticks <= ticks + 1
        assert (w.roles.master_term, w.roles.state) == (3, RoleState.WAITING)
        assert w.journal[3:] == ["second stop", "first stop"]
        w.majority.set()
        await asyncio.sleep(0.1)
        assert (w.roles.services_term, w.roles.state) == (3, RoleState.MASTER)

    run(story)


def test_services_begin_again_in_their_term_only_when_what_they_had_proposed_is_decided() -> None:
    """docs/reference/semantics, row M1."""

    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await settle()
        w.majority.clear()
        w.tail.clear()  # something is on its way
        await settle()
        w.majority.set()
        await settle()
        assert w.journal[3:] == ["second stop", "first stop"]
        w.tail.set()
        await settle()
        assert w.journal[5:] == ["first start 3", "second start 3"]
        assert w.roles.master_term == 3

    run(story)


def test_no_timer_of_a_service_fires_after_leadership_is_lost() -> None:
    async def story(w: World) -> None:
        w.tail.set()
        w.leader(3)
        await settle()
        w.follower(4)
        ticks = (w.first.ticks, w.second.ticks)
        assert w.roles.services_term == 0
        await settle()
        assert (w.first.ticks, w.second.ticks) == ticks

    run(story)
