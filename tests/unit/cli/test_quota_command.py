"""``dledger quota``: what it takes, what it asks for, and how it shows who waits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_client.admin.calls import Listed
from dledger_client.admin.quotas import ClusterQuota, QuotaUse
from dledger_client.aio import Admin
from dledger_wire.errors import InvalidArgumentError, NotLeaderError

NONE = dict.fromkeys(("produce_bytes", "produce_messages", "fetch_bytes", "fetch_messages", "unacknowledged_bytes", "connections"))


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> None: ...

    monkeypatch.setattr("dledger_cli.context.check_reachable", found)


def quota(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["quota", *arguments, "--bootstrap", "127.0.0.1:1"])


def test_limits_are_set_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def set_quota(_admin: Admin, kind: str, name: str, **limits: int | None) -> None:
        asked.append((kind, name, limits))

    monkeypatch.setattr(Admin, "set_quota", set_quota)
    done = quota("set", "topic", "orders", "--produce-bytes", "10MiB")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "set the quota for topic orders\n")
    assert quota("set", "user", "*", "--produce-messages", "5", "--produce-bytes", "1").exit_code == 0
    assert quota("set", "user", "alice", "--unacknowledged-bytes", "1MiB", "--connections", "9").exit_code == 0
    assert quota("set", "producer-group", "spark", "--unlimited").exit_code == 0
    assert quota("set", "consumer-group", "audit", "--fetch-messages", "7", "--fetch-bytes", "2KiB").exit_code == 0
    assert asked == [
        ("topic", "orders", NONE | {"produce_bytes": 10 << 20}),
        ("user", "*", NONE | {"produce_bytes": 1, "produce_messages": 5}),
        ("user", "alice", NONE | {"unacknowledged_bytes": 1 << 20, "connections": 9}),
        ("producer-group", "spark", NONE),
        ("consumer-group", "audit", NONE | {"fetch_bytes": 2048, "fetch_messages": 7}),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "topic", "orders"), "or else --unlimited"),
        (("set", "topic", "orders", "--unlimited", "--produce-messages", "5"), "or else --unlimited"),
        (("set", "topic", "orders", "--produce-bytes", "0"), "expected at least 1 byte"),
        (("set", "topic", "orders", "--fetch-bytes", "0"), "expected at least 1 byte"),
        (("set", "topic", "orders", "--produce-bytes", "much"), "--produce-bytes"),
        (("set", "topic", "orders", "--produce-messages", "0"), "--produce-messages"),
        (("set", "planet", "earth", "--produce-messages", "1"), "KIND"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_asked(arguments: tuple[str, ...], said: str) -> None:
    result = quota(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete_quota(_admin: Admin, kind: str, name: str) -> None:
        raise InvalidArgumentError(f"there is no quota for {kind} {name!r}")

    monkeypatch.setattr(Admin, "delete_quota", delete_quota)
    result = quota("delete", "topic", "orders")
    assert isinstance(result.exception, InvalidArgumentError)


def test_a_list_shows_who_waits_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    used = tuple(QuotaUse(name, "g0", "n0", {"produce_messages": 40.0}, 2, wait, 10.0, 3) for name, wait in (("a", 1.5), ("b", 0.0)))
    more = (QuotaUse("a", "g1", "n3", {"produce_messages": 39.6}, 2, 0.5, 2.5, 3),)
    found = [
        ClusterQuota("topic", "*", {"produce_bytes": 1024, "produce_messages": 100}, used + more, ("g1",)),
        ClusterQuota("user", "alice", {}),
    ]

    async def list_quotas(_admin: Admin) -> Listed[ClusterQuota]:
        return Listed(found, {"g2": NotLeaderError("replica group g2 has no leader")})

    monkeypatch.setattr(Admin, "list_quotas", list_quotas)
    shown = quota("list")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["KIND", "NAME", "LIMIT", "VALUE", "USED", "WAITING", "THROTTLED"],
        ["topic", "*", "produce-bytes", "1024", "0", "a", "1.5", "s", "22.5", "s"],
        ["topic", "*", "produce-messages", "100", "80", "a", "1.5", "s", "22.5", "s"],
        ["user", "alice", "unlimited", "-", "-", "-", "-"],
    ]
    assert "replica groups without the quota for topic *: g1; set it again" in shown.stderr
    assert "replica group g2 did not answer" in shown.stderr
    assert shown.exit_code == 1
    listed = json.loads(quota("list", "--json").stdout)
    assert listed["quotas"][0]["used"][0]["waits_s"] == 1.5
    assert listed["unanswered"] == {"g2": "replica group g2 has no leader"}
