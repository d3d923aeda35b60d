"""What a node counts of its requests and readers."""

from __future__ import annotations

from broker.support.measures import GIVEN_MS, MAX_GIVEN, Given


def test_what_was_given_and_not_committed_is_in_flight() -> None:
    given, committed = Given(), {("readers", "t", 0): 3}
    given.give("readers", "t", 0, 10, 0)
    given.give("readers", "t", 1, 1_000_000, 0)  # it begins at the end, and has committed nothing there
    assert given.inflight(lambda *place: committed.get(place), 1) == {("t", "readers"): 7}


def test_what_was_given_long_ago_or_to_very_many_is_forgotten() -> None:
    given = Given()
    given.give("old", "t", 0, 10, 0)
    given.give("new", "t", 0, 10, GIVEN_MS + 1)
    assert given.inflight(lambda *_: 0, GIVEN_MS + 1) == {("t", "new"): 10}
    for queue_id in range(MAX_GIVEN + 5):
        given.give("many", "t", queue_id, 1, GIVEN_MS + 2)
    assert given.inflight(lambda *_: 0, GIVEN_MS + 2) == {("t", "many"): MAX_GIVEN}
