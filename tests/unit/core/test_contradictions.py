"""Messages that no correct peer sends: each is dropped, told, and changes nothing, so that no peer can end a node or spoil its promise."""

from __future__ import annotations

import pytest

from dledger.core.effects import MessageRefused
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    SnapshotOffer,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import MAX_INDEX, MAX_TERM, MAX_TERM_STEP, EntryId, EntryMeta, Role
from tests.unit.core.harness import Node, append, solo

FAR = 5 + MAX_TERM_STEP + 1


def follower() -> Node:
    """Term 5, entries of terms 1 1 4 4 5, three of them committed; 2 leads."""
    node = solo([1, 1, 4, 4, 5], term=5, commit=3)
    node.receive(2, Heartbeat(term=5, commit=3, round=1))
    assert node.role is Role.FOLLOWER
    node.cluster.drop()
    return node


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(term=FAR, commit=0, round=1),
        Heartbeat(term=(1 << 63) - 1, commit=0, round=1),
        HeartbeatResponse(term=FAR, round=1),
        VoteRequest(term=FAR, last=EntryId(9, 5)),
        VoteRequest(term=FAR, last=EntryId(9, 5), pre_vote=True),
        VoteResponse(term=FAR, granted=False),
        TimeoutNow(term=FAR),
        AppendResponse(term=FAR, success=False, match=EntryId(0, 0)),
        Heartbeat(term=MAX_TERM + 1, commit=0, round=1),
        VoteRequest(term=6, last=EntryId(MAX_INDEX + 1, 5)),
        VoteRequest(term=6, last=EntryId(9, MAX_TERM + 1)),
        append(6, (MAX_INDEX, 5), [5]),
        append(6, (5, 5), [7]),
        append(6, (5, 5), [6, 5]),
        append(6, (5, 7)),
        append(5, (2, 4)),
        append(6, (1, 1), [1, 5]),
        append(6, (0, 0), [1, 1, 5, 5]),
        SnapshotOffer(term=6, first_available=9, last=EntryId(20, 7)),
    ],
    ids=str,
)
def test_a_message_that_no_correct_peer_sends_is_refused_and_changes_nothing(message: Message) -> None:
    node = follower()
    before = node.core.status()
    (refused,) = node.receive(2, message)
    assert isinstance(refused, MessageRefused)
    assert node.core.status() == before
    assert not node.cluster.bag


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.LEADER])
@pytest.mark.parametrize(
    "message",
    [Heartbeat(term=5, commit=0, round=1), append(5, (5, 5)), SnapshotOffer(term=5, first_available=9, last=EntryId(20, 5))],
    ids=str,
)
def test_a_second_leader_of_a_term_is_refused(role: Role, message: Message) -> None:
    node = follower()
    if role is Role.LEADER:
        node = solo([1, 1, 4, 4], term=4, commit=3)
        node.campaign()
        for voter in (2, 3):
            node.receive(voter, VoteResponse(term=5, granted=True, pre_vote=True))
        node.receive(2, VoteResponse(term=5, granted=True))
        assert node.role is Role.LEADER
    leader = node.core.leader
    (refused,) = node.receive(3, message)
    assert isinstance(refused, MessageRefused)
    assert (node.role, node.term, node.core.leader) == (role, 5, leader)


def test_terms_may_rise_by_as_much_as_a_long_absence_explains_and_a_new_folder_takes_any() -> None:
    node = follower()
    node.receive(2, Heartbeat(term=5 + MAX_TERM_STEP, commit=3, round=1))
    assert node.term == 5 + MAX_TERM_STEP
    new = solo()
    new.receive(2, Heartbeat(term=MAX_TERM, commit=0, round=1))
    assert (new.term, new.core.leader) == (MAX_TERM, "2")


def test_at_the_last_term_nobody_campaigns() -> None:
    node = solo()
    node.receive(2, VoteRequest(term=MAX_TERM, last=EntryId(0, 0)))
    node.timeout()
    assert (node.role, node.term) == (Role.FOLLOWER, MAX_TERM)


def test_entries_that_agree_with_what_is_committed_are_taken_wherever_they_begin() -> None:
    for first in range(6):
        node = follower()
        terms = [1, 1, 4, 4, 5]
        prev = (first, terms[first - 1] if first else 0)
        node.receive(2, append(5, prev, [*terms[first:], 5]))
        assert node.last == EntryId(6, 5)
    request = AppendRequest(term=5, prev=EntryId(0, 0), entries=tuple(EntryMeta(term, 1) for term in (1, 1, 4)), commit=3)
    assert not any(isinstance(effect, MessageRefused) for effect in follower().receive(2, request))
