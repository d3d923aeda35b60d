"""Replicated commands and snapshot sections as bytes: an old log and an old snapshot are read for ever, so neither may change.

``golden/commands.json`` holds one record of every shape that is proposed; ``golden/sections.json`` what all of them together make of the
state.  A change of this test's files is a change of a format on disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dledger.runtime.env import Buffer
from dledger_wire.batches.batch import CommandView, Sequence64, encode_command, iter_records
from store.state.json_pieces import encode
from store.state.sequences import SequenceTable
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, run

GOLDEN = Path(__file__).parent / "golden"
FIRST_MS = 1_700_000_000_000

# One after the other, so that every command finds what it changes.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "create_topic by an operator",
        "create_topic",
        {"name": "orders", "read_queues": 8, "write_queues": 8, "perm": 0, "if_not_exists": False},
    ),
    ("create_topic by a producer", "create_topic", {"name": "auto", "read_queues": 4, "write_queues": 4, "if_not_exists": True}),
    (
        "create_topic by a group",
        "create_topic",
        {"name": "%RETRY%audit", "read_queues": 1, "write_queues": 1, "perm": 6, "if_not_exists": True},
    ),
    ("create_topic to be deleted", "create_topic", {"name": "gone", "read_queues": 1, "write_queues": 1, "perm": 4, "if_not_exists": True}),
    ("update_topic", "update_topic", {"name": "orders", "read_queues": 0, "write_queues": 6, "perm": 6, "force": False}),
    ("update_topic with force", "update_topic", {"name": "auto", "read_queues": 2, "write_queues": 2, "perm": 0, "force": True}),
    ("delete_topic", "delete_topic", {"name": "gone", "read_queues": 0, "write_queues": 0, "perm": 0}),
    (
        "put_subscription_group",
        "put_subscription_group",
        {"groupName": "audit", "retryMaxTimes": 0, "retryQueueNums": 3, "consumeEnable": False},
    ),
    ("put_subscription_group of one setting", "put_subscription_group", {"groupName": "left", "retryMaxTimes": 5}),
    ("put_subscription_group to be deleted", "put_subscription_group", {"groupName": "other", "consumeEnable": True}),
    ("delete_subscription_group", "delete_subscription_group", {"groupName": "other"}),
    (
        "lock_queues",
        "lock_queues",
        {"group": "ordered", "owner": "session-1", "client": "büro@1", "queues": [["orders", 0, 0], ["orders", 1, 0]]},
    ),
    ("unlock_queues", "unlock_queues", {"group": "ordered", "owner": "session-1", "queues": [["orders", 1, 2016]]}),
    ("unlock_queues of a session", "unlock_queues", {"group": "ordered", "owner": "session-2", "queues": []}),
    ("commit_offsets", "commit_offsets", {"group": "audit", "offsets": [["orders", 5, 17], ["orders", 7, 0]]}),
    (
        "commit_offsets of a session",
        "commit_offsets",
        {"group": "audit", "offsets": [["orders", 0, 20, 48, 2016], ["orders", 1, 1, None, 9]]},
    ),
    ("commit_offsets to begin", "commit_offsets", {"group": "new", "offsets": [["orders", 0, 5], ["auto", 1, 9]], "initial": True}),
    ("reset_offsets", "reset_offsets", {"group": "audit", "offsets": [["orders", 0, 3]]}),
    ("commit_offsets to be deleted", "commit_offsets", {"group": "left", "offsets": [["auto", 0, 1]]}),
    ("delete_offsets", "delete_offsets", {"group": "left"}),
    ("advance_delay", "advance_delay", {"level": 3, "offset": 12}),
    ("advance_timers", "advance_timers", {"low": 1, "seen": 9, "done_ms": 1_700_000_000_123, "done_offset": 4, "held": (2, 3)}),
    ("end_transactions", "end_transactions", {"commit": [[0, 2], [5, 6]], "rollback": [[2, 3]], "park": [[8, 9]]}),
    ("end_transactions gone with the head", "end_transactions", {"ended": [[3, 5]]}),
    ("check_transactions", "check_transactions", {"runs": [[6, 8]]}),
    ("sent_back", "sent_back", {"group": "new", "topic": "orders", "queue_id": 0, "runs": [[6, 8], [9, 10]]}),
    ("redriven", "redriven", {"group": "audit", "offset": 7}),
    ("init_producer", "init_producer", {"producer_id": 0, "name": "producers"}),
    ("init_producer with a name", "init_producer", {"producer_id": 0, "name": "", "stable_id": "writer-1"}),
]


class Raw:
    """A payload of bytes as they are."""

    def __init__(self, record: bytes) -> None:
        self.size_bytes = len(record)
        self._record = record

    def seal(self, _pos: int, _index: int, _term: int) -> Sequence[Buffer]:
        return (self._record,)


def record_of(number: int) -> bytes:
    _, kind, arguments = CASES[number]
    return encode_command(kind, {**arguments, "at_ms": FIRST_MS + number})


def golden_records() -> dict[str, dict[str, str]]:
    return dict(json.loads((GOLDEN / "commands.json").read_text()))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, _, _ in CASES])
def test_a_command_has_the_bytes_it_always_had(number: int) -> None:
    name = CASES[number][0]
    golden = golden_records()[name]
    assert record_of(number).hex() == golden["record"]
    ((view,),) = [list(iter_records(bytes.fromhex(golden["record"])))]
    assert isinstance(view, CommandView)
    assert json.loads(golden["body"]) == {"kind": view.kind, **view.arguments}


def test_every_golden_record_has_its_case() -> None:
    assert list(golden_records()) == [name for name, _, _ in CASES]


async def sections_of(records: Sequence[bytes]) -> dict[str, str]:
    """What a store makes of these records: each section's file."""
    rig = await StoreRig.open(CrashDisk())
    rig.promise()
    for record in records:
        rig.append(Raw(record))
        await rig.commit()
    snapshot = rig.store._capture()
    sections = {name: encode(data).decode() for name, data in snapshot.sections.items()}
    sections["applied.json, producers"] = encode(rig.store.sequences.dump()).decode()
    await rig.close()
    return sections


def test_every_section_of_a_snapshot_has_the_bytes_it_always_had() -> None:
    async def scenario() -> None:
        records = [bytes.fromhex(golden["record"]) for golden in golden_records().values()]
        assert await sections_of(records) == json.loads((GOLDEN / "sections.json").read_text())

    run(scenario)


def sequence_rows() -> str:
    """Producers that stored something: one without a name, one with a name in its second epoch."""
    table = SequenceTable(10, 1 << 60)
    unnamed, _ = table.register(0, 500, FIRST_MS)
    table.store(("orders", 0), Sequence64(unnamed, 0, 0), 3, 10, FIRST_MS + 1)
    table.store(("orders", 0), Sequence64(unnamed, 0, 3), 2, 13, FIRST_MS + 2)
    table.store(("orders", 0), Sequence64(unnamed, 0, 5), 1, 20, FIRST_MS + 3)
    named, _ = table.register(0, 600, FIRST_MS + 4, "writer-1")
    table.store(("orders", 1), Sequence64(named, 0, 0), 4, 0, FIRST_MS + 5)
    table.register(0, 700, FIRST_MS + 6, "writer-1")
    table.store(("auto", 1), Sequence64(named, 1, 0), 1, 0, FIRST_MS + 7)
    return encode(table.dump()).decode()


def test_producers_with_messages_have_the_rows_they_always_had() -> None:
    assert sequence_rows() == (GOLDEN / "producers.json").read_text().strip()
