"""A follower without entries to get hears of a commit: at once, or bundled after ``commit_notice_delay_ms``."""

from __future__ import annotations

import pytest

from dledger.core.config import CoreConfig
from dledger.core.messages import AppendRequest, Heartbeat
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster


def cluster(delay_ms: int) -> Cluster:
    config = CoreConfig(heartbeat_interval_ms=HEARTBEAT_MS, election_timeout_ms=ELECTION_MS, commit_notice_delay_ms=delay_ms)
    made = Cluster(3, config=config)
    made.elect(1)
    made.run(3 * HEARTBEAT_MS)
    made.settle()
    return made


def test_without_a_delay_idle_followers_hear_at_once() -> None:
    group = cluster(0)
    leader = group[1]
    leader.propose()
    group.deliver_all(kind=AppendRequest)
    group.deliver_all(to=1)
    assert leader.commit == leader.last.index
    assert [message.commit for message in leader.sent(Heartbeat, to=2)][-1:] == [leader.commit]


def test_with_a_delay_the_timer_tells_and_followers_commit() -> None:
    group = cluster(5)
    leader = group[1]
    before = len(leader.sent(Heartbeat))
    leader.propose()
    group.deliver_all(kind=AppendRequest)
    group.deliver_all(to=1)
    assert leader.commit == leader.last.index
    assert len(leader.sent(Heartbeat)) == before
    assert group.run(20, until=lambda: all(group[name].commit == leader.commit for name in (2, 3)))


@pytest.mark.parametrize("proposals", [3, 10])
def test_under_load_the_next_entries_tell_and_no_notice_is_sent(proposals: int) -> None:
    group = cluster(5)
    leader = group[1]
    for _ in range(proposals):
        leader.propose()
        group.deliver_all(kind=AppendRequest)
        group.deliver_all(to=1)
        assert not group.pick(kind=Heartbeat)
    assert [group[name].commit for name in (2, 3)] == [leader.commit - 1] * 2


def test_commits_within_the_delay_of_each_other_send_no_notice() -> None:
    """What follows tells of each commit before the followers have waited for as long as they may."""
    group = cluster(5)
    leader = group[1]
    for _ in range(10):
        leader.propose()
        group.deliver_all(kind=AppendRequest)
        group.deliver_all(to=1)
        assert [group[name].commit for name in (2, 3)] == [leader.commit - 1] * 2
        group.run(4)
        assert [group[name].commit for name in (2, 3)] == [leader.commit - 1] * 2
    assert group.run(5, until=lambda: all(group[name].commit == leader.commit for name in (2, 3)))
