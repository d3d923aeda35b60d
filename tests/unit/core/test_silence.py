"""The election timeout falls while leaders' messages come in time, and rises in the moment in which they do not (docs/adr/0031)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dledger.core.config import CoreConfig
from dledger.core.messages import Heartbeat, HeartbeatResponse
from dledger.core.silence import BEATS, FACTOR, FALL, PARTS, WARY_TIMES, Lateness, Silence
from dledger.core.types import Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Envelope, Node, node_id

LEAST_MS = CoreConfig().least_election_timeout_ms
WINDOW_MS = CoreConfig().lateness_window_ms
WARY_MS = 20_000  # where nodes are wary: hours of a clock that stands still between two steps take minutes of a real one
FALL_MS = WINDOW_MS // FALL
GAP_MS = LEAST_MS + LEAST_MS // BEATS  # of standing still: the silence is longer than the least timeout, whenever heartbeats are due
SEEDS = range(1, 6)


def quiet(voters: int = 3, seed: int = 1) -> Cluster:
    """A group in which all came in time for a while, led by 1."""
    cluster = Cluster(voters, seed=seed)
    cluster.elect(1)
    cluster.run(FALL_MS + ELECTION_MS)
    assert cluster[1].role is Role.LEADER
    return cluster


def silence(node: Node) -> Silence:
    return node.core._core.silence


def timeouts(cluster: Cluster) -> list[int]:
    return [silence(node).timeout_ms for node in cluster.nodes.values() if node.up]


def stall(cluster: Cluster, for_ms: int, *names: object) -> None:
    """Nodes stand still: what they would do, and what is sent to them, is late."""
    still = {node_id(name) for name in names}
    held: list[Envelope] = []
    cluster.dropping = lambda envelope: envelope.to in still and bool(held.append(envelope) or True)
    due = [envelope for envelope in cluster.bag if envelope.to in still]
    for envelope in due:
        cluster.bag.remove(envelope)
    for name in still:
        cluster.nodes[name].up = False
    cluster.run(for_ms)
    for name in still:
        cluster.nodes[name].up = True
    cluster.dropping = lambda _envelope: False
    cluster.bag = [*due, *held, *cluster.bag]
    for envelope in cluster.bag:
        envelope.due_ms = max(envelope.due_ms, cluster.now_ms)


def replaced_in_ms(cluster: Cluster, leader: int) -> int:
    begun_ms = cluster.now_ms
    others = [node for node in cluster.nodes.values() if node.name != node_id(leader)]
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(node.core.is_confirmed_leader for node in others))
    return cluster.now_ms - begun_ms


# Falling


def test_a_new_group_waits_as_configured_and_less_the_longer_all_comes_in_time() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    assert all(ELECTION_MS - 10 <= timeout_ms <= ELECTION_MS for timeout_ms in timeouts(cluster))
    cluster.run(FALL_MS // 2)
    half_ms = (ELECTION_MS + LEAST_MS) // 2
    assert all(half_ms - 20 <= timeout_ms <= half_ms + 20 for timeout_ms in timeouts(cluster))
    cluster.run(FALL_MS)
    assert timeouts(cluster) == [LEAST_MS] * 3


def test_heartbeats_come_four_times_within_it() -> None:
    cluster = quiet()
    sent: list[int] = []
    cluster.watchers.append(lambda node, _effects: sent.append(cluster.now_ms) if node.sent(Heartbeat, to=2) else None)
    cluster.run(LEAST_MS * 10)
    pauses = [two - one for one, two in pairwise(sorted(set(sent)))]
    assert 10 * BEATS - 2 <= sum(pause_ms > 1 for pause_ms in pauses) <= 10 * BEATS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_silent_leader_is_replaced_within_twice_of_it(seed: int) -> None:
    cluster = quiet(seed=seed)
    cluster.isolate(1)
    assert LEAST_MS - LEAST_MS // BEATS <= replaced_in_ms(cluster, 1) <= 2 * LEAST_MS + HEARTBEAT_MS


def test_a_configured_timeout_that_is_shorter_stays() -> None:
    config = CoreConfig(heartbeat_interval_ms=30, election_timeout_ms=100)
    cluster = Cluster(3, config=config)
    cluster.elect(1)
    cluster.run(2 * FALL_MS)
    assert timeouts(cluster) == [100] * 3
    assert silence(cluster[1]).heartbeat_interval_ms == 100 // BEATS


def test_one_that_has_just_started_waits_like_the_others() -> None:
    cluster = quiet()
    cluster[2].crash()
    cluster[2].restart()
    assert silence(cluster[2]).timeout_ms == ELECTION_MS, "it has heard from no leader yet"
    cluster.run(HEARTBEAT_MS)
    assert timeouts(cluster) == [LEAST_MS] * 3


def test_the_next_leader_goes_on_where_the_last_one_was() -> None:
    cluster = quiet()
    for leader, other in ((1, 2), (2, 3), (3, 1)):
        cluster[leader].transfer(other)
        assert cluster.run(ELECTION_MS, until=lambda other=other: cluster[other].core.is_confirmed_leader)
        cluster.run(HEARTBEAT_MS)
        assert timeouts(cluster) == [LEAST_MS] * 3


def test_it_falls_on_although_leaders_change() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    leader = 1
    for _ in range(20):
        cluster.run(FALL_MS // 20)
        cluster[leader].transfer(leader % 3 + 1)
        leader = leader % 3 + 1
        assert cluster.run(ELECTION_MS, until=lambda leader=leader: cluster[leader].core.is_confirmed_leader)
    cluster.run(FALL_MS // 20)
    assert max(timeouts(cluster)) <= LEAST_MS + 50


# Rising


@pytest.mark.parametrize("late_ms", [60, 100])
def test_a_leader_that_is_late_makes_all_wait_longer_at_once(late_ms: int) -> None:
    cluster = quiet()
    stall(cluster, late_ms + LEAST_MS // BEATS, 1)
    cluster.run(5)
    needed_ms = LEAST_MS // BEATS + FACTOR * late_ms
    assert all(min(needed_ms, ELECTION_MS) - FACTOR * 5 <= timeout_ms <= ELECTION_MS for timeout_ms in timeouts(cluster))
    cluster.run(WINDOW_MS - 2 * HEARTBEAT_MS)
    assert min(timeouts(cluster)) > LEAST_MS + 20, "a window long nothing is forgotten"
    cluster.run(WINDOW_MS // PARTS + FALL_MS + 3 * HEARTBEAT_MS)
    assert timeouts(cluster) == [LEAST_MS] * 3


def test_a_voter_whose_messages_came_late_makes_all_wait_longer() -> None:
    cluster = quiet()
    stall(cluster, 100 + LEAST_MS // BEATS, 3)
    assert cluster[1].role is Role.LEADER
    cluster.run(HEARTBEAT_MS)
    assert min(timeouts(cluster)) >= LEAST_MS + 100


def test_a_learner_far_away_changes_nothing_for_voters() -> None:
    cluster = Cluster(3, learners=[4])
    cluster.elect(1)
    cluster.run(FALL_MS + ELECTION_MS)
    stall(cluster, 150, 4)
    cluster.run(2 * HEARTBEAT_MS)
    assert timeouts(cluster)[:3] == [LEAST_MS] * 3


def test_what_a_voter_reported_counts_no_longer_when_it_is_gone() -> None:
    cluster = quiet()
    stall(cluster, 100 + LEAST_MS // BEATS, 3)
    cluster.run(HEARTBEAT_MS)
    cluster[3].crash()
    cluster.run(WINDOW_MS // PARTS + FALL_MS)
    assert timeouts(cluster) == [LEAST_MS] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_an_election_that_was_too_early_is_the_last_one_of_its_kind(seed: int) -> None:
    """The leader stands still for half of the configured timeout again and again: as it knows how late it was, all know then."""
    cluster = quiet(seed=seed)
    terms = []
    for _ in range(10):
        [leader] = cluster.leaders()
        stall(cluster, ELECTION_MS // 2, leader.name)
        cluster.run(5 * ELECTION_MS)
        terms.append(cluster.leader().term)
    assert terms[-1] == terms[0] <= 3


def test_messages_of_a_leader_given_up_too_early_tell_how_late_they_were() -> None:
    """Its loop was never late, only the network: nobody but those who gave it up can know."""
    cluster = quiet()
    held: list[Envelope] = []
    cluster.dropping = lambda envelope: envelope.source == node_id(1) and bool(held.append(envelope) or True)
    assert cluster.run(ELECTION_MS, until=lambda: any(cluster[name].role is Role.LEADER for name in (2, 3)))
    cluster.dropping = lambda _envelope: False
    for envelope in held:
        envelope.due_ms = cluster.now_ms
        cluster.bag.append(envelope)
    cluster.run(3 * HEARTBEAT_MS)
    assert min(timeouts(cluster)) >= ELECTION_MS - HEARTBEAT_MS


def test_a_silence_that_nobody_can_wait_for_is_no_delay() -> None:
    cluster = quiet()
    stall(cluster, 5 * ELECTION_MS, 1)
    cluster.run(ELECTION_MS)
    assert timeouts(cluster) == [LEAST_MS] * 3


def test_a_silence_that_a_drawn_timeout_might_wait_for_is_one() -> None:
    cluster = quiet()
    stall(cluster, 2 * ELECTION_MS - HEARTBEAT_MS, 1)
    cluster.run(ELECTION_MS)
    assert timeouts(cluster) == [ELECTION_MS] * 3


# Wary


def wary_later(seed: int = 1) -> Cluster:
    """A quiet group that forgets in seconds what takes minutes as configured."""
    cluster = Cluster(3, seed=seed, config=CoreConfig(lateness_window_ms=WARY_MS // 2, wary_ms=WARY_MS))
    cluster.elect(1)
    cluster.run(WARY_MS // 2)
    assert timeouts(cluster) == [LEAST_MS] * 3
    return cluster


@pytest.mark.parametrize("name", [1, 2])
def test_after_a_gap_the_group_waits_as_configured_for_long(name: int) -> None:
    """Whoever stood still: the next time it may be the leader."""
    cluster = wary_later()
    stall(cluster, GAP_MS, name)
    cluster.run(2 * ELECTION_MS)
    assert timeouts(cluster) == [ELECTION_MS] * 3
    cluster.run(WARY_MS - 4 * ELECTION_MS)
    assert timeouts(cluster) == [ELECTION_MS] * 3
    cluster.run(WARY_MS // 2)
    assert timeouts(cluster) == [LEAST_MS] * 3


def test_a_gap_after_all_were_wary_makes_them_wary_for_twice_as_long() -> None:
    node = silence(wary_later()[1])
    for number in range(6):
        node.delayed(node._core.now_ms - GAP_MS)
        assert node.wary_ms == WARY_MS * 2**number
        node._core.now_ms += node.wary_ms
        assert node.wary_ms == 0


def test_no_gap_makes_a_group_wary_for_more_than_a_week() -> None:
    node = silence(wary_later()[1])
    for _ in range(20):
        node.delayed(node._core.now_ms - GAP_MS)
        longest_ms = node.wary_ms
        node._core.now_ms += longest_ms
    assert longest_ms == WARY_TIMES * WARY_MS
    assert WARY_TIMES * CoreConfig().wary_ms == pytest.approx(7 * 86_400_000, rel=0.02)


def test_a_gap_of_a_group_that_is_wary_begins_its_time_anew() -> None:
    node = silence(wary_later()[1])
    for _ in range(5):
        node.delayed(node._core.now_ms - GAP_MS)
        assert node.wary_ms == WARY_MS
        node._core.now_ms += WARY_MS - 1


def test_telling_each_other_makes_nobody_wary_for_longer() -> None:
    """Each message is under way for a moment, which would add up if what one is told were told back."""
    cluster = wary_later()
    until_ms = cluster.now_ms + GAP_MS + WARY_MS
    stall(cluster, GAP_MS, 2)
    cluster.run(WARY_MS - ELECTION_MS)
    for node in cluster.nodes.values():
        assert cluster.now_ms + silence(node).wary_ms <= until_ms + HEARTBEAT_MS


def test_the_next_leader_and_one_that_has_just_started_are_wary_too() -> None:
    cluster = wary_later()
    stall(cluster, GAP_MS, 1)
    cluster.run(2 * ELECTION_MS)
    cluster[1].crash()
    cluster.run(4 * ELECTION_MS)
    cluster[1].restart()
    cluster.run(HEARTBEAT_MS)
    assert timeouts(cluster) == [ELECTION_MS] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_rare_gaps_cost_a_few_elections_in_all(seed: int) -> None:
    """The leader stands still twice as rarely as the group is wary for at first: soon that is for longer."""
    cluster = wary_later(seed)
    terms = []
    for _ in range(8):
        stall(cluster, ELECTION_MS // 2, cluster.leader().name)
        cluster.run(2 * WARY_MS)
        terms.append(cluster.leader().term)
    assert terms[-1] == terms[3] <= 4


# Other releases, and what they may say


def test_under_a_leader_of_an_older_release_all_wait_as_configured() -> None:
    cluster = quiet()
    cluster[1].core._core.silence.agreed_ms = 0

    def older(envelope: Envelope) -> bool:
        if isinstance(envelope.message, Heartbeat):
            envelope.message.election_timeout_ms = 0
        return False

    cluster.dropping = older
    cluster.run(HEARTBEAT_MS)
    assert silence(cluster[2]).timeout_ms == silence(cluster[3]).timeout_ms == ELECTION_MS
    cluster.isolate(1)
    assert replaced_in_ms(cluster, 1) >= ELECTION_MS - HEARTBEAT_MS
    [leader] = cluster.leaders()
    assert silence(leader).timeout_ms >= ELECTION_MS - 10, "the group has to show anew that all comes in time"


def test_followers_of_older_releases_do_not_keep_the_others_from_their_timeout() -> None:
    cluster = Cluster(3)

    def older(envelope: Envelope) -> bool:
        if isinstance(envelope.message, HeartbeatResponse) and envelope.source == node_id(3):
            envelope.message.late_ms = 0
        return False

    cluster.dropping = older
    cluster.elect(1)
    cluster.run(FALL_MS + ELECTION_MS)
    assert timeouts(cluster)[:2] == [LEAST_MS] * 2


@pytest.mark.parametrize(("told_ms", "taken_ms"), [(1, LEAST_MS), (1 << 31, ELECTION_MS), (400, 400)])
def test_what_a_leader_tells_is_taken_within_the_limits_of_this_node(told_ms: int, taken_ms: int) -> None:
    cluster = quiet()
    cluster[2].receive(1, Heartbeat(term=cluster[1].term, commit=0, round=1, election_timeout_ms=told_ms))
    assert silence(cluster[2]).timeout_ms == taken_ms


def test_a_report_beyond_all_measure_makes_all_wait_as_configured() -> None:
    cluster = quiet()
    cluster[1].receive(2, HeartbeatResponse(term=cluster[1].term, round=1, late_ms=(1 << 32) - 1, wary_ms=(1 << 32) - 1))
    cluster.run(2 * HEARTBEAT_MS)
    assert timeouts(cluster) == [ELECTION_MS] * 3


# The window


def test_the_longest_delay_of_a_window_is_forgotten_part_by_part() -> None:
    lateness = Lateness(PARTS * 100)
    assert lateness.longest_ms(0) == 0
    lateness.add(0, 50)
    lateness.add(500, 30)
    lateness.add(550, 20)
    assert lateness.longest_ms(PARTS * 100 + 99) == 50
    assert lateness.longest_ms(PARTS * 100 + 100) == 30
    assert lateness.longest_ms(PARTS * 100 + 599) == 30
    assert lateness.longest_ms(PARTS * 100 + 600) == 0


def test_the_window_holds_one_delay_for_each_part_at_most() -> None:
    lateness = Lateness(3000)
    for now_ms in range(10_000):
        lateness.add(now_ms, 1 + (10_000 - now_ms) % 97)
        lateness.longest_ms(now_ms)
        assert len(lateness._parts) <= PARTS + 2
