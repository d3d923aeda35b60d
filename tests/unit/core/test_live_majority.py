"""Who counts when a leader asks itself whether a majority still hears it: voters, and nobody else."""

from __future__ import annotations

from dledger.core.types import Role
from tests.unit.core.harness import ELECTION_MS, Cluster


def test_learners_do_not_keep_a_leader_that_no_majority_of_voters_answers() -> None:
    cluster = Cluster(3, learners=[4, 5])
    leader = cluster.elect(1)
    cluster.run(ELECTION_MS)
    assert leader.role is Role.LEADER
    for voter in (2, 3):
        for other in (1, 4, 5):  # no word of another leader reaches this one
            cluster.cut(other, voter)
    cluster.run(3 * ELECTION_MS)
    assert leader.role is not Role.LEADER
