"""Produce, consume, dump and the benches as people and scripts use them: data on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dledger_client import Message, Producer, PullConsumer
from tests.cluster.harness import ROOT, Cluster, dledger
from tests.waiting import LIMIT_S

FIGURES = {"messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "acknowledged", "failed"}


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"DLEDGER_CONFIG": str(cluster.local.file), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "dledger_cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, env=environment)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_status_of_a_running_cluster_loads_neither_numpy_nor_pydantic(cluster: Cluster) -> None:
    environment = {"DLEDGER_CONFIG": str(cluster.local.file), "PYTHONPROFILEIMPORTTIME": "1"}
    loaded = {line.rpartition("|")[2].strip() for line in dledger("status", env=environment).stderr.splitlines()}
    assert "dledger_client.admin.ask_nodes" in loaded
    assert loaded & {"numpy", "pydantic", "pydantic_core", "grpc", "rich", "dledger_client.aio.admin"} == set()


def test_consume_selects_by_place_time_tag_and_number(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "2")
    cluster.cli_ok("produce", "t", "--tag", "a", "--key", "k1", stdin=b"".join(b"a%d\n" % n for n in range(20)))
    middle_ms = int(time.time() * 1000) + 1
    while time.time() * 1000 <= middle_ms:
        time.sleep(0.001)
    cluster.cli_ok("produce", "t", "--tag", "b", stdin=b"".join(b"b%d\n" % n for n in range(20)))

    everything = rows(cluster.cli_ok("consume", "t", "--json", "--idle-exit", "0.5"))
    assert len(everything) == 40
    for queue_id in (0, 1):
        offsets = [row["queue_offset"] for row in everything if row["queue_id"] == queue_id]
        assert offsets == list(range(len(offsets)))
    assert {(row["tags"], row["keys"]) for row in everything} == {("a", "k1"), ("b", "")}
    assert len({row["msg_id"] for row in everything}) == 40
    assert all(row["topic"] == "t" and row["born_at"] <= row["stored_at"] + 1000 for row in everything)

    def bodies(*options: str) -> list[str]:
        return cluster.cli_ok("consume", "t", "--idle-exit", "0.5", *options).splitlines()

    late, early = {f"b{n}" for n in range(20)}, {f"a{n}" for n in range(20)}
    cluster.wait_equal()  # a follower that is behind has nothing new to give for longer than this test waits
    assert set(bodies("--from", str(middle_ms))) == late
    assert set(bodies("--tag", "b")) == late
    assert set(bodies("--tag", "a || c", "--follower")) == early
    assert set(bodies("--tag", "a || b")) == early | late
    cluster.cli_ok("produce", "t", "--property", "amount=12", "--property", "where=a=b", stdin=b"c0\n")
    cluster.wait_equal()
    assert bodies("--sql", "amount > 11.5 AND where = 'a=b'") == ["c0"]
    assert set(bodies("--sql", "KEYS = 'k1' OR TAGS IN ('b')", "--follower")) == early | late
    refused = cluster.cli("consume", "t", "--sql", "amount >")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "filter: column 9: the expression ends too early" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert bodies("--from", "last") == []
    assert len(bodies("--max", "7")) == 7


def test_idle_begins_when_every_queue_has_answered(cluster: Cluster) -> None:
    """A follower stands still: one of two queues is asked for there first, and nothing comes of it for seconds."""
    cluster.cli_ok("topic", "create", "t", "--queues", "2")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(Message("t", b"%d" % number), queue_id=number % 2)
    cluster.wait_equal()
    cluster.pause(next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader()))
    found = cluster.cli_ok("consume", "t", "--follower", "--idle-exit", "0.2", "--timeout", "8").split()
    assert sorted(map(int, found)) == list(range(10))


def test_a_delayed_message_is_consumed_when_its_time_has_come(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    before_ms = time.time_ns() // 1_000_000
    cluster.cli_ok("produce", "t", "--count", "1", "--delay", "3s")
    early = cluster.cli_ok("consume", "t", "--idle-exit", "0.2")
    assert early == "" or time.time_ns() // 1_000_000 >= before_ms + 3000
    (row,) = [json.loads(line) for line in cluster.cli_ok("consume", "t", "--max", "1", "--json").splitlines()]
    assert row["stored_at"] - before_ms >= 3000
    for wrong in (["--delay", "soon"], ["--delay", "1s", "--delay-level", "2"]):
        assert cluster.cli("produce", "t", "--count", "1", *wrong).returncode == 2


def test_every_byte_of_a_body_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    lines = [b"", b"with\rCR", bytes(range(256)).replace(b"\n", b""), "Grüße ☃".encode(), b"large " * 10_000, b"last without an end"]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines))
    assert json.loads(cluster.cli_ok("produce", "t", "--file", str(file), "--json"))["acknowledged"] == len(lines)
    process = start(cluster, "consume", "t", "--max", str(len(lines)))
    assert process.communicate(timeout=LIMIT_S) == (b"\n".join(lines) + b"\n", b"")
    assert process.returncode == 0


def test_consume_follows_until_interrupted_and_ends_quietly_at_a_closed_pipe(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    following = start(cluster, "consume", "t", "--from", "first", "--follower")
    assert cluster.produce("t", [b"one", b"two"])["acknowledged"] == 2
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=LIMIT_S) == (b"", b"read 2\n")
    assert following.returncode == 130

    for more in (0, 20_000):  # with nothing left to write, no write shows that nobody reads
        if more:
            cluster.cli_ok("produce", "t", "--count", str(more), "--size", "200")
        with start(cluster, "consume", "t", "--from", "first") as piped:
            assert piped.stdout is not None
            assert piped.stdout.readline() == b"one\n"
            piped.stdout.close()
            assert piped.wait(LIMIT_S) == 0
            assert piped.stderr is not None
            assert piped.stderr.read() == b""


def test_produce_interrupted_tells_what_it_did(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    process = start(cluster, "produce", "t", "--count", "1000000", "--rate", "200", "--json")
    while cluster.cli("topic", "describe", "t", "--json").stdout.count('"messages": 0'):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert errors == b""
    figures = json.loads(output)
    stored = json.loads(cluster.cli_ok("topic", "describe", "t", "--json"))["queues"][0]["messages"]
    assert figures["failed"] == 0
    assert figures["acknowledged"] <= stored <= figures["sent"]


def test_the_benches_give_their_figures(cluster: Cluster) -> None:
    produced = json.loads(cluster.cli_ok("bench", "produce", "--messages", "3000", "--size", "100", "--json"))
    assert produced.keys() >= FIGURES
    assert (produced["acknowledged"], produced["failed"], produced["lost"], produced["duplicated"]) == (3000, 0, 0, 0)
    assert 0 < produced["p50_ms"] <= produced["p99_ms"]
    latency = json.loads(cluster.cli_ok("bench", "latency", "--messages", "200", "--json"))
    assert latency.keys() >= FIGURES
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    for options in ([], ["--follower"]):
        consumed = json.loads(cluster.cli_ok("bench", "consume", "--messages", "3000", "--json", *options))
        assert consumed.keys() >= FIGURES
        assert consumed["acknowledged"] == 3000
        assert (consumed["distinct"], consumed["lost"], consumed["duplicated"]) == (3000, 0, 0)
    line = cluster.cli("bench", "produce", "--messages", "1000", "--topic", "other", "--size", "512-1536")
    assert line.returncode == 0, line.stderr
    assert line.stdout.startswith("acknowledged 1 000  failed 0  ")
    assert "checked: 1 000 of 1 000 distinct messages acknowledged, then all read back: lost 0, duplicated 0\n" in line.stdout
    more = cluster.cli("bench", "consume", "--messages", "3000", "--topic", "other")
    assert more.returncode == 0, more.stderr
    assert "checked: 3 000 distinct messages of 3 000; lost 0, duplicated 0\n" in more.stdout
    # One body a second time, as a retry that stores twice would leave it.
    with PullConsumer(cluster.bootstrap) as consumer, Producer(cluster.bootstrap) as producer:
        producer.send(Message("other", consumer.fetch("other", 0, 0)[0].body))
    doubled = cluster.cli("bench", "consume", "--messages", "3001", "--topic", "other")
    assert "3 000 distinct messages of 3 001; lost 0, duplicated 1\n" in doubled.stdout
    assert doubled.returncode == 1
    assert line.stderr.startswith("3 nodes, SYNC_FLUSH, 1000 messages of 512 to 1536 B")


def test_the_overload_bench_accounts_for_every_message(cluster: Cluster) -> None:
    result = json.loads(cluster.cli_ok("bench", "overload", "--seconds", "1", "--connections", "4", "--size", "16KiB", "--json"))
    assert result["is_accounted"]
    assert result["acknowledged"] > 0
    assert [step["load"] for step in result["steps"]] == [0.2, 0.5, 1, 2, 5]
    assert all(step["goodput_per_s"] > 0 and step["leader_changes"] == 0 for step in result["steps"])
    assert max(step["goodput_share"] for step in result["steps"]) <= 1


def test_the_failover_bench_accounts_for_every_message() -> None:
    result = dledger("bench", "failover", "--rounds", "2", "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures.keys() >= FIGURES
    assert (figures["lost"], figures["duplicated"], figures["reordered"], figures["failed"]) == (0, 0, 0, 0)
    assert len(figures["pauses_ms"]) == 2
    assert figures["acknowledged"] > 1000


def test_dump_knows_every_kind_of_file(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    assert cluster.produce("t", [b"hello", b"world"])["acknowledged"] == 2
    cluster.stop()
    folder = cluster.data / "n0"
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "lock"]
    assert {file.relative_to(folder).parts[0] for file in files} >= {"commitlog", "index-units", "consumequeue", "hardstate", "config"}
    for file in files:
        told = rows(cluster.cli_ok("dump", str(file), "--json"))
        assert told or not any(file.read_bytes()), f"{file}: only files prepared for later have nothing to tell"
    for part in ("commitlog", "index-units", "consumequeue", "hardstate"):
        file = min(file for file in files if file.relative_to(folder).parts[0] == part)
        assert cluster.cli_ok("dump", str(file)), file
    messages = rows(cluster.cli_ok("dump", str(min((folder / "commitlog").iterdir())), "--messages", "--json"))
    assert [row["body"] for row in messages if row["what"] == "message"] == ["hello", "world"]


def test_nothing_is_coloured_where_nobody_looks(cluster: Cluster) -> None:
    for arguments in (["status"], ["topic", "list"], ["produce", "nowhere"], ["bench", "latency", "--messages", "10"]):
        result = cluster.cli(*arguments, stdin=b"x\n")
        assert "\x1b" not in result.stdout + result.stderr


def test_status_of_a_half_dead_group(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t")
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    others = {*cluster.local.node_ids()} - {victim}  # either may lead when it is looked at
    cluster.kill(victim)
    text = cluster.cli_ok("status").splitlines()
    assert text[0].split()[:5] == ["REPLICA-GROUP", "NODE", "ADDRESS", "ROLE", "TERM"]
    assert (text[1].split()[3], text[3].split()[1]) == ("leader", victim), "the leader first, who does not answer last"
    assert "unreachable: " in text[3]
    assert text[4].startswith("replica group g0: in sync ")
    assert text[4].endswith(f"; missing {victim}")
    assert text[5] == "1 group, 2 of 3 nodes up, quorum ok (losing one more stops writes)"
    (group,) = json.loads(cluster.cli_ok("status", "--json"))["groups"]
    assert group["name"] == "g0"
    assert group["leader"] in others
    keys = {"id", "address", "role", "term", "pid", "first_index", "last_index", "committed_index", "applied_index", "reachable"}
    for node in group["nodes"]:
        assert node.keys() >= keys
        assert node["reachable"] == (node["id"] != victim)
        assert all((node[key] is None) == (node["id"] == victim) for key in ("role", "term", "pid", "last_index"))
    unhealthy = cluster.cli("status", "--until", "healthy", "--timeout", "1")
    assert unhealthy.returncode == 1
    assert unhealthy.stderr.startswith("dledger: not healthy after 1 s: 1 group, 2 of 3 nodes up")
    assert f"; g0/{victim}: unreachable: connection " in unhealthy.stderr
    cluster.start(victim, wait=False)
    assert cluster.cli("status", "--until", "healthy", "--timeout", str(LIMIT_S)).returncode == 0
