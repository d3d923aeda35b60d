"""What is found in a RocketMQ store, and what is said of one that is damaged."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_offline.rocketmq.commit_log import StoredMessage
from dledger_offline.rocketmq.folder import StoreFolder, parse_fastjson
from dledger_offline.rocketmq.survey import Survey, survey
from dledger_wire.errors import ConfigError
from tests.unit.cli.rocketmq.old_store import BLANK, FILE_BYTES, HALF, IPV6, OP, SCHEDULE, STORED_MS, V1, OldStore, unique_id

FIRST_FILE = "commitlog/00000000000000000000"


def found_in(root: Path) -> Survey:
    return survey(StoreFolder(root))[0]


def filled(root: Path, count: int = 200, *, wrapped: bool = False) -> OldStore:
    store = OldStore(root, wrapped=wrapped)
    for number in range(count):
        store.put("orders", number % 2, b"order %d" % number, unique=unique_id(number), keys=f"o-{number}", tags="paid")
    return store


@pytest.mark.parametrize("wrapped", [False, True])
def test_every_message_of_every_file_is_counted(tmp_path: Path, wrapped: bool) -> None:
    store = filled(tmp_path, wrapped=wrapped)
    store.put("orders", 0, b"wide", hosts=(IPV6, IPV6))
    found = found_in(store.write())
    assert len(store.log) > 2 * FILE_BYTES
    assert {key: (each.first, each.end, each.count) for key, each in found.queues.items()} == {
        ("orders", 0): (0, 101, 101),
        ("orders", 1): (0, 100, 100),
    }
    assert (found.damage, found.notes, dict(found.left_out)) == ([], [], {})


def test_messages_that_no_queue_has_yet_are_there(tmp_path: Path) -> None:
    """The broker was killed before it added them to the consume queue."""
    store = filled(tmp_path, 4)
    store.put("orders", 0, b"not dispatched", dispatched=False)
    assert found_in(store.write()).queues["orders", 0].end == 3


def test_what_a_dledger_log_has_behind_its_commit_index_is_left_out(tmp_path: Path) -> None:
    store = filled(tmp_path, 4, wrapped=True)
    store.delayed("orders", 0, b"late", level=3, due_ms=STORED_MS, unique=unique_id(9))
    for number in range(3):
        store.put("orders", 0, b"tail %d" % number, dispatched=False)
    store.committed_index = 5
    found = found_in(store.write())
    assert found.queues["orders", 0].end == 3
    assert found.notes == ["2 entries at the end of the DLedger log are left out: they are not known to be committed"]


def test_a_topic_that_was_created_again_has_only_its_own_messages(tmp_path: Path) -> None:
    store = filled(tmp_path, 6)
    store.queues.clear()
    store.put("orders", 0, b"of the second one")
    found = found_in(store.write())
    assert {key: each.count for key, each in found.queues.items()} == {("orders", 0): 1}
    assert dict(found.left_out) == {"of a topic that was deleted and created again": 6}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    store = OldStore(tmp_path, topics={"orders": (1, 6), "%RETRY%audit": (1, 6)}, timers_read_ms=STORED_MS)
    store.offsets = {"%RETRY%audit@audit": {0: 2}, f"{HALF}@CID_RMQ_SYS_TRANS": {0: 1}}
    store.delays = {3: 1}
    for number in range(3):
        store.put("%RETRY%audit", 0, b"again", RETRY_TOPIC="orders", reconsume_times=1)
        store.put(HALF, 0, b"half", unique=unique_id(number), REAL_TOPIC="orders", REAL_QID="0")
        store.delayed("orders", 0, b"late", level=3, due_ms=STORED_MS + 9, unique=unique_id(number))
    store.put(OP, 0, b"1,", tags="d")
    store.put("deleted", 0, b"x")
    late = STORED_MS + 90_000
    store.timed("orders", 0, b"read", due_ms=STORED_MS - 1, unique=unique_id(10))
    store.timed("orders", 0, b"stored again", due_ms=late, unique=unique_id(11))
    store.timed("orders", 0, b"recalled", due_ms=late, unique=unique_id(12))
    store.timed("orders", 0, b"stored again", due_ms=late, unique=unique_id(11), TIMER_ROLL_TIMES="1")
    store.timed("orders", 0, b"", due_ms=late, unique=unique_id(13), TIMER_DEL_UNIQKEY=f"orders+{unique_id(12)}")
    store.timed("orders", 0, b"too late", due_ms=STORED_MS + 41 * 86_400_000, unique=unique_id(14))
    store.timed("deleted", 0, b"no topic", due_ms=late, unique=unique_id(15))
    found = found_in(store.write())
    assert found.queues.keys() == {("%RETRY%audit", 0)}
    assert found.queues["%RETRY%audit", 0].count == 1
    assert (found.delayed, found.open_transactions, found.delayed_topics) == (3, 1, {"orders"})
    assert dict(found.left_out) == {
        "retries that their group has read": 2,
        "of system topics and deleted topics": 1,
        "delayed, for a topic that is deleted": 1,
        "delayed for more than 40 days": 1,
    }


def damaged(root: Path, at: int, data: bytes, file: str = FIRST_FILE) -> list[str]:
    path = root / file
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return [text.replace(f"{root}/", "") for text in found_in(root).damage]


def test_a_wrong_body_costs_one_message(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    at = store.put("orders", 1, b"order 3")
    store.put("orders", 1, b"order 4")
    (text, gap) = damaged(store.write(), at + 88, b"ORDER")
    assert text.startswith(f"{FIRST_FILE} at {at}: message 1 of orders/1: body has CRC 0x")
    assert gap == f"orders/1: message 2 follows at {at + 104} in the log, expected message 1"
    found = found_in(tmp_path)
    assert (found.queues["orders", 1].count, found.damages) == (2, 2)


@pytest.mark.parametrize(
    ("place", "data", "text"),
    [
        (4, struct.pack(">I", V1 ^ 1), "magic 0xdaa320a6, expected 0xdaa320a7"),
        (0, struct.pack(">i", 1 << 20), "message of 1048576 bytes, expected 91 to "),
        (0, struct.pack(">i", 90), "message of 90 bytes, expected 91 to "),
        (84, struct.pack(">i", 1 << 20), "lengths of body, topic and properties do not add up"),
        (84, struct.pack(">i", -5), "lengths of body, topic and properties do not add up"),
        (28, struct.pack(">q", 5), "message says position 5, expected "),
        (36, struct.pack(">i", 0x80), "is a batch of queue.type=BatchCQ, expected single messages"),
        (0, b"\xff" * 200, "magic 0xffffffff"),
        (0, bytes(8), "the end of the log is missing"),
    ],
)
def test_damage_is_said_in_one_line(tmp_path: Path, place: int, data: bytes, text: str) -> None:
    store = filled(tmp_path, 5)
    at = store.put("orders", 1, b"the last one", unique=unique_id(9))
    assert text in damaged(store.write(), at + place, data)[0]


@pytest.mark.parametrize(
    ("place", "data", "text"),
    [
        (0, struct.pack(">i", 7), "magic 7, expected 1"),
        (4, struct.pack(">i", 1 << 20), "entry of 1048576 bytes, expected "),
        (24, struct.pack(">q", 5), "entry says position 5, expected "),
        (52, struct.pack(">I", BLANK), "magic 0xcbd43194, expected 0xdaa320a7"),
    ],
)
def test_damage_of_an_entry_is_said_in_one_line(tmp_path: Path, place: int, data: bytes, text: str) -> None:
    store = filled(tmp_path, 5, wrapped=True)
    at = store.put("orders", 1, b"the last one") - 48
    assert text in damaged(store.write(), at + place, data, "dledger-n0/data/00000000000000000000")[0]


@pytest.mark.parametrize("wrapped", [False, True])
def test_whatever_is_damaged_no_body_is_another_one_and_the_end_is_reached(tmp_path: Path, wrapped: bool) -> None:
    random = Random(7)
    store = filled(tmp_path, 12, wrapped=wrapped)
    file = next(store.write().glob("*/**/00000000000000000000"))
    whole = file.read_bytes()
    known = {b"order %d" % number for number in range(12)}
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(store.log))
            content[at : at + 8] = random.choice([bytes(8), b"\xff" * 8, random.randbytes(random.randint(1, 8))])
        file.write_bytes(content[: random.randint(8, len(content))])
        found = list(StoreFolder(tmp_path).log.read(dispatched=1 << 40))
        assert all(before.end <= each.pos < each.end for before, each in pairwise(found))
        messages = [each for each in found if isinstance(each, StoredMessage)]
        assert {each.frame[each.body_at : each.topic_at] for each in messages} <= known


def test_a_cut_file_is_said_in_one_line(tmp_path: Path) -> None:
    store = filled(tmp_path, 5)
    at = store.put("orders", 1, b"the last one")
    file = store.write() / FIRST_FILE
    file.write_bytes(file.read_bytes()[: at + 50])
    cut, missing = found_in(tmp_path).damage
    assert cut == f"{file} at {at}: message of 109 bytes, expected 91 to 50"
    assert missing.startswith("orders/1: the consume queue ends with message 2 at ")


def test_a_missing_file_is_said_in_one_line(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (store.write() / f"commitlog/{FILE_BYTES:020d}").unlink()
    assert found_in(tmp_path).damage[0].endswith(f"the log goes on here, expected a file that begins at {FILE_BYTES}")


def test_files_made_in_advance_are_no_damage(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    (store.write() / f"commitlog/{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    assert found_in(tmp_path).damage == []


def test_a_copy_of_a_broker_that_ran_is_noted(tmp_path: Path) -> None:
    (filled(tmp_path, 3).write() / "abort").touch()
    assert "the broker ran while this was copied" in found_in(tmp_path).notes[0]


def test_what_pop_leaves_behind_is_noted(tmp_path: Path) -> None:
    store = OldStore(tmp_path, topics={"orders": (1, 6), "%RETRY%audit": (1, 6), "%RETRY%audit_orders": (1, 6)})
    store.groups = {"audit": {}}
    for topic in ("%RETRY%audit", "%RETRY%audit_orders", "rmq_sys_REVIVE_LOG_DefaultCluster"):
        store.put(topic, 0, b"x")
    popped, unread = found_in(store.write()).notes
    assert "what they received and did not acknowledge" in popped
    assert unread.startswith("%RETRY%audit_orders/0: 1 retries of no known group")


def test_system_topics_of_later_releases_are_no_topics(tmp_path: Path) -> None:
    half = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
    store = OldStore(tmp_path, topics={"orders": (1, 6), half: (1, 6), "Cluster_REPLY_TOPIC": (1, 6)})
    store.put("orders", 0, b"x")
    store.put(half, 0, b"open")
    found = found_in(store.write())
    assert StoreFolder(tmp_path).topics.keys() == {"orders"}
    assert found.notes == ["transactions are in RocksDB (transRocksDBEnable): those that are open are left out and not counted"]


def test_timed_messages_need_to_know_how_far_the_broker_came(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    store.timed("orders", 0, b"late", due_ms=STORED_MS, unique=unique_id(1))
    assert "timercheck: not found" in found_in(store.write()).damage[0]


def test_names_that_are_too_long_are_said(tmp_path: Path) -> None:
    store = OldStore(tmp_path, topics={"orders": (1, 6), "%RETRY%" + "g" * 121: (1, 6)})
    store.put("orders", 0, b"x")
    assert "has 128 characters; expected at most 127" in found_in(store.write()).damage[0]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected the folder of a RocketMQ store"):
        StoreFolder(tmp_path)
    store = filled(tmp_path, 1)
    (store.write() / "config" / "topics.json").unlink()
    with pytest.raises(ConfigError, match=r"topics.json: not found; expected an object with topicConfigTable"):
        StoreFolder(tmp_path)
    (tmp_path / "config" / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    assert StoreFolder(tmp_path).topics == {}
    for name in ("dledger-n0", "dledger-n1"):
        (tmp_path / name / "data").mkdir(parents=True)
    with pytest.raises(ConfigError, match="expected one dledger-ID folder, found dledger-n0, dledger-n1"):
        StoreFolder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("topics", '{"topicConfigTable":{"orders":{}}}', "topics.json: KeyError \\('readQueueNums'\\); expected numbers of queues"),
        ("topics", "{", "topics.json: Expecting property name"),
        ("consumerOffset", '{"offsetTable":{"orders@audit":[1]}}', "consumerOffset.json: AttributeError .* expected offsets by queue"),
        ("delayOffset", '{"offsetTable":{"x":1}}', "delayOffset.json: ValueError .* expected offsets by level"),
        ("subscriptionGroup", '{"subscriptionGroupTable":{"audit":3}}', "subscriptionGroup.json: AttributeError .* expected settings"),
        ("consumerOffset", '{"offsetTable":3}', "consumerOffset.json: offsetTable is no object"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (filled(tmp_path, 1).write() / "config" / f"{name}.json").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        StoreFolder(tmp_path)


def test_names_without_quotes_are_read_as_fastjson_writes_them() -> None:
    text = '{"offsetTable":{"a@{1:2}":{0:15,1:-1 ,\n 17 : 3}},"x":"{4:5}\\"{6:7}"}'
    assert parse_fastjson(text) == {"offsetTable": {"a@{1:2}": {"0": 15, "1": -1, "17": 3}}, "x": '{4:5}"{6:7}'}


def test_the_queue_says_when_a_delayed_message_is_due(tmp_path: Path) -> None:
    store = OldStore(tmp_path, topics={"orders": (1, 6)})
    store.delayed("orders", 0, b"by its unit", level=2, due_ms=STORED_MS + 77, unique=unique_id(1))
    store.put(SCHEDULE, 1, b"by its level", dispatched=False, REAL_TOPIC="orders", REAL_QID="0")
    folder = StoreFolder(store.write())
    _, judge = survey(folder)
    waiting = [judge.waiting(each) for each in folder.log.read()]  # type: ignore[arg-type]
    assert [each[0] for each in waiting if each is not None] == [STORED_MS + 77, STORED_MS + 5000]


def test_a_dry_run_shows_what_would_come_and_asks_no_cluster(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    store.put(HALF, 0, b"open", unique=unique_id(9))
    store.groups = {"audit": {}, "billing": {}}
    folder = str(store.write())
    shown = CliRunner().invoke(app, ["import-rocketmq", folder, "--dry-run"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "TOPIC   QUEUES  PERM  MESSAGES  BYTES",
        "orders       2     6         4    660",
        "2 consumer groups: audit, billing",
        "0 delayed messages that are not delivered yet",
        "left out: 1 messages of transactions that are neither committed nor rolled back",
    ]
    answer = json.loads(CliRunner().invoke(app, ["import-rocketmq", folder, "--dry-run", "--json"]).stdout)
    assert answer["topics"] == [{"topic": "orders", "queues": 2, "perm": 6, "messages": 4, "bytes": 660}]
    assert (answer["groups"], answer["open_transactions"], answer["problem_count"]) == (["audit", "billing"], 1, 0)
    damaged(tmp_path, 4, b"\x1b[31m")
    shown = CliRunner().invoke(app, ["import-rocketmq", folder, "--dry-run"])
    assert shown.exit_code == 1
    assert "magic 0x1b5b3331, expected 0xdaa320a7" in shown.stderr
