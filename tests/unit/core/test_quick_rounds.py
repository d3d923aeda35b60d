"""After a leader is gone or silent, rounds that came to nothing are repeated quickly for a while, and not for ever."""

from __future__ import annotations

import pytest

from dledger.core.election_timer import QUICK_ELECTIONS, QUICK_TIMEOUTS
from dledger.core.messages import AppendRequest, Heartbeat, VoteRequest, VoteResponse
from dledger.core.types import EntryId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Envelope, node_id

SEEDS = range(1, 9)


def healthy(seed: int = 1, voters: int = 3) -> Cluster:
    cluster = Cluster(voters, seed=seed)
    cluster.elect(1)
    cluster.run(5 * HEARTBEAT_MS)
    cluster.settle()
    return cluster


def led_by_another(cluster: Cluster, *old: int) -> bool:
    return any(node.name not in map(node_id, old) and node.core.is_confirmed_leader for node in cluster.leaders())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noticed", ["broken", "silent"])
def test_a_voter_that_comes_back_is_asked_within_a_round(seed: int, noticed: str) -> None:
    """Two of three nodes are lost, and one starts again 1.5 s later: it took up to two election timeouts from then on."""
    cluster = healthy(seed)
    for lost in (1, 3):
        cluster[lost].crash()
    if noticed == "broken":
        cluster[2].lost(1)
    cluster.run(1500)
    cluster[3].restart()
    begun_ms = cluster.now_ms
    assert cluster.run(5 * ELECTION_MS, until=lambda: led_by_another(cluster, 1))
    assert cluster.now_ms - begun_ms <= 2 * HEARTBEAT_MS


def test_quick_rounds_end() -> None:
    cluster = healthy()
    for lost in (1, 3):
        cluster[lost].crash()
    cluster[2].lost(1)
    asked: list[int] = []
    cluster.dropping = lambda envelope: isinstance(envelope.message, VoteRequest) and bool(asked.append(cluster.now_ms) or True)
    begun_ms = cluster.now_ms
    cluster.run(20 * ELECTION_MS)
    quick = [when for when in asked if when - begun_ms <= QUICK_TIMEOUTS * ELECTION_MS + HEARTBEAT_MS]
    assert 2 * 20 <= len(quick) <= 2 * QUICK_TIMEOUTS * ELECTION_MS // (HEARTBEAT_MS // 2)
    assert len(asked) - len(quick) <= 2 * 15
    assert cluster[2].term == 1, "only pre-votes: nobody's term rose"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_election_without_answers_is_repeated_soon(seed: int) -> None:
    """The only other voter's answers to the first election are lost: the next one took 600 to 1200 ms."""
    cluster = healthy(seed)
    cluster[1].crash()
    cluster.dropping = lambda envelope: isinstance(envelope.message, VoteResponse) and not envelope.message.pre_vote
    cluster[2].lost(1)
    cluster[3].lost(1)
    assert cluster.run(ELECTION_MS, until=lambda: any(cluster[name].role is Role.CANDIDATE for name in (2, 3)))
    cluster.run(HEARTBEAT_MS)
    cluster.dropping = lambda _envelope: False
    begun_ms = cluster.now_ms
    assert cluster.run(5 * ELECTION_MS, until=lambda: led_by_another(cluster, 1))
    assert cluster.now_ms - begun_ms <= 5 * HEARTBEAT_MS


def test_elections_that_nobody_answers_become_slow() -> None:
    """Whatever is slow there, disks or the network, each election wants more time then."""
    cluster = healthy()
    cluster[1].crash()
    cluster.dropping = lambda envelope: isinstance(envelope.message, VoteResponse) and not envelope.message.pre_vote
    cluster[2].lost(1)
    cluster.cut(3, 1)
    cluster[3].core._core.elections.timer.deprioritize(on=True)  # so that it does not stand itself
    stood: list[int] = []
    cluster.watchers.append(
        lambda node, _effects: stood.append(node.term) if node.role is Role.CANDIDATE and node.term not in stood else None
    )
    cluster.run(QUICK_TIMEOUTS * ELECTION_MS)
    assert QUICK_ELECTIONS < len(stood) <= QUICK_ELECTIONS + QUICK_TIMEOUTS + 1


@pytest.mark.parametrize("stored_ms", [0, 200])
def test_a_candidate_waits_for_votes_for_longer_when_its_disk_is_slow(stored_ms: int) -> None:
    cluster = healthy()
    cluster[1].crash()
    node = cluster[2]
    node.lost(1)
    node.timeout()
    cluster.auto_persist = False
    cluster[3].lost(1)
    node.receive(3, VoteResponse(term=2, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE
    cluster.now_ms += stored_ms
    node.persist()
    due_ms = node.core.next_wakeup_ms()
    assert due_ms is not None
    waits_ms = due_ms - cluster.now_ms
    assert min(2 * stored_ms + 1.5 * HEARTBEAT_MS, ELECTION_MS - stored_ms) <= waits_ms < 2 * stored_ms + 3 * HEARTBEAT_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_hears_no_answers_does_not_keep_others_from_standing(seed: int) -> None:
    """What 2 asks reaches 3, what 3 says is lost: 3 yields to it once."""
    cluster = healthy(seed)
    cluster[1].crash()
    cluster[2].lost(1)
    cluster[3].lost(1)
    asked: list[Envelope] = []
    cluster.dropping = lambda envelope: envelope.source == node_id(3) and bool(asked.append(envelope) or True)
    cluster.run(10 * HEARTBEAT_MS)
    assert sum(isinstance(envelope.message, VoteRequest) for envelope in asked) >= 4


def test_the_stream_of_the_node_voted_for_breaks_before_it_was_heard() -> None:
    """The next leader is killed as well, before its first message arrived: the voter waited for a whole timeout."""
    cluster = healthy()
    cluster[1].crash()
    for name in (2, 3):
        cluster[name].lost(1)
    cluster.dropping = lambda envelope: isinstance(envelope.message, AppendRequest | Heartbeat)
    assert cluster.run(ELECTION_MS, until=lambda: any(cluster[name].role is Role.LEADER for name in (2, 3)))
    leader, voter = (2, 3) if cluster[2].role is Role.LEADER else (3, 2)
    cluster[leader].crash()
    cluster[voter].lost(leader)
    cluster.dropping = lambda _envelope: False
    cluster[1].restart()
    begun_ms = cluster.now_ms
    assert cluster.run(5 * ELECTION_MS, until=lambda: cluster[voter].core.is_confirmed_leader or cluster[1].core.is_confirmed_leader)
    assert cluster.now_ms - begun_ms <= 2 * HEARTBEAT_MS


def test_a_vote_asked_for_again_is_granted_again() -> None:
    cluster = Cluster(3)
    cluster[1].crash()
    for _ in range(3):
        cluster[3].receive(2, VoteRequest(term=1, last=EntryId(0, 0), pre_vote=True))
    assert [message.granted for message in cluster[3].sent(VoteResponse)] == [True] * 3
