"""Whom a replica dials while configurations come, are cut and are committed."""

from __future__ import annotations

from dledger.core.types import Membership, NodeId
from dledger.membership.configuration import Configuration
from dledger.membership.members import Members

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
EVERYWHERE = {A: "a:1", B: "b:1", C: "c:1"}
ALL, WITHOUT_C = Membership((A, B, C)), Membership((A, B))


def test_who_is_left_out_is_dialled_until_that_is_committed_since_it_may_lead_and_have_it_cut() -> None:
    members = Members(EVERYWHERE, {})
    members.learn(5, Configuration(WITHOUT_C, {A: "a:1", B: "b:1"}))
    assert set(members.links_of(WITHOUT_C)) == {A, B, C}
    assert members.committed(5)
    assert set(members.links_of(WITHOUT_C)) == {A, B}


def test_a_cut_configuration_leaves_no_trace() -> None:
    members = Members({A: "a:1", B: "b:1"}, {})
    members.learn(5, Configuration(ALL, EVERYWHERE))
    assert set(members.links_of(ALL)) == {A, B, C}
    assert members.cut(4)
    assert set(members.links_of(WITHOUT_C)) == {A, B}
