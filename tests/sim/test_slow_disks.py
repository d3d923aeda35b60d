"""Disks that take from half a second to three seconds for each write: one leader, terms that stay, writes at the pace of the disks.

Whole groups of cores in virtual time; nothing else is wrong with them, unless a test says so.
"""

from __future__ import annotations

import pytest

from dledger.core.causes import Cause
from dledger.core.effects import Effect, RoleChanged
from dledger.core.types import Role
from tests.sim.core.clients import Clients
from tests.sim.core.node import CoreNode
from tests.sim.core.settings import CoreSettings
from tests.sim.core.world import World

QUIET_MS = 5_000.0
SLOW_MS = 40_000.0
FAST_MS = 40_000.0
SYNCS_MS = (500, 700, 1200, 2000, 3000)


class Group:
    """A group that has served for a while, with some clients."""

    def __init__(self, seed: str, voters: int = 3) -> None:
        self.world = World(seed, CoreSettings(voters=voters, clients=2, think_ms=50.0, kinds=("append",), timeout_ms=20_000.0))
        Clients(self.world, seed)
        self.led: list[tuple[float, CoreNode]] = []  # when a leader was confirmed
        self.causes: list[Cause] = []
        self.world.watchers.append(self._look)
        self.world.run(QUIET_MS)

    def _look(self, node: CoreNode, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RoleChanged) and effect.role is Role.LEADER and effect.confirmed:
                self.led.append((self.world.now_ms, node))
                self.causes += [effect.loss.cause] if effect.loss is not None else []

    @property
    def leader(self) -> CoreNode:
        leader = self.world.leader()
        assert leader is not None
        return leader

    @property
    def term(self) -> int:
        return max(node.core.term for node in self.world.nodes.values())

    @property
    def followers(self) -> list[CoreNode]:
        return [node for node in self.world.nodes.values() if node is not self.leader]

    def slow(self, sync_ms: float, *nodes: CoreNode) -> None:
        """The disks of ``nodes`` (all) take from half of that to one and a half times it."""
        for node in nodes or self.world.nodes.values():
            node.sync_factor = sync_ms / self.world.settings.sync_ms

    def run(self, for_ms: float) -> int:
        """Time passes; how many entries were committed."""
        commit = self.leader.commit
        self.world.run(self.world.now_ms + for_ms)
        return max(node.commit for node in self.world.nodes.values()) - commit


@pytest.mark.parametrize("sync_ms", SYNCS_MS)
def test_where_all_disks_are_slow_the_leader_stays_and_writes_go_on(sync_ms: int) -> None:
    group = Group(f"all {sync_ms}")
    leader, term = group.leader, group.term
    group.slow(sync_ms)
    assert group.run(SLOW_MS) > SLOW_MS / (2 * sync_ms)
    assert (group.leader, group.term) == (leader, term)
    assert leader.core._core.syncs.slow_ms > sync_ms / 2
    group.slow(1)
    group.run(FAST_MS)
    assert (group.leader, group.term) == (leader, term)
    assert [node.core._core.syncs.slow_ms for node in group.world.nodes.values()] == [0, 0, 0], "all wait as short as before"


@pytest.mark.parametrize("sync_ms", SYNCS_MS)
@pytest.mark.parametrize("voters", [3, 5])
def test_where_all_disks_are_slow_one_election_replaces_a_leader_that_ends(sync_ms: int, voters: int) -> None:
    group = Group(f"killed {sync_ms}", voters)
    group.slow(sync_ms)
    for silent in (False, True):
        leader, term, at_ms = group.leader, group.term, group.world.now_ms
        group.led.clear()
        group.world.crash(leader, silent=silent)
        group.world.run(at_ms + 10_000 + 3 * sync_ms)
        assert group.term - term <= 2
        # A vote of the candidate's, one of a voter's and the first entry of the term, and what was under way before.
        assert group.led[0][0] - at_ms <= 1500 + 5 * 1.5 * sync_ms
        group.world.restart(leader)
        group.run(10_000)


def test_two_slow_followers_do_not_depose_a_leader_with_a_fast_disk() -> None:
    group = Group("two followers")
    leader, term = group.leader, group.term
    group.slow(2000, *group.followers)
    assert group.run(SLOW_MS) > SLOW_MS / 4000
    assert (group.leader, group.term) == (leader, term)


def test_a_slow_leader_hands_over_once_to_one_with_a_fast_disk() -> None:
    group = Group("slow leader")
    leader, term, at_ms = group.leader, group.term, group.world.now_ms
    group.led.clear()
    group.slow(2000, leader)
    group.run(SLOW_MS)
    assert group.leader is not leader
    assert group.term == term + 1
    assert group.led[0][0] - at_ms < 1000
    assert group.causes[-1] is Cause.DISK_SLOW


@pytest.mark.parametrize("seed", range(3))
def test_power_lost_while_votes_are_written_gives_no_second_vote(seed: int) -> None:
    """The world's rules are checked at each step: one vote of a node in a term, one leader of a term, nothing committed is lost."""
    group = Group(f"power {seed}", voters=5)
    group.slow(700)
    world = group.world
    for number in range(60):
        node = world.nodes[sorted(world.nodes)[(number * 7 + seed) % 5]]
        world.crash(node, silent=number % 2 == 0)
        world.run(world.now_ms + 300.0 + 100.0 * (number % 5))
        world.restart(node)
        world.run(world.now_ms + 200.0)
    world.run(world.now_ms + 20_000)
    assert group.leader.core.is_confirmed_leader
