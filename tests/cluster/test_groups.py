"""Consumer groups from the command line: positions are kept, shown, and moved."""

from __future__ import annotations

import json
import signal

import pytest

from dledger_client import Admin, PullConsumer, SimpleConsumer
from tests.cluster.harness import Cluster
from tests.cluster.test_tools import start


def test_a_group_goes_on_where_it_was_across_a_failover(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    cluster.produce("t", [b"%d" % number for number in range(20)])
    read = cluster.cli_ok("consume", "t", "--group", "audit", "--max", "8", "--idle-exit", "3").splitlines()
    assert read == [str(number) for number in range(8)]
    cluster.kill(cluster.leader())
    cluster.leader()
    read = cluster.cli_ok("consume", "t", "--group", "audit", "--max", "100", "--idle-exit", "1").splitlines()
    assert read == [str(number) for number in range(8, 20)]
    (queue,) = json.loads(cluster.cli_ok("group", "describe", "audit", "--json"))["queues"]
    assert (queue["offset"], queue["max_offset"], queue["lag"]) == (20, 20, 0)
    listed = {"name": "audit", "topics": ["t"], "members": 0, "lag": 0, "waiting_ms": None, "state": "has read everything"}
    assert json.loads(cluster.cli_ok("group", "list", "--json")) == {"groups": [listed | {"leases": None}]}
    checks = "group-lag=1,group-stuck,dead-letters,transactions"
    cluster.cli_ok("status", "--check", checks)
    cluster.produce("t", [b"20", b"21"])
    found = cluster.cli("status", "--check", checks)
    assert (found.returncode, found.stdout.count("\n")) == (1, 1)
    assert found.stdout.startswith("group-lag: audit: 2 messages behind, the oldest waits for ")
    (listed,) = json.loads(cluster.cli_ok("group", "list", "--json"))["groups"]
    assert (listed["lag"], listed["state"], listed["waiting_ms"] >= 0) == (2, "no member reads it", True)
    cluster.cli_ok("group", "reset-offset", "audit", "--topic", "t", "--to", "first")
    assert len(cluster.cli_ok("consume", "t", "--group", "audit", "--idle-exit", "1").splitlines()) == 22
    result = cluster.cli("group", "describe", "nobody")
    assert result.returncode == 1
    assert "no consumer group 'nobody'" in result.stderr


def test_a_group_that_acknowledges_one_by_one_shows_what_its_consumers_have(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    cluster.produce("t", [b"%d" % number for number in range(6)])
    with SimpleConsumer(cluster.bootstrap, "pack", "t", invisible_ms=600_000) as consumer:
        got = consumer.receive(max_messages=5)
        consumer.nack(got[:1])
        consumer.ack(got[2:4])
        described = json.loads(cluster.cli_ok("group", "describe", "pack", "--json"))
        (queue,) = described["queues"]
        assert (queue["lag"], queue["leases"] | {"oldest_ms": 0}) == (6, {"in_flight": 2, "again": 1, "oldest_ms": 0, "attempts": 1})
        text = cluster.cli_ok("group", "describe", "pack").split("\n\n")[1].splitlines()
        assert text[0].split() == ["TOPIC", "REPLICA-GROUP", "QUEUE", "IN-FLIGHT", "AGAIN", "OLDEST", "ATTEMPTS"]
        assert text[1].split()[:5] == ["t", "g0", "0", "2", "1"]
        assert text[2].split()[0] == "TOTAL"
        (listed,) = json.loads(cluster.cli_ok("group", "list", "--json"))["groups"]
        assert (listed["state"], listed["leases"]["in_flight"]) == ("is reading: 2 in flight", 2)


@pytest.mark.parametrize("options", [[], ["--follower"]])
def test_a_group_reads_a_topic_made_anew_from_its_start(cluster: Cluster, options: list[str]) -> None:
    """docs/reference/semantics, row G9.  The command is stopped while the topic is made anew, so that it sees only the new one."""
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    cluster.produce("t", [b"%d" % number for number in range(20)])
    with start(cluster, "consume", "t", "--group", "audit", *options) as reader, Admin(cluster.bootstrap) as admin:
        assert reader.stdout is not None
        try:
            assert [reader.stdout.readline() for _ in range(20)] == [b"%d\n" % number for number in range(20)]
            reader.send_signal(signal.SIGSTOP)
            admin.delete_topic("t")
            admin.create_topic("t", queues=1)
            cluster.produce("t", [b"%d" % number for number in range(100, 130)])
            reader.send_signal(signal.SIGCONT)
            assert [reader.stdout.readline() for _ in range(30)] == [b"%d\n" % number for number in range(100, 130)]
            reader.send_signal(signal.SIGINT)
            assert reader.wait(30) == 130
        finally:
            reader.kill()
    with PullConsumer(cluster.bootstrap, "audit") as consumer:
        assert consumer.committed("t") == {("g0", 0): 30}
