"""``dledger cluster upgrade-check``: what it prints, its exit status, and that it ends in time where nobody answers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.commands import upgrade
from dledger_client.admin.cluster_status import NodeStatus, judge_group
from dledger_client.admin.upgrade import check
from dledger_wire.errors import UnreachableError
from tests.levels import NEXT_BUILD, NEXT_LEVEL, next_level
from tests.unit.cli.test_status_command import gone, leader, other

NOW_MS = 1_800_000_000_000
NEW = {"version": "0.2.0", "highest_level": NEXT_LEVEL.number}
OLD = {"version": "0.1.0"}

__all__ = ["next_level"]

pytestmark = pytest.mark.usefixtures("next_level")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """A cluster file whose nodes take connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        file = tmp_path / "cluster.yaml"
        file.write_text(f"cluster: shop\ngroups: [{{name: g0, nodes: [{{id: n0, address: '127.0.0.1:{port}'}}]}}]\n")
        yield file


def told(file: Path, monkeypatch: pytest.MonkeyPatch, *nodes: NodeStatus, options: tuple[str, ...] = ()) -> Any:
    """The command's outcome where the nodes of the group answer this."""
    monkeypatch.setattr(upgrade, "ask", lambda *_: check([judge_group("g0", nodes)], NOW_MS, NEXT_BUILD))
    return CliRunner().invoke(app, ["cluster", "upgrade-check", "--config", str(file), *options])


def with_build(build: dict[str, Any], *nodes: NodeStatus) -> list[NodeStatus]:
    return [replace(node, **build) for node in nodes]


def test_it_exits_with_0_when_nothing_speaks_against_stopping_a_node(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [*with_build(NEW, leader("n0", "n2"), other("n0")), *with_build(OLD, other("n2"))]
    result = told(silent, monkeypatch, *nodes)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["g0", "0", "n1", "0.2.0", "0", "to", str(NEXT_LEVEL.number)] in rows
    assert ["g0", "0", "n2", "0.1.0", "0", "to", "0"] in rows
    assert "g0: a higher level waits: n2 (0.1.0) can do feature levels 0 to 0 only" in result.stderr
    assert "the nodes can be upgraded or downgraded to this build" in result.stderr


def test_it_says_what_the_switch_brings_when_all_can(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = told(silent, monkeypatch, *with_build(NEW, leader("n0", "n2"), other("n0"), other("n2")))
    assert result.exit_code == 0
    assert f"g0: dledger cluster upgrade-finish would raise it from level 0 to {NEXT_LEVEL.number}:" in result.stdout


def test_a_node_that_is_away_makes_it_exit_with_1(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = with_build(NEW, leader("n0"), other("n0"))
    result = told(silent, monkeypatch, *nodes, gone("n2"))
    assert result.exit_code == 1
    assert "dledger: under-replicated: g0/n2: a member that does not answer: connection refused" in result.stderr
    assert "can be upgraded" not in result.stderr
    shown = json.loads(told(silent, monkeypatch, *nodes, gone("n2"), options=("--json",)).stdout)
    (group,) = shown["groups"]
    assert shown["problems"] == group["problems"]
    assert (group["level"], group["needs"]) == (0, "0.1.0")
    assert any(text.startswith("under-replicated: g0/n2: a member that does not answer") for text in shown["problems"])
    assert any("must not stop" in text for text in shown["problems"])
    assert group["waits_for"] == ["n2 does not answer, and what its build can do is not known"]
    assert [(node["id"], node["reachable"], node["highest_level"]) for node in group["nodes"]] == [
        ("n1", True, NEXT_LEVEL.number),
        ("n0", True, NEXT_LEVEL.number),
        ("n2", False, 0),
    ]


def test_a_group_at_a_level_of_a_newer_release_is_a_finding(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = {"version": "9.0", "feature_level": NEXT_LEVEL.number + 1, "highest_level": NEXT_LEVEL.number + 1}
    nodes = with_build(newer, leader("n0", "n2"), other("n0"), other("n2"))
    result = told(silent, monkeypatch, *nodes)
    assert result.exit_code == 1
    assert "dledger: level: g0: this build" in result.stderr
    (group,) = json.loads(told(silent, monkeypatch, *nodes, options=("--json",)).stdout)["groups"]
    assert (group["level"], group["needs"]) == (NEXT_LEVEL.number + 1, "")


def test_it_ends_within_its_timeout_where_connections_are_taken_and_nobody_answers(silent: Path) -> None:
    began_s = time.monotonic()
    result = CliRunner().invoke(app, ["cluster", "upgrade-check", "--config", str(silent), "--timeout", "1"])
    assert isinstance(result.exception, UnreachableError)
    assert "no node reachable at 127.0.0.1:" in str(result.exception)
    assert time.monotonic() - began_s < 30  # 2 s with its own grace, on a machine that is not busy
