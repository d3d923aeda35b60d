"""The six allocation strategies against golden tables worked out by hand from their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_client.consumer.allocation import (
    MessageQueue,
    Strategy,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
    strategy,
)
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import is_node_name


def queues(count: int, group: str = "g0") -> list[MessageQueue]:
    return [MessageQueue("orders", group, number) for number in range(count)]


def shares(allocate: Strategy, all_queues: list[MessageQueue], members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in allocate(member, all_queues, members)] for member in members]


# (queues, members) -> the queue numbers of c0, c1, ...
AVERAGELY = [
    (6, 3, [[0, 1], [2, 3], [4, 5]]),
    (5, 2, [[0, 1, 2], [3, 4]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (4, 6, [[0], [1], [2], [3], [], []]),
    (1, 1, [[0]]),
    (0, 2, [[], []]),
]
BY_CIRCLE = [
    (6, 3, [[0, 3], [1, 4], [2, 5]]),
    (5, 2, [[0, 2, 4], [1, 3]]),
    (8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    (2, 3, [[0], [1], []]),
]


@pytest.mark.parametrize(("queue_count", "member_count", "expected"), AVERAGELY)
def test_averagely(queue_count: int, member_count: int, expected: list[list[int]]) -> None:
    assert shares(averagely, queues(queue_count), [f"c{n}" for n in range(member_count)]) == expected


@pytest.mark.parametrize(("queue_count", "member_count", "expected"), BY_CIRCLE)
def test_averagely_by_circle(queue_count: int, member_count: int, expected: list[list[int]]) -> None:
    assert shares(averagely_by_circle, queues(queue_count), [f"c{n}" for n in range(member_count)]) == expected


def test_config_gives_exactly_the_preset() -> None:
    preset = [queues(4)[2], queues(4)[0]]
    assert by_config(preset)("anyone", queues(4), ["a", "b"]) == preset


def test_machine_room_takes_only_its_rooms_and_deals_the_rest_to_the_first() -> None:
    near = queues(5, "east-b0")
    far = queues(3, "west-b1-east")
    nowhere = queues(2, "plain")
    assert all(is_node_name(queue.replica_group) for queue in near + far + nowhere)
    assert shares(by_machine_room(["east"]), near + far + nowhere, ["c0", "c1"]) == [[0, 1, 4], [2, 3]]
    assert shares(by_machine_room(["north"]), near, ["c0", "c1"]) == [[], []]
    assert shares(strategy("MACHINE_ROOM", {"rooms": "north,plain"}), near + nowhere, ["c0", "c1"]) == [[0], [1]]


def test_machine_room_nearby_keeps_rooms_together_and_shares_rooms_without_members() -> None:
    east, west, north = queues(2, "east-b0"), queues(2, "west-b0"), queues(3, "north-b0")
    allocate = machine_room_nearby(averagely)
    members = ["east-1", "west-1", "west-2"]
    everything = east + west + north
    assert allocate("east-1", everything, members) == [*east, north[0]]
    assert allocate("west-1", everything, members) == [west[0], north[1]]
    assert allocate("west-2", everything, members) == [west[1], north[2]]


def test_consistent_hash_moves_few_queues_when_a_member_joins() -> None:
    allocate = consistent_hash(10)
    all_queues = queues(64)
    before = {queue: member for member in ("a", "b", "c") for queue in allocate(member, all_queues, ["a", "b", "c"])}
    after = {queue: member for member in ("a", "b", "c", "d") for queue in allocate(member, all_queues, ["a", "b", "c", "d"])}
    moved = [queue for queue in all_queues if before[queue] != after[queue]]
    assert moved
    assert all(after[queue] == "d" for queue in moved)


@given(st.integers(0, 40), st.integers(1, 9), st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM_NEARBY"]))
def test_every_queue_has_exactly_one_owner_whatever_the_order_given(queue_count: int, member_count: int, name: str) -> None:
    allocate = strategy(name)
    all_queues, members = queues(queue_count), [f"c-{n}" for n in range(member_count)]
    owned = [queue for member in members for queue in allocate(member, all_queues[::-1], members[::-1])]
    assert sorted(owned) == all_queues


def test_a_member_that_is_not_listed_gets_nothing() -> None:
    for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM_NEARBY", "MACHINE_ROOM"):
        assert strategy(name)("stranger", queues(4), ["a"]) == []


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="'LUCK'"):
        strategy("LUCK")
