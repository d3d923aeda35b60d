"""The table of routes: registrations in any order lead to the same one, and an older term changes nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routes.directory import directory_reply
from broker.routes.route_table import EXPIRE_AFTER_MS, RouteTable
from dledger_wire._pb import routes_pb2
from dledger_wire.status import Turn
from tests.unit.nameserver.registrants import NODES, Group, master, members, registration

STEPS = st.lists(
    st.tuples(st.sampled_from(["elect", "resign", "create", "reconfigure", "follow", "tell"]), st.integers(0, 2), st.integers(1, 4)),
    min_size=1,
    max_size=25,
)


def sources(steps: list[tuple[str, int, int]], group: str = "g0") -> list[routes_pb2.Registration]:
    history = Group(group)
    for what, node, number in steps:
        match what:
            case "elect":
                history.elect(NODES[node])
            case "resign":
                history.resign()
            case "create":
                history.create(f"t{number}", number)
            case "reconfigure":
                history.reconfigure(number)
            case "follow" if NODES[node] != history.leader:
                history.follow(NODES[node])
            case _:
                history.tell(NODES[node])
    return history.told


def view(table: RouteTable) -> object:
    """All that a client or an operator can see of the table, apart from times."""
    groups = {group.name: (group.fence, group.state, sorted(group.rows)) for group in table.groups}
    routes = {name: table.group_route(name).data for name in groups}
    topics = {name: table.topic_route(name).version for name in sorted(table.topics)}
    return groups, routes, topics, table.directory_version


def route(table: RouteTable, group: str = "g0") -> routes_pb2.GroupRoute:
    return routes_pb2.RoutesReply.FromString(table.group_route(group).data).groups[0]


def topic(table: RouteTable, name: str) -> routes_pb2.TopicRoute:
    return routes_pb2.RoutesReply.FromString(table.topic_route(name).data).topics[0]


@settings(max_examples=300, deadline=None)
@given(STEPS, STEPS, st.integers(0, 2**32), st.floats(0, 1))
def test_any_order_any_number_of_times(one: list[tuple[str, int, int]], other: list[tuple[str, int, int]], seed: int, twice: float) -> None:
    told = sources(one) + sources(other, "g1")
    draw = random.Random(seed)
    mixed = told + [each for each in told if draw.random() < twice]
    draw.shuffle(mixed)
    first, second = RouteTable(), RouteTable()
    for each in told:
        first.register(each, 0)
    for each in mixed:
        second.register(each, draw.randrange(100))
    assert view(first) == view(second)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_a_registration_below_the_fence_changes_nothing(steps: list[tuple[str, int, int]], seed: int) -> None:
    told = sources(steps)
    table = RouteTable()
    for each in told:
        table.register(each, 0)
    fence = max([each.term for each in told if each.master], default=0)
    before = view(table)
    draw = random.Random(seed)
    for each in told:
        if each.term < fence:
            late = routes_pb2.Registration()
            late.CopyFrom(each)
            late.sequence, late.started_at_ms = draw.randrange(1 << 40), draw.randrange(1 << 40)
            late.topics_version, late.configuration_index = 1 << 40, 1 << 40
            change = table.register(late, draw.randrange(1 << 50))
            assert not change.accepted
            assert not change
            assert not change.spread
            assert view(table) == before


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_change_names_what_changed(steps: list[tuple[str, int, int]]) -> None:
    table = RouteTable()
    for each in sources(steps):
        names = {f"t{number}" for number in range(1, 5)}
        before = {name: table.topic_route(name).version for name in names}, table.group_route("g0").version
        change = table.register(each, 0)
        after = {name: table.topic_route(name).version for name in names}, table.group_route("g0").version
        assert {name for name in names if before[0][name] != after[0][name]} <= change.topics
        assert (before[1] != after[1]) <= ("g0" in change.groups)
        assert change.spread or before == after


def test_only_a_master_names_the_leader() -> None:
    table = RouteTable()
    table.register(registration(term=7, role="leader"), 0)
    assert (route(table).found, route(table).leader_id, route(table).term) == (True, "", 0)
    table.register(master(term=7, sequence=2), 0)
    assert (route(table).leader_id, route(table).leader_address, route(table).term) == ("n0", "g0-n0:1", 7)
    table.register(registration(node="n1", term=9), 0)
    assert route(table).leader_id == "n0"
    table.register(master(node="n1", term=9, sequence=2), 0)
    assert (route(table).leader_id, route(table).term) == ("n1", 9)


def test_a_master_that_resigned_leads_no_more_however_late_its_registrations_come() -> None:
    table = RouteTable()
    first = master(term=3, sequence=1)
    table.register(first, 0)
    table.register(registration(term=3, sequence=2, resigned=True), 0)
    assert route(table).leader_id == ""
    table.register(first, 1_000_000)
    assert (route(table).leader_id, route(table).term) == ("", 3)
    table.register(master(node="n2", term=4), 0)
    table.register(registration(term=4, sequence=3, resigned=True), 0)
    assert route(table).leader_id == "n2"


def test_a_group_keeps_its_turn_between_two_masters() -> None:
    """The successor goes on with the replacement, so no other group may begin one meanwhile."""

    def turn(now_ms: int) -> tuple[int, str, str]:
        group = directory_reply(table, now_ms, 0).groups[0]
        return group.replacing, group.spare, group.absent

    table, held = RouteTable(expire_after_ms=100), (Turn.HELD, "sp0", "n2")
    table.register(master(term=1, replacing=Turn.HELD, spare="sp0", absent="n2"), 0)
    table.register(registration(term=1, sequence=2), 50)  # it was restarted: a follower now
    assert (turn(99), turn(100)) == (held, (Turn.NONE, "", ""))
    table.register(master(node="n1", term=2, replacing=Turn.HELD, spare="sp0", absent="n2"), 120)
    table.register(master(term=1, sequence=1), 130)  # late
    assert turn(140) == held
    table.register(master(node="n1", term=2, sequence=2), 150)
    assert turn(160) == (Turn.NONE, "", "")


def test_a_row_that_nobody_repeats_expires_and_the_fence_stays() -> None:
    table = RouteTable(expire_after_ms=100)
    table.register(master(term=5, topics={"t": 3}), 0)
    assert not table.expire(99)
    assert table.expire(100).groups == {"g0"}
    assert (route(table).leader_id, route(table).term, table.is_complete) == ("", 5, False)
    assert [queues.group for queues in topic(table, "t").queues] == ["g0"]  # a group that is down still has its queues
    assert not table.register(master(node="n1", term=4), 200).accepted
    assert table.register(master(term=5, topics={"t": 3}), 200).groups == {"g0"}
    assert (route(table).leader_id, table.is_complete) == ("n0", False)
    table.register(registration(node="n2", term=5, topics_version=1), 200)
    assert table.is_complete


def test_a_group_that_never_had_a_leader_is_forgotten_when_its_nodes_are_silent() -> None:
    """A group that was not added in the end must not keep the table incomplete; one of the cluster file, or that was led once, does."""
    table = RouteTable(["g0"], expire_after_ms=100)
    table.register(master(topics={"t": 1}), 0)
    table.register(registration(node="n1", topics_version=1), 0)
    assert table.is_complete
    table.register(registration("typo"), 0)
    table.register(registration("g1", term=3), 0)
    assert not table.is_complete
    table.register(master("g1", term=3, topics={"u": 1}, sequence=2), 50)
    assert table.expire(100).groups >= {"typo"}
    assert sorted(group.name for group in table.groups) == ["g0", "g1"]
    assert not route(table, "typo").found
    table.register(registration("typo"), 200)
    assert table.knows("typo")


def test_a_group_that_had_a_leader_once_stays_though_only_a_silent_follower_told_of_it() -> None:
    """All name servers were restarted, and the group lost its last nodes before one of them told its table of topics."""
    table = RouteTable(["g0"], expire_after_ms=100)
    table.register(master(topics={"t": 1}), 0)
    table.register(registration(node="n1", topics_version=1), 0)
    table.register(registration("g1", topics_version=4), 0)
    table.expire(100)
    assert table.knows("g1")
    assert not table.is_complete, "a topic that is not found may be one of g1"


def test_what_another_name_server_hears_keeps_a_row() -> None:
    table = RouteTable(expire_after_ms=100)
    told = master(term=5)
    table.register(told, 0)
    repeated = routes_pb2.RefreshedNode(group="g0", node_id="n0", term=5, started_at_ms=1, sequence=1)
    table.refresh(repeated, 90, age_ms=10)
    assert not table.expire(150)
    other = routes_pb2.RefreshedNode(group="g0", node_id="n0", term=5, started_at_ms=1, sequence=2)
    table.refresh(other, 170, age_ms=0)
    assert table.expire(180)
    table.refresh(repeated, 300, age_ms=200)
    assert route(table).leader_id == ""
    assert table.refresh(repeated, 300, age_ms=20).groups == {"g0"}
    assert route(table).leader_id == "n0"


def test_an_old_registration_from_elsewhere_raises_the_fence_and_leads_nothing() -> None:
    table = RouteTable(expire_after_ms=100)
    table.register(master(term=5), 1000, age_ms=500)
    assert (route(table).leader_id, route(table).term) == ("", 5)


def test_topics_only_by_a_higher_version() -> None:
    table = RouteTable()
    assert table.register(registration(term=1, master=True, topics_version=2), 0).wants_topics
    table.register(master(topics={"t": 4}, version=2, sequence=2), 0)
    table.register(master(topics={"t": 1}, version=1, sequence=3), 0)
    assert topic(table, "t").queues[0].write_queues == 4
    change = table.register(master(topics={"t": 4, "u": 1}, version=3, sequence=4), 0)
    assert change.topics == {"u"}
    assert table.register(master(topics={}, version=4, sequence=5), 0).topics == {"t", "u"}
    assert not topic(table, "t").found
    assert table.topic_count == 0


def test_a_name_server_is_complete_only_when_no_newer_master_can_be_unknown_to_it() -> None:
    """It has just started, and the first to register is a master of before that does not know it yet, or a follower that lags."""
    table = RouteTable()
    table.register(registration(node="n2", term=4, topics_version=1, has_topics=True), 0)
    assert not table.is_complete
    table.register(master(term=4, topics={"t": 1}, sequence=2), 0)
    assert table.is_complete  # n2 and n0 are of that term
    table.register(registration(node="n2", term=5, sequence=3), 0)
    assert not table.is_complete  # it may have voted for somebody
    table.register(master(node="n1", term=5, topics={"t": 1, "u": 1}, version=2), 0)
    assert table.is_complete


def test_a_topic_in_several_groups() -> None:
    table = RouteTable(["g0", "g1"])
    table.register(master("g1", "m0", topics={"t": 2}), 0)
    assert not table.is_complete
    table.register(master("g0", topics={"t": 4}), 0)
    for group in ("g0", "g1"):
        table.register(registration(group, "n1"), 0)
    assert not table.is_complete  # of g1 one voter of three was heard
    table.register(registration("g1", "n2"), 0)
    assert table.is_complete
    assert [(queues.group, queues.write_queues) for queues in topic(table, "t").queues] == [("g0", 4), ("g1", 2)]
    assert table.groups_of("t") == ["g0", "g1"]


def test_a_draining_group_takes_no_messages() -> None:
    table = RouteTable()
    table.register(master(topics={"t": 2}), 0)
    change = table.register(master(topics={"t": 2}, sequence=2, state="draining", state_version=1), 0)
    assert change.topics == {"t"}
    assert [queues.perm for queues in topic(table, "t").queues] == [4]
    table.register(master(topics={"t": 2}, sequence=3, state="active", state_version=2), 0)
    assert [queues.perm for queues in topic(table, "t").queues] == [6]


def test_a_removed_group_is_gone_until_another_one_has_its_name() -> None:
    table = RouteTable()
    table.register(master(topics={"t": 2}, group_epoch=10), 0)
    before = table.directory_version
    change = table.register(master(sequence=2, state="removed", state_version=1, group_epoch=10), 0)
    assert (change.groups, change.topics) == ({"g0"}, {"t"})
    assert (route(table).found, topic(table, "t").found) == (False, False)
    assert (route(table).state, route(table, "g9").state) == ("removed", "")
    assert table.directory_version != before
    for late in (master(term=9, topics={"t": 2}, sequence=9, group_epoch=10), master(term=99, topics={"t": 2})):
        assert not table.register(late, 0).accepted
    assert table.register(master(term=1, topics={"t": 1}, group_epoch=11), 0).accepted
    assert (route(table).leader_id, topic(table, "t").queues[0].write_queues) == ("n0", 1)
    assert not table.register(master(term=50, group_epoch=10, sequence=99), 0).accepted


@pytest.mark.parametrize("old_term", [1, 50])
def test_a_group_that_was_made_anew_is_told_from_the_earlier_one_by_its_epoch(old_term: int) -> None:
    old = [master(term=old_term, topics={"old": 2}, version=9), registration(node="n1", term=old_term, sequence=7)]
    new = [master(term=2, node="n2", topics={"t": 1}, version=3, group_epoch=11), registration(node="n1", term=2, group_epoch=11)]
    late = registration(node="n0", term=2, sequence=9)
    for told in (*old, *new, late, *old), (*new, *old, late, *new), (*new, late, *old):
        table = RouteTable()
        for each in told:
            table.register(each, 0)
        assert (route(table).leader_id, route(table).term) == ("n2", 2)
        assert (topic(table, "t").found, topic(table, "old").found) == (True, False)
        assert not table.register(old[0], 0).accepted


def test_an_epoch_that_a_group_gets_later_changes_nothing_of_its_routes() -> None:
    table = RouteTable()
    table.register(master(topics={"t": 2}, version=3), 0)
    before = route(table).version
    for told in (registration(node="n1", topics_version=3, group_epoch=5), master(sequence=2, topics={"t": 2}, version=3, group_epoch=5)):
        table.register(told, 0)
        assert (route(table).version, topic(table, "t").found) == (before, True)


def test_members_by_the_newest_configuration() -> None:
    table = RouteTable()
    table.register(master(term=2, members=members("n0", "n1", "n2", "n3"), configuration_index=8), 0)
    table.register(registration(node="n1", term=2, configuration_index=5), 0)
    assert [node.id for node in route(table).nodes] == ["n0", "n1", "n2", "n3"]


def test_a_hint_of_the_own_replica_never_raises_the_fence() -> None:
    table = RouteTable()
    table.register(master(term=2), 0)
    assert table.hint("g0", 3, "n1").groups == {"g0"}
    assert (route(table).leader_id, route(table).leader_address, route(table).term) == ("n1", "g0-n1:1", 3)
    assert not table.hint("g0", 3, "n1")
    table.register(master(term=3, node="n2"), 0)
    assert route(table).leader_id == "n2"
    table.register(registration(term=3, node="n2", sequence=2, resigned=True), 0)
    table.hint("g0", 3, "n2")
    assert route(table).leader_id == ""  # it says so itself


def test_a_leader_of_a_term_that_is_over_is_not_named_again_while_the_new_one_is_not_known() -> None:
    """Scenario groups-embedded, seed 2."""
    table = RouteTable()
    table.register(master(term=1), 0)
    table.hint("g0", 2, "n1")
    assert route(table).leader_id == "n1"
    table.hint("g0", 3, "")
    assert (route(table).leader_id, route(table).term) == ("", 1)
    table.register(master(term=3, node="n2"), 0)
    assert route(table).leader_id == "n2"


def test_spare_nodes() -> None:
    table = RouteTable(expire_after_ms=100)
    empty = table.directory_version
    assert table.register(registration("", "s0", term=0, members=[]), 0).accepted
    assert [row.id for row in table.spares] == ["s0"]
    assert table.directory_version != empty
    assert table.topic_count == 0
    assert table.register(registration("g0", "s0"), 10).groups
    assert table.spares == []


def test_changes_of_a_table_count_on_what_they_build_on_only() -> None:
    table = RouteTable()
    change = table.register(master(topics={"u": 1}, version=9, sequence=1, topics_base=8), 0)
    assert (change.topics, change.wants_topics) == (set(), True)  # nothing is known yet
    table.register(master(topics={"t": 1, "u": 1}, version=5, sequence=2), 0)
    change = table.register(master(topics={"v": 2}, version=9, sequence=3, topics_base=7, removed_topics=["u"]), 0)
    assert (change.topics, change.wants_topics) == (set(), True)  # what happened between 5 and 7?
    change = table.register(master(topics={"v": 2}, version=9, sequence=4, topics_base=4, removed_topics=["u"]), 0)
    assert (change.topics, change.wants_topics) == ({"u", "v"}, False)
    assert sorted(table.topics) == ["t", "v"]
    assert not table.register(master(topics={}, version=8, sequence=5, topics_base=5, removed_topics=["t"]), 0).topics


def test_a_spare_node_that_was_started_again_with_an_earlier_clock_is_heard_once_its_earlier_start_has_expired() -> None:
    table = RouteTable(["g0"])
    told = routes_pb2.Registration(cluster="c", node_id="sp0", address="sp0:1", started_at_ms=9_000, sequence=1)
    table.register(told, 0)
    told.started_at_ms = 1_000
    table.register(told, 1_000)
    table.expire(EXPIRE_AFTER_MS + 1)
    assert table.spares == []
    table.register(told, EXPIRE_AFTER_MS + 2)
    assert [row.id for row in table.spares] == ["sp0"]
