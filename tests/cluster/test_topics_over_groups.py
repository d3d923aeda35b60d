"""Topics over two replica groups of real processes: created, grown, produced to and consumed, also while one group is dead."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.cluster.harness import Cluster
from tests.cluster.test_tools import start
from tests.waiting import LIMIT_S, wait_until


def described(cluster: Cluster, topic: str) -> dict[str, Any]:
    return dict(json.loads(cluster.cli_ok("topic", "describe", topic, "--json")))


def shares(cluster: Cluster, topic: str) -> dict[str, int]:
    return {part["group"]: part["write_queues"] for part in described(cluster, topic)["groups"]}


def test_a_topic_over_two_groups_is_written_read_grown_and_left(make_cluster: Callable[..., Cluster]) -> None:
    """docs/reference/semantics, rows T3, G5."""
    cluster = make_cluster(groups=2, nodes=1)
    cluster.start()
    made = cluster.cli("topic", "create", "t", "--queues", "5")
    assert "created topic t in replica groups g0, g1: 5 read queues, 5 write queues, perm 6 (g0 3, g1 2)" in made.stderr
    bodies = [b"%d" % number for number in range(200)]
    assert cluster.produce("t", bodies)["failed"] == 0
    topic = described(cluster, "t")
    assert (topic["name"], topic["group"], topic["read_queues"], topic["write_queues"], topic["perm"]) == ("t", "g0,g1", 5, 5, 6)
    assert sum(queue["messages"] for queue in topic["queues"]) == 200
    assert {queue["group"] for queue in topic["queues"] if queue["messages"]} == {"g0", "g1"}
    assert sorted(cluster.consume("t", 200)) == sorted(bodies)
    cluster.cli_ok("topic", "create", "u", "--queues", "2", "--replica-group", "g0")
    cluster.produce("u", [b"old"] * 4)
    cluster.cli_ok("consume", "u", "--group", "late", "--from", "last", "--idle-exit", "1")
    cluster.cli_ok("consume", "u", "--group", "readers", "--from", "first", "--idle-exit", "1")
    assert "g1 2" in cluster.cli("topic", "update", "u", "--replica-groups", "g0,g1").stderr
    assert shares(cluster, "u") == {"g0": 2, "g1": 2}
    positions = json.loads(cluster.cli_ok("group", "describe", "readers", "--json"))["queues"]
    assert {(row["queue_id"], row["offset"]) for row in positions if row["group"] == "g1"} == {(0, 0), (1, 0)}
    refused = cluster.cli("topic", "update", "u", "--replica-groups", "g1")
    assert refused.returncode == 1
    assert "its queues in g0 still take messages; first --replica-group g0 --perm 4" in refused.stderr
    cluster.cli_ok("topic", "update", "u", "--replica-group", "g0", "--perm", "4")
    cluster.cli_ok("group", "reset-offset", "late", "--topic", "u", "--to", "last", "--new")
    cluster.cli_ok("topic", "update", "u", "--replica-groups", "g1")
    assert shares(cluster, "u") == {"g1": 2}
    cluster.cli_ok("topic", "delete", "t", "--yes")
    names = [each["name"] for each in json.loads(cluster.cli_ok("topic", "list", "--json"))["topics"]]
    assert "t" not in names
    assert "u" in names


def test_a_dead_group_is_named_and_the_other_goes_on(make_cluster: Callable[..., Cluster]) -> None:
    """docs/reference/semantics, rows P6, T4, G8."""
    cluster = make_cluster(groups=2, nodes=1)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "4")
    cluster.produce("t", [b"%d" % number for number in range(40)])
    cluster.cli_ok("consume", "t", "--group", "readers", "--idle-exit", "1")
    cluster.kill("n1")
    lines = [b"more %d" % number for number in range(100)]
    assert cluster.produce("t", lines)["failed"] == 0  # without a key they go around
    answered = cluster.cli("topic", "list", "--json")
    listed = json.loads(answered.stdout)
    assert answered.returncode == 1
    commands = [
        ("topic", "describe", "t"),
        ("group", "list"),
        ("group", "describe", "readers"),
        ("dlq", "list", "--json"),
        ("transaction", "list"),
        ("message", "query", "t", "--from", "2020-01-01", "--to", "2099-01-01"),
        ("group", "reset-offset", "readers", "--topic", "t", "--to", "first"),
        ("group", "reset-offset", "elsewhere", "--topic", "t", "--to", "first"),
    ]
    with ThreadPoolExecutor(4) as pool:  # each waits some seconds for the group
        for command, result in zip(commands, pool.map(lambda command: cluster.cli(*command), commands), strict=True):
            assert result.returncode == 1, command
            assert len([line for line in result.stderr.splitlines() if "replica group g1" in line]) == 1, (command, result.stderr)
    reset = ("group", "reset-offset", "only-g0", "--topic", "t", "--to", "first", "--replica-groups", "g0", "--new")
    assert "only-g0" in cluster.cli(*reset).stderr
    cluster.cli_ok("group", "reset-offset", "elsewhere", "--topic", "t", "--to", "first", "--replica-groups", "g0")
    assert ([each["name"] for each in listed["topics"]], list(listed["unanswered"])) == (["t"], ["g1"])
    refused = cluster.cli("topic", "create", "x", "--queues", "2")
    assert refused.returncode == 1
    assert "replica group g1 has no leader" in refused.stderr
    assert "nothing was created" in refused.stderr
    cluster.start("n1")
    wait_until(lambda: cluster.cli("topic", "list").returncode == 0, "both groups answer")
    cluster.cli_ok("topic", "create", "x", "--queues", "2")
    assert shares(cluster, "x") == {"g0": 1, "g1": 1}
    assert len(cluster.consume("t", 140)) == 140


def test_consume_goes_on_in_the_queues_that_its_topic_gets(make_cluster: Callable[..., Cluster]) -> None:
    """docs/reference/semantics, row G5.  A group that did not answer at the start is read when it does."""
    cluster = make_cluster(groups=2, nodes=1)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1", "--replica-groups", "g0")
    first, second = ([b"%d" % number for number in part] for part in (range(20), range(20, 60)))
    cluster.produce("t", first)
    consuming = start(cluster, "consume", "t", "--group", "readers", "--max", "60")
    try:
        assert consuming.stdout is not None
        read = [consuming.stdout.readline().rstrip() for _ in first]
        cluster.cli_ok("topic", "update", "t", "--replica-groups", "g0,g1")
        cluster.produce("t", second)
        assert sum(queue["messages"] for queue in described(cluster, "t")["queues"] if queue["group"] == "g1") > 0
        rest, said = consuming.communicate(timeout=LIMIT_S)
        assert consuming.returncode == 0, said
        assert sorted(read + rest.split()) == sorted(first + second)
    finally:
        consuming.kill()
        consuming.wait(LIMIT_S)
    lags = json.loads(cluster.cli_ok("group", "describe", "readers", "--json"))["queues"]
    assert {(row["group"], row["lag"]) for row in lags} == {("g0", 0), ("g1", 0)}
    cluster.kill("n1")
    consuming = start(cluster, "consume", "t", "--group", "late", "--max", "60")
    try:
        assert consuming.stderr is not None
        assert b"replica group g1 did not answer; its queues are not read" in consuming.stderr.readline()
        cluster.start("n1")
        read_late, said = consuming.communicate(timeout=LIMIT_S)
        assert (consuming.returncode, sorted(read_late.split())) == (0, sorted(first + second)), said
        assert b"replica group g1 answers now; reading its queues" in said
    finally:
        consuming.kill()
        consuming.wait(LIMIT_S)
