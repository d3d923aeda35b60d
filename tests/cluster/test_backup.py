"""Backups of a cluster that serves, and new clusters from them when nothing of the old one is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dledger_client import Admin, Message, Producer, PullConsumer, TransactionProducer, TransactionState
from dledger_client.fetch.records import ReceivedMessage
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_MS, wait_until

SETTINGS = {
    "store": {"mappedFileSizeCommitLog": "1MiB", "maxMessageSize": "100KiB", "mappedFileSizeConsumeQueue": 4000},
    "broker": {"transactionTimeOut": "400ms", "transactionCheckInterval": "400ms", "transactionCheckMax": 1000},
}
TOPIC, LATE = "orders", "late"
DELAY_MS = 20_000


@dataclass
class Load:
    """A producer at work; ``acknowledged``: (number, offset) in the order of acknowledgement."""

    bootstrap: str
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self.bootstrap, group="load", send_timeout_ms=LIMIT_MS) as producer:
                number = 0
                while not self._ended.wait(0.002):
                    result = producer.send(Message(TOPIC, b"%08d " % number + os.urandom(500).hex().encode()), queue_id=0)
                    self.acknowledged.append((number, result.queue_offset))
                    number += 1
        except BaseException as error:
            self.failed.append(error)

    def wait_for(self, count: int) -> int:
        """Until so many more are acknowledged; how many are."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: self.failed or len(self.acknowledged) >= wanted, "messages are acknowledged")
        assert not self.failed
        return len(self.acknowledged)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        assert not self.failed


def backup(cluster: Cluster, repository: Path, *options: str) -> dict[str, Any]:
    return dict(json.loads(cluster.cli_ok("backup", "--to", str(repository), "--json", *options)))


def backup_of_follower(cluster: Cluster, repository: Path) -> dict[str, Any]:
    """A backup of the only group, which comes from a follower: not from who leads before and after it."""
    leader, made = cluster.leader(), backup(cluster, repository)
    (group,) = made["groups"].values()
    assert group["node"] != leader or cluster.leader() != leader
    return made


def begin(cluster: Cluster, repository: Path, *options: str) -> subprocess.Popen[str]:
    environment = os.environ | {"DLEDGER_CONFIG": str(cluster.local.file), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "dledger_cli", "backup", "--to", str(repository), "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def read_all(cluster: Cluster, topic: str) -> list[tuple[int, bytes, int]]:
    """(offset, body, when it was stored) of queue 0."""
    with PullConsumer(cluster.bootstrap) as consumer, Admin(cluster.bootstrap) as admin:
        (queue,) = admin.topic_offsets(topic)
        chunks = consumer.read_chunks(topic, 0, queue.min_offset, queue.max_offset)
        return [(message.queue_offset, bytes(message.body), message.store_timestamp) for chunk in chunks for message in chunk.messages()]


def numbers(messages: list[tuple[int, bytes, int]]) -> list[tuple[int, int]]:
    return [(int(body[:8]), offset) for offset, body, _ in messages]


def restored(make_cluster: Callable[..., Cluster], repository: Path, *options: str, nodes: int = 3, name: str = "restored") -> Cluster:
    """A new cluster on other ports, from the repository alone."""
    new = make_cluster(nodes=nodes, settings=SETTINGS | {"cluster": name})
    new.cli_ok("restore", "--from", str(repository), "--config", str(new.local.file), "--data", str(new.data), *options)
    new.cli_ok("verify", "--data", str(new.data))
    new.start()
    return new


def test_everything_is_destroyed_and_comes_back(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster, repository = make_cluster(settings=SETTINGS), tmp_path / "repository"
    cluster.start()
    group = cluster.config.groups[0].name
    for topic in (TOPIC, LATE):
        cluster.cli_ok("topic", "create", topic, "--queues", "1")
    load = Load(cluster.bootstrap)
    committed = 50
    load.wait_for(2 * committed)
    with Producer(cluster.bootstrap, group="slow") as producer:
        producer.send(Message(LATE, b"delayed", deliver_at_ms=time.time_ns() // 1_000_000 + DELAY_MS))
    cluster.cli_ok("consume", TOPIC, "--group", "readers", "--from", "first", "--max", str(committed))
    with TransactionProducer(cluster.bootstrap, "shop", lambda _message: TransactionState.UNKNOWN) as producer:
        producer.prepare(Message(LATE, b"undecided"))

    # Two backups while the producer goes on; the second brings only what is new.
    load.wait_for(700)
    first = backup_of_follower(cluster, repository)["groups"][group]
    between = load.wait_for(30)
    second = backup(cluster, repository)["groups"][group]
    load.wait_for(10)
    load.end()
    assert second["index"] > first["index"]
    sent_bytes = second["end_pos"] - first["end_pos"]  # meanwhile: more on a machine that is slow to start a command
    assert second["added_bytes"] - sent_bytes < first["added_bytes"] / 2
    messages = read_all(cluster, TOPIC)
    assert cluster.cli("verify", "--backup", str(repository)).returncode == 0
    acknowledged = load.acknowledged

    cluster.end()
    shutil.rmtree(cluster.data)

    new = restored(make_cluster, repository)
    found = read_all(new, TOPIC)
    assert found == messages[: len(found)], "a restored log is the old one up to the backup's entry"
    assert numbers(found)[:between] == acknowledged[:between], "what was acknowledged before the backup is there, once and in order"
    offsets = json.loads(new.cli_ok("group", "describe", "readers", "--json"))
    assert committed in {row["offset"] for row in _rows(offsets)}
    with Producer(new.bootstrap, group="load") as producer:
        assert producer.send(Message(TOPIC, b"new"), queue_id=0).queue_offset == found[-1][0] + 1

    def decide(_message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    with TransactionProducer(new.bootstrap, "shop", decide):
        wait_until(lambda: sorted(body for _, body, _ in read_all(new, LATE)) == [b"delayed", b"undecided"], "what waited is delivered")
    new.wait_equal()
    new.cli_ok("verify", "--online")
    with Admin(new.bootstrap) as admin:
        assert admin.describe_cluster().name == "restored"


def _rows(value: Any) -> list[dict[str, Any]]:
    """Every JSON object in a value that has an offset."""
    if isinstance(value, dict):
        own = [value] if "offset" in value else []
        return own + [row for each in value.values() for row in _rows(each)]
    return [row for each in value for row in _rows(each)] if isinstance(value, list) else []


def test_a_group_that_is_down_is_left_out_and_named(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster, repository = make_cluster(nodes=1, groups=2, settings=SETTINGS), tmp_path / "repository"
    cluster.start()
    whole = backup(cluster, repository)
    assert sorted(whole["groups"]) == ["g0", "g1"]
    cluster.kill("n1")
    result = cluster.cli("backup", "--to", str(repository), "--json", "--keep", "1")
    assert result.returncode == 1
    assert "replica group g1 did not answer, its part is missing: " in result.stderr
    made = json.loads(result.stdout)
    assert (list(made["groups"]), list(made["unanswered"])) == (["g0"], ["g1"])
    assert f"dledger backup --to {repository} -g g1" in result.stderr
    listed = json.loads(cluster.cli_ok("backup", "--to", str(repository), "--list", "--json"))["backups"]
    assert [each["id"] for each in listed] == [whole["backup"], made["backup"]], "the newest one of g1 is kept"
    cluster.kill("n0")
    nothing = cluster.cli("backup", "--to", str(repository))
    assert nothing.returncode == 1
    cluster.start()
    cluster.cli_ok("backup", "--to", str(repository), "-g", "g1")


def part_files(repository: Path) -> set[Path]:
    return set(repository.glob("*/log/*"))


def test_a_backup_that_is_killed_or_loses_its_node_harms_nothing(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster, repository = make_cluster(settings=SETTINGS), tmp_path / "repository"
    cluster.start()
    cluster.cli_ok("topic", "create", TOPIC, "--queues", "1")
    cluster.cli_ok("produce", TOPIC, "--count", "3000", "--size", "1000", "--compress", "none")
    cluster.wait_equal()

    killed = begin(cluster, repository, "--rate", "100KiB")
    wait_until(lambda: part_files(repository), "the first bytes come")
    killed.kill()
    killed.communicate()
    assert json.loads(cluster.cli_ok("backup", "--to", str(repository), "--list", "--json"))["backups"] == []
    left = part_files(repository)

    going_on = begin(cluster, repository, "--rate", "200KiB")
    begun = wait_until(lambda: part_files(repository) - left, "the first bytes of the next one come")
    (backup_id,) = {part.name.split("-", 2)[2] for part in begun}
    nodes = cluster.local.node_ids()
    (victim,) = wait_until(lambda: [node for node in nodes if f"serving backup {backup_id}" in cluster.log_text(node)], "a node says so")
    cluster.kill(victim)
    output, errors = going_on.communicate()
    assert going_on.returncode == 0, errors
    made = json.loads(output)
    assert made["backup"] == backup_id
    assert made["groups"][cluster.config.groups[0].name]["node"] != victim
    assert cluster.cli("verify", "--backup", str(repository)).returncode == 0
    assert len(json.loads(cluster.cli_ok("backup", "--to", str(repository), "--list", "--json"))["backups"]) == 1


def test_a_restored_cluster_keeps_the_name_of_one_that_still_serves_and_has_nothing_to_do_with_it(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster, repository = make_cluster(settings=SETTINGS), tmp_path / "repository"
    cluster.start()
    cluster.cli_ok("topic", "create", TOPIC, "--queues", "1")
    cluster.cli_ok("produce", TOPIC, "--count", "50", "--size", "100")
    backup(cluster, repository)
    new = restored(make_cluster, repository, name=cluster.config.cluster)
    new.cli_ok("produce", TOPIC, "--count", "10", "--size", "100")
    cluster.cli_ok("produce", TOPIC, "--count", "20", "--size", "100")
    assert [len(read_all(each, TOPIC)) for each in (cluster, new)] == [70, 60]
