"""Whose a producer id is: kept with it, through its epochs and snapshots."""

from __future__ import annotations

import json

from dledger_wire.batches.batch import Sequence64
from store.commands.producers import InitProducer
from store.state.sequences import SequenceTable


def table() -> SequenceTable:
    return SequenceTable(max_producers=10, expiry_ms=1_000)


def test_a_producer_without_a_name_belongs_to_its_user_in_every_epoch_and_after_a_snapshot() -> None:
    known = table()
    assert known.register(0, 7, 100, owner="alice") == (7, 0)
    known.store(("t", 0), Sequence64(7, 0, 0), 1, 0, 101)
    assert known.register(7, 9, 102, owner="mallory") == (7, 1)  # the check comes before: what is registered stays
    restored = table()
    restored.load(json.loads(json.dumps(known.dump())))
    for each in (known, restored):
        state = each.get(7)
        assert state is not None
        assert (state.name, state.owner, state.epoch) == ("", "alice", 1)
        assert each.id_of("") == 0


def test_one_with_a_name_keeps_the_user_that_registered_it_first() -> None:
    known = table()
    known.register(0, 7, 100, "writer", "alice")
    known.register(0, 8, 101, "writer", "bob")
    state = known.get(7)
    assert state is not None
    assert (state.name, state.owner, state.epoch) == ("writer", "alice", 1)


def test_the_command_carries_the_owner_only_where_there_is_one() -> None:
    owned = InitProducer(producer_id=3, owner="alice")
    assert InitProducer.decode(json.loads(json.dumps(owned.encode()))) == owned
    assert "owner" not in InitProducer(producer_id=3).encode()
