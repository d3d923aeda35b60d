"""What a replica counts of its leaders."""

from __future__ import annotations

from dledger.core.effects import RoleChanged
from dledger.core.types import NodeId, Role
from dledger.measures import RaftMeasures

N1, N2 = NodeId("n1"), NodeId("n2")


def changes(*seen: tuple[int, NodeId | None]) -> int:
    """What a follower counts that sees these leaders, each with its term, one after the other."""
    measures = RaftMeasures()
    for term, leader in seen:
        measures.role_changed(RoleChanged(Role.FOLLOWER, term, leader), Role.FOLLOWER)
    return measures.leader_changes


def test_the_first_leader_is_no_change_and_another_one_is() -> None:
    assert changes((1, None), (1, N1)) == 0
    assert changes((1, N1), (2, None), (2, N2)) == 1


def test_a_leader_that_is_elected_again_is_a_change() -> None:
    assert changes((1, N1), (1, None), (2, None), (2, N1), (3, N1)) == 2


def test_a_leader_that_is_heard_again_in_its_term_is_no_change() -> None:
    assert changes((1, N1), (1, None), (1, N1), (1, N1)) == 0
