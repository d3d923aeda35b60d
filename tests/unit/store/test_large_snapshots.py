"""Snapshots of a large state: encoded in pieces between which the store goes on, and still of one moment."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

import store.durability.snapshots
import store.state.json_pieces
from dledger_wire.batches.batch import Sequence64
from store.commands.consumer_groups import CommitOffsets, OffsetRow
from store.durability.snapshots import Snapshots
from store.state.json_pieces import encode, pieces
from store.state.sequences import SequenceTable
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run

KEY = ("t", 0)


def some_data(draw: random.Random, depth: int) -> Any:
    kind = draw.random()
    if not depth or kind < 0.2:
        return draw.choice([0, -7, 1 << 60, "", 'ä"\\\n', True, None, 1.5])
    values = [some_data(draw, depth - 1) for _ in range(draw.choice([0, 1, 3, 20]))]
    if kind < 0.6:
        return values
    return {f"key {number} {draw.choice('é,:')}": value for number, value in enumerate(values)}


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_are_the_same_bytes(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    for limit in (1, 4, 50):
        monkeypatch.setattr(store.state.json_pieces, "PIECE_VALUES", limit)
        for data in (
            [],
            {},
            some_data(draw, 4),
            [some_data(draw, 3) for _ in range(30)],
            {"a": {"b": {str(n): [n] * 9 for n in range(99)}}},
        ):
            assert b"".join(pieces(data)) == encode(data)
    assert len(list(pieces({str(number): [1, 2, 3] for number in range(100)}))) > 5


@pytest.mark.parametrize("piece", [1, 200, 1 << 20])
def test_what_is_applied_while_a_snapshot_is_encoded_is_not_in_it(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(store.state.json_pieces, "PIECE_VALUES", piece)
    monkeypatch.setattr(store.state.json_pieces, "PIECE_BYTES", piece)

    async def one_more(rig: StoreRig, number: int) -> None:
        producer, sequence = number % 20 + 1, number // 20
        await rig.send(batch_of("t", 0, [b"x"], sequence=Sequence64(producer, 0, sequence)))
        await rig.command(CommitOffsets(group=f"g{number % 7}", offsets=(OffsetRow("t", 0, number + 1),)))

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic()
        for number in range(60):
            await one_more(rig, number)
        before = json.loads(json.dumps(rig.state(), default=str, skipkeys=True))
        saving, number = asyncio.ensure_future(rig.save()), 60
        await asyncio.sleep(0)
        while not saving.done():
            await one_more(rig, number)
            number += 1
        assert await saving
        assert piece > 200 or number > 63, "nothing was applied meanwhile"
        found = (await Snapshots(disk).load())[0]
        assert found.index == before["index"]
        assert found.sections == before["sections"]
        assert found.sequence_rows == before["sequences"]
        after = rig.state()
        again = await StoreRig.open(disk.after_kill())
        assert again.state() == after
        await again.close()
        await rig.close()

    run(scenario)


def test_a_captured_table_stays_as_it_was_and_what_did_not_change_is_encoded_once() -> None:
    table = SequenceTable(1000, 1 << 40)
    for number in range(1, 6):
        table.store(KEY, Sequence64(number, 0, 0), 1, number, 1)
    assert table.register(0, 9, 1, "named") == (9, 0)
    table.store(("u", 1), Sequence64(9, 0, 0), 1, 0, 1)
    first, rows = table.capture(), table.dump()
    table.store(KEY, Sequence64(1, 0, 1), 1, 2, 2)  # goes on
    table.store(KEY, Sequence64(2, 1, 0), 1, 9, 2)  # a new epoch
    assert table.register(0, 10, 2, "named") == (9, 1)
    table.forget_topic("u")
    changed = table.dump()
    assert [json.loads(each.encoded()) for each in first] == rows
    assert [json.loads(each.encoded()) for each in table.capture()] == changed != rows
    same = {each.producer_id: each.encoded() for each in table.capture()}
    table.store(KEY, Sequence64(3, 0, 1), 1, 100, 3)
    table.forget_topic("nobody's")
    for each in table.capture():
        assert (each.encoded() is same[each.producer_id]) == (each.producer_id != 3)
