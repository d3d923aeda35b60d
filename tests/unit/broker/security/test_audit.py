"""The audit log: what a record says, what a flood leaves of it, and the file that it is in."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.process import audit_file
from broker.process.audit_file import FileAudit
from broker.security import audit as audit_module
from broker.security.audit import Audit, Place, Record
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security import principal
from store.commands.security import Action, Resource

ALICE = principal.user("alice")


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.trusted: list[Record] = []

    def write(self, record: Record, *, trusted: bool = False) -> None:
        self.records.append(json.loads(json.dumps(record)))
        if trusted:
            self.trusted.append(self.records[-1])

    async def newest(self, count: int, after: int, wanted: Callable[[Record], bool]) -> list[Record]:
        return [record for record in self.records if wanted(record)][-count:]

    async def close(self) -> None: ...


class Clock:
    now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class Rig:
    def __init__(self) -> None:
        self.kept, self.clock = Kept(), Clock()
        self.audit = Audit(self.kept, self.clock, Place("shop", "g0", "n0"))
        self.audit.position = lambda: (3, 17)

    def refuse(self, times: int = 1, who: str = "alice", host: str = "10.0.0.1") -> None:
        for port in range(times):
            self.audit.denied(principal.user(who), f"{host}:{port}", Action.READ, Resource.TOPIC, "orders")


def test_a_change_is_told_with_everything_that_belongs_to_it() -> None:
    rig = Rig()
    rig.audit.change(ALICE, "10.0.0.1:99", ("update topic", "topic", "orders"), "OK", before={"perm": 6}, after={"perm": 4})
    assert rig.kept.records == [
        {
            "at": "1970-01-01T00:16:40.000Z",
            "user": "alice",
            "address": "10.0.0.1:99",
            "action": "update topic",
            "resource": "topic",
            "name": "orders",
            "allowed": True,
            "outcome": "OK",
            "cluster": "shop",
            "group": "g0",
            "node": "n0",
            "term": 3,
            "index": 17,
            "before": {"perm": 6},
            "after": {"perm": 4},
        }
    ]


def test_refusals_are_counted_by_reason_and_named() -> None:
    rig = Rig()
    rig.refuse()
    rig.audit.not_admitted("10.0.0.9:1", AuthenticationFailedError("bob: wrong name or password", user="bob"))
    rig.audit.not_admitted("10.0.0.9:1", AuthenticationFailedError("expected a user", reason="no_credentials"))
    other = principal.node("other", "g0", "n1").uri
    rig.audit.not_admitted("10.0.0.8:1", AuthenticationFailedError("expected cluster shop", reason="other_cluster", user=other))
    assert rig.audit.refused == {"denied": 1, "wrong_credentials": 1, "no_credentials": 1, "other_cluster": 1}
    assert [(each["user"], each["reason"], each["allowed"]) for each in rig.kept.records] == [
        ("alice", "denied", False),
        ("bob", "wrong_credentials", False),
        ("", "no_credentials", False),
        (other, "other_cluster", False),
    ]


def test_a_flood_of_one_source_is_summed_and_hides_nobody_else() -> None:
    rig = Rig()
    rig.refuse(1_000)
    rig.refuse(who="bob")
    assert [each["user"] for each in rig.kept.records] == ["alice"] * audit_module.OF_ONE_SOURCE + ["bob"]
    rig.clock.now_ms += audit_module.WINDOW_MS
    rig.refuse()
    summed = rig.kept.records[audit_module.OF_ONE_SOURCE + 1]
    assert (summed["action"], summed["user"], summed["address"]) == ("refused again", "alice", "10.0.0.1")
    assert summed["count"] == 1_000 - audit_module.OF_ONE_SOURCE
    assert rig.audit.refused["denied"] == 1_002


def test_a_host_that_tries_many_names_hides_no_other_and_fills_no_file() -> None:
    rig = Rig()
    for number in range(3_000):
        rig.refuse(who=f"user{number % 1_500}")
    rig.refuse(who="bob", host="10.0.0.2")
    assert [each["user"] for each in rig.kept.records][audit_module.OF_ONE_HOST :] == ["bob"]
    rig.clock.now_ms += audit_module.WINDOW_MS
    rig.audit.sum_up()
    [summed] = rig.kept.records[audit_module.OF_ONE_HOST + 1 :]
    assert (summed["user"], summed["address"], summed["count"]) == ("*", "10.0.0.1", 3_000 - audit_module.OF_ONE_HOST)
    rig.refuse(who="carol")
    assert rig.kept.records[-1]["user"] == "carol"


def test_a_flood_of_many_sources_is_bounded_in_records_and_in_memory() -> None:
    rig = Rig()
    for number in range(5_000):
        rig.refuse(who=f"u{number}", host=f"10.0.{number % 250}.{number // 250}")
    assert len(rig.kept.records) == audit_module.OF_ALL_SOURCES
    assert len(rig.audit._sources) <= audit_module.MAX_SOURCES + 1
    rig.audit.sum_up()
    left = rig.kept.records[audit_module.OF_ALL_SOURCES :]
    assert len(left) <= audit_module.OF_ALL_SOURCES + 1
    assert sum(each["count"] for each in left) == 5_000 - audit_module.OF_ALL_SOURCES
    assert not rig.audit._sources


def test_changes_of_a_user_without_rights_are_summed_and_push_out_nothing() -> None:
    """A user may change its own password, and does it in vain as often as it can."""
    rig = Rig()
    admin, mallory, eve = (principal.user(name) for name in ("admin", "mallory", "eve"))
    rig.audit.administers = lambda who: who == admin
    rig.audit.change(admin, "10.0.0.1:1", ("create topic", "topic", "orders"), "OK")
    for number in range(10_000):
        rig.audit.change(mallory, f"10.0.0.9:{number}", ("put user", "cluster", "mallory"), "INVALID_ARGUMENT", after={"n": number})
    rig.audit.change(eve, "10.0.0.9:1", ("put user", "cluster", "eve"), "OK")
    for number in range(1_000):
        rig.audit.change(admin, "10.0.0.1:1", ("create topic", "topic", f"t{number}"), "OK")
    assert len(rig.kept.trusted) == 1_001
    others = [each for each in rig.kept.records if each["user"] != "admin"]
    assert [each["user"] for each in others] == ["mallory"] * audit_module.OF_ONE_USER + ["eve"]
    rig.clock.now_ms += audit_module.WINDOW_MS
    rig.audit.change(eve, "10.0.0.9:1", ("put user", "cluster", "eve"), "OK")
    summed, last = rig.kept.records[-2:]
    assert (summed["user"], summed["action"], summed["count"]) == ("mallory", "put user", 10_000 - audit_module.OF_ONE_USER)
    assert (summed["after"], last["user"]) == ({"n": 9_999}, "eve")


def test_changes_of_many_users_are_bounded_in_memory() -> None:
    rig = Rig()
    for number in range(3_000):
        rig.audit.change(principal.user(f"u{number}"), "a:1", ("put user", "cluster", "x"), "OK")
    assert len(rig.audit._changes) <= audit_module.MAX_SOURCES + 1


def test_text_from_outside_is_cut_and_escaped() -> None:
    rig = Rig()
    name = '\x1b[2J"\n' + "x" * 10_000
    rig.audit.change(
        ALICE, "a:1", ("create topic", "topic", name), "OK", after={"deep": {"er": {"est": {"x": {"y": "z"}}}}, "many": [1] * 99}
    )
    text = json.dumps(rig.kept.records[0])
    assert len(text) < 2_000
    assert text.isascii()
    assert text.isprintable()


# The file


def run(folder: Path, work: Callable[[FileAudit], Any], *, max_bytes: int = 1 << 20, files: int = 3) -> Any:
    async def inside() -> Any:
        sink = FileAudit(str(folder), max_bytes=max_bytes, files=files)
        try:
            return await work(sink)
        finally:
            await sink.close()

    return asyncio.run(inside())


def numbers(records: list[Record]) -> list[int]:
    return [record["n"] for record in records]


def everything(_record: Record) -> bool:
    return True


def test_records_are_read_back_after_a_restart_and_numbers_go_on(tmp_path: Path) -> None:
    async def write(sink: FileAudit) -> None:
        for number in range(10):
            sink.write({"n": number})

    async def read(sink: FileAudit) -> list[list[Record]]:
        sink.write({"n": 10})
        return [
            await sink.newest(3, 0, everything),
            await sink.newest(100, 9, everything),
            await sink.newest(2, 0, lambda record: record["n"] % 2 == 1),
        ]

    folder = tmp_path / "audit"
    run(folder, write)
    newest, later, odd = run(folder, read)
    assert numbers(newest) == [8, 9, 10]
    assert [record["seq"] for record in later] == [10, 11]
    assert numbers(odd) == [7, 9]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "audit-users.jsonl").stat().st_mode) == 0o600


def test_records_of_administrators_are_kept_apart_and_read_in_their_order(tmp_path: Path) -> None:
    async def work(sink: FileAudit) -> list[Record]:
        sink.write({"n": 0}, trusted=True)
        for number in range(1, 1_000):
            sink.write({"n": number, "text": "x" * 90})
        sink.write({"n": 1_000}, trusted=True)
        return await sink.newest(10_000, 0, everything)

    found = numbers(run(tmp_path, work, max_bytes=10_000))
    assert sorted(os.listdir(tmp_path)) == ["audit-users.1.jsonl", "audit-users.2.jsonl", "audit-users.jsonl", "audit.jsonl"]
    assert found == [0, *range(found[1], 1_001)]
    assert found[1] > 500


def test_files_are_rotated_by_size_and_number(tmp_path: Path) -> None:
    async def work(sink: FileAudit) -> list[Record]:
        for number in range(1_000):
            sink.write({"n": number, "text": "x" * 90})
        return await sink.newest(10_000, 0, everything)

    found = numbers(run(tmp_path, work, max_bytes=10_000))
    assert sorted(os.listdir(tmp_path)) == ["audit-users.1.jsonl", "audit-users.2.jsonl", "audit-users.jsonl"]
    assert all(file.stat().st_size <= 10_000 for file in tmp_path.iterdir())
    assert found == list(range(found[0], 1_000))
    assert 100 < len(found) < 300


def test_a_full_disk_loses_records_says_how_many_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True
    written = os.write

    def write(file: int, data: bytes) -> int:
        if full and data.startswith(b'{"seq"'):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, data)

    monkeypatch.setattr("os.write", write)

    async def work(sink: FileAudit) -> list[Record]:
        nonlocal full
        for number in range(5):
            sink.write({"n": number, "node": "n0"})
        assert await sink.newest(10, 0, everything) == []
        full = False
        sink.write({"n": 5, "node": "n0"})
        return await sink.newest(10, 0, everything)

    lost, kept = run(tmp_path, work)
    assert (lost["action"], lost["count"], lost["node"]) == ("records lost", 5, "n0")
    assert kept["n"] == 5


def test_a_half_written_line_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "audit-users.jsonl").write_bytes(b'{"seq": 1, "n": 1}\n{"seq": 2, "n"')

    async def work(sink: FileAudit) -> list[Record]:
        sink.write({"n": 2})
        return await sink.newest(10, 0, everything)

    assert numbers(run(tmp_path, work)) == [1, 2]


def test_nothing_is_lost_at_the_end_and_more_than_can_wait_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(sink: FileAudit) -> None:
        for number in range(3_000):
            sink.write({"n": number})

    run(tmp_path / "a", write)
    assert len((tmp_path / "a" / "audit-users.jsonl").read_text(encoding="utf-8").splitlines()) == 3_000
    monkeypatch.setattr(audit_file, "MAX_WAITING", 0)

    async def too_many(sink: FileAudit) -> list[Record]:
        sink.write({"n": 0})
        sink.write({"n": 1})
        monkeypatch.setattr(audit_file, "MAX_WAITING", 10)
        sink.write({"n": 2})
        return await sink.newest(10, 0, everything)

    lost, kept = run(tmp_path / "b", too_many)
    assert (lost["count"], kept["n"]) == (2, 2)
