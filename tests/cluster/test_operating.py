"""What operators do with topics, groups and members from the command line, on one running group; commands run in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.local.ports import free_ports
from tests.cluster.harness import Cluster
from tests.cluster.harness import dledger as run_dledger


@pytest.fixture
def dledger(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command against the cluster by the address of one of its nodes; no cluster file is in reach."""
    address = cluster.config.groups[0].nodes[1].address
    monkeypatch.delenv("DLEDGER_CONFIG", raising=False)
    monkeypatch.chdir(cluster.data)

    def command(*arguments: str, stdin: str = "", fails: bool = False) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--bootstrap", address], input=stdin)
        if not fails and result.exit_code != 0:
            pytest.fail(f"{arguments}: {result.exception!r}\n{result.output}")
        return result

    return command


def test_messages_groups_and_members_by_the_address_of_one_node(cluster: Cluster, dledger: Callable[..., Any]) -> None:
    told = json.loads(dledger("status", "--json").stdout)["groups"][0]
    assert (told["acknowledging"], told["takes_writes"]) == (["n0", "n1", "n2"], True)
    dledger("topic", "create", "orders", "--queues", "2")

    lines = [json.dumps({"body": f"order {n}", "keys": f"o-{n}", "properties": {"n": str(n)}, "queue_key": "k"}) for n in range(20)]
    sent = dledger("produce", "orders", "--json-lines", stdin="\n".join([*lines[:5], "no json", *lines[5:]]), fails=True)
    assert "line 6: not JSON" in sent.stderr
    assert "sent 20  failed 1" in sent.stderr
    queue = json.loads(dledger("consume", "orders", "--max", "1", "--json").stdout)["queue_id"]
    newest = dledger("consume", "orders", "--from", "-2", "--queue", str(queue), "--idle-exit", "0.2", "--format", r"%k %b\n").stdout
    assert newest == "o-18 order 18\no-19 order 19\n"
    message = json.loads(dledger("consume", "orders", "--from", "2020-01-01", "--max", "1", "--json").stdout)
    assert message["properties"]["n"] == "0"
    wrong = dledger("consume", "orders", "--queue", "7", fails=True)
    assert "queue 7, expected 0 to 1" in str(wrong.exception)
    nothing_printed = dledger("consume", "orders", "--group", "bad group", fails=True)
    assert (nothing_printed.exit_code, nothing_printed.stdout) == (1, "")

    dledger("consume", "orders", "--group", "audit", "--from", "first", "--max", "15", "--queue", str(queue))
    dledger("produce", "orders", "--key-sep", ":", stdin="".join(f"key-{n}:late\n" for n in range(30)))
    described = json.loads(dledger("group", "describe", "audit", "--json").stdout)
    assert described["lag"] == sum(row["lag"] for row in described["queues"]) == 35
    assert {row["queue_id"]: row["offset"] for row in described["queues"]} == {queue: 15, 1 - queue: None}
    assert all((row["waiting_ms"] is not None) == (row["lag"] > 0) for row in described["queues"])
    total = dledger("group", "describe", "audit").stdout.splitlines()[3]
    assert re.fullmatch(r"TOTAL +- +- +- +- +35 +\d+ (ms|s|min) +- +-", total), total

    reset = ("group", "reset-offset", "audit", "--topic", "orders", "--to", "first")
    assert "nothing was changed" in dledger(*reset, "--dry-run").stderr
    assert json.loads(dledger("group", "describe", "audit", "--json").stdout)["lag"] == 35
    dledger(*reset)
    assert json.loads(dledger("group", "describe", "audit", "--json").stdout)["lag"] == 50
    for command in (("group", "reset-offset", "nosuch", "--topic", "orders", "--to", "last"), ("group", "settings", "nosuch")):
        assert "no consumer group 'nosuch'" in str(dledger(*command, fails=True).exception)
    dledger("group", "reset-offset", "begins-late", "--topic", "orders", "--to", "last", "--new")
    assert json.loads(dledger("group", "describe", "begins-late", "--json").stdout)["lag"] == 0
    dledger("group", "delete", "begins-late", "--yes")
    assert [group["name"] for group in json.loads(dledger("group", "list", "--json").stdout)["groups"]] == ["audit"]
    assert "has no settings and no positions" in str(dledger("group", "delete", "begins-late", "--yes", fails=True).exception)

    dledger("member", "remove", "--id", "n2", "--yes")
    rows = cluster.cli("status").stdout
    assert "not a member: dledger member add --id n2" in rows
    assert rows.splitlines()[-1].endswith("2 of 2 nodes up (1 more is no member), quorum ok (losing one more stops writes)")


SPARE = """\
cluster: spare
groups:
  - name: g0
    nodes:
      - {{id: n0, address: "127.0.0.1:{0}"}}
      - {{id: n1, address: "127.0.0.1:{1}", spare: true}}
"""


def test_a_spare_node_starts_beside_the_group_and_is_taken_in(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(SPARE.format(*free_ports(2)))
    try:
        started = run_dledger("up", "--config", "two.yaml", cwd=tmp_path)
        assert started.returncode == 0, started.stderr
        assert "not a member: dledger member add --id n1" in started.stdout
        added = run_dledger("member", "add", "--id", "n1", cwd=tmp_path)
        assert (added.returncode, added.stderr) == (0, "replica group g0: voters n0, learners n1\n")
        healthy = run_dledger("status", "--until", "healthy", "--json", cwd=tmp_path)
        assert healthy.returncode == 0, healthy.stderr
        (group,) = json.loads(healthy.stdout)["groups"]
        assert (group["learners"], [node["role"] for node in group["nodes"]]) == (["n1"], ["leader", "learner"])
    finally:
        run_dledger("down", "--kill", cwd=tmp_path)
