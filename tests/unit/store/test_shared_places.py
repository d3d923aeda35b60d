"""A bounded table that owners share: the one with the most entries loses its own, and replicas agree on which."""

from __future__ import annotations

import json
import random

from dledger_wire.batches.batch import Sequence64
from store.state.sequences import SequenceTable
from store.state.shared_places import SharedPlaces

LIMIT = 20


def stores(table: SequenceTable, producer_id: int, epoch: int = 0, *, first: int = 0, at_ms: int = 1) -> None:
    table.store(("payments", 0), Sequence64(producer_id, epoch, first), 1, first, at_ms)


def test_the_owner_with_the_most_entries_loses_its_longest_unused() -> None:
    places: SharedPlaces[int] = SharedPlaces(4)
    for key, owner in ((1, "alice"), (2, "mallory"), (3, "mallory"), (4, "mallory")):
        places.use(key, owner)
        assert places.surplus() is None
    places.use(2, "mallory")
    places.use(5, "mallory")
    assert places.surplus() == 3
    places.remove(3, "mallory")
    assert (places.surplus(), len(places), list(places)) == (None, 4, [1, 4, 2, 5])


def test_minor_entries_go_first_but_never_the_newest() -> None:
    places: SharedPlaces[int] = SharedPlaces(2)
    places.use(1, "", minor=True)
    places.use(2, "")
    places.use(3, "", minor=True)
    assert places.surplus() == 1
    places.remove(1, "")
    places.use(4, "")
    assert places.surplus() == 2
    places.use(3, "")  # an ordinary one from now on
    assert list(places) == [2, 4, 3]


def test_a_user_with_many_producers_pushes_out_nobody_else() -> None:
    table = SequenceTable(LIMIT, 1_000)
    assert table.register(0, 1, 0, "bank-1", "bank") == (1, 0)
    stores(table, 1)
    assert table.register(0, 2, 0, owner="bank") == (2, 0)
    stores(table, 2)
    for fresh in range(10, 10 + 5 * LIMIT):
        table.register(0, fresh, 1, owner="mallory")
        table.register(0, 1000 + fresh, 1, f"m-{fresh}", "mallory")
        stores(table, 1000 + fresh)
    assert len(table) == 2 * LIMIT
    assert table.register(0, 5000, 2, "bank-1", "bank") == (1, 1)
    state = table.get(1)
    assert state is not None
    assert (state.stored(), state.is_incomplete) == ({("payments", 0): 1}, False)
    assert table.register(2, 5001, 2, owner="bank") == (2, 1)


def test_producers_without_a_name_push_out_none_with_one() -> None:
    table = SequenceTable(LIMIT, 1_000)
    table.register(0, 1, 0, "bank-1")
    stores(table, 1)
    for fresh in range(10, 10 + 5 * LIMIT):
        table.register(0, fresh, 1)
        stores(table, fresh)
    assert table.register(0, 5000, 2, "bank-1") == (1, 1)


def test_producers_that_stored_nothing_are_forgotten_first() -> None:
    table = SequenceTable(LIMIT, 1_000)
    table.register(0, 1, 0)
    stores(table, 1)
    for fresh in range(10, 10 + 5 * LIMIT):
        table.register(0, fresh, 1)
    assert table.get(1) is not None


def test_the_next_start_of_a_forgotten_name_is_incomplete_for_good() -> None:
    table = SequenceTable(LIMIT, 1_000)
    table.register(0, 1, 0, "bank-1")
    stores(table, 1)
    table.register(0, 2, 0, "silent")  # stored nothing, so nothing is forgotten
    table.register(0, 3, 5_000, "other")
    assert table.get(1) is None
    assert table.get(2) is None
    table.load(json.loads(json.dumps(table.dump())))
    for fresh, name, is_incomplete in ((4, "bank-1", True), (5, "silent", False), (6, "never", False)):
        assert table.register(0, fresh, 5_001, name) == (fresh, 0)
        state = table.get(fresh)
        assert state is not None
        assert state.is_incomplete is is_incomplete
    table.register(0, 7, 5_002, "bank-1")
    state = table.get(4)
    assert state is not None
    assert (state.epoch, state.is_incomplete) == (1, True)
    table.register(0, 8, 50_000, "other")  # silent once more, without having stored anything since
    assert table.register(0, 9, 50_001, "bank-1") == (9, 0)
    state = table.get(9)
    assert state is not None
    assert state.is_incomplete


def test_a_replica_that_restarts_from_its_snapshot_forgets_the_same() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        kept, restarted = SequenceTable(5, 200), SequenceTable(5, 200)
        at_ms = 0
        for step in range(1, 300):
            at_ms += draw.choice((1, 1, 1, 30))
            name, owner = draw.choice(("", "", "a", "b", "c", "d", "e", "f", "g")), draw.choice(("", "u", "v"))
            producer_id, topic = draw.randrange(1, step + 1), draw.choice(("t", "u"))
            kind = draw.randrange(8)
            for table in (kept, restarted):
                if kind < 3:
                    table.register(producer_id if kind == 2 else 0, step, at_ms, name, owner)
                elif kind < 7:
                    state = table.get(producer_id)
                    made_by = Sequence64(producer_id, state.epoch if state is not None else 0, 0)
                    table.store((topic, 0), made_by, 1, step, at_ms)
                else:
                    table.forget_topic(topic)
            if draw.random() < 0.1:
                restarted.load(json.loads(json.dumps(restarted.dump())))
            assert restarted.dump() == kept.dump(), (seed, step)
            assert len(kept) <= 10
