"""The log's head is deleted while a node is away: it comes back by a copy, and so does an empty node that joins.

Shows docs/reference/semantics, rows R5 and R6.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable

import pytest

from dledger_client import PullConsumer
from dledger_wire.errors import OffsetOutOfRangeError
from tests.cluster.harness import Cluster
from tests.waiting import wait_until

SETTINGS = {"store": {"mappedFileSizeCommitLog": "256KiB", "maxMessageSize": "100KiB", "mappedFileSizeConsumeQueue": 4000}}


def first_indexes(cluster: Cluster) -> dict[str, int]:
    return {node_id: node.first_index for node_id, node in cluster.statuses().items() if node.reachable}


def send(cluster: Cluster, first: int, upto: int) -> None:
    bodies = [b"%06d " % number + b"x" * 500 for number in range(first, upto)]
    assert cluster.produce("t", bodies)["acknowledged"] == upto - first


def read_all(cluster: Cluster, node_id: str, upto: int) -> tuple[int, list[int]]:
    """The first offset a replica has, and the numbers from there on."""
    with PullConsumer(cluster.bootstrap, replica=node_id) as consumer:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            consumer.fetch("t", 0, 0)
        low = caught.value.min_offset
        assert caught.value.max_offset == upto
        found = [int(message.body[:6]) for chunk in consumer.read_chunks("t", 0, low, upto) for message in chunk.messages()]
    return low, found


def expire(cluster: Cluster) -> dict[str, int]:
    """Delete all that may go; how many segments went on each node that runs."""
    found: dict[str, int] = {}
    for node_id in cluster.processes:
        reply = json.loads(cluster.cli_ok("expire", "--older-than", "0s", "--yes", "--json", "--id", node_id))
        found |= {node["id"]: node["segments"] for node in reply["nodes"]}
    return found


def wait_for_node(cluster: Cluster, node_id: str, ready: Callable[[], bool]) -> None:
    wait_until(ready, lambda: cluster.log_text(node_id))


def test_a_follower_that_was_down_while_the_head_was_deleted_comes_back_by_copy(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings=SETTINGS)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    cluster.cli_ok("topic", "create", "slow", "--queues", "2")  # one file a queue, before and after
    send(cluster, 0, 500)
    cluster.produce("slow", [b"%d" % number for number in range(20)])
    cluster.wait_equal()
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    wait_for_node(cluster, victim, lambda: len(list((cluster.data / victim / "consumequeue" / "slow").glob("*/0*"))) == 2)
    cluster.kill(victim)
    send(cluster, 500, 5000)
    assert [segments >= 5 for segments in expire(cluster).values()] == [True, True]
    incomplete = cluster.cli("expire", "--older-than", "0s", "--yes")
    assert incomplete.returncode == 1  # one node does not answer, and that is said
    assert victim in incomplete.stderr

    cluster.produce("slow", [b"%d" % number for number in range(20, 40)])
    cluster.cli_ok("topic", "create", "needles", "--queues", "1")
    cluster.cli_ok("produce", "needles", "--key", "k-1", stdin=b"needle\n")
    sending = threading.Thread(target=send, args=(cluster, 5000, 7000))
    sending.start()
    try:
        cluster.start(victim)
        cluster.wait_healthy()
    finally:
        sending.join()
    cluster.wait_equal()
    log = cluster.log_text(victim)
    assert "snapshot installed" in log
    assert "queue_file_rebuilt" not in log, "queue files are made anew together, not one by one as they are found wrong"
    assert first_indexes(cluster)[victim] > 1
    cluster.cli_ok("verify", "--online")
    for node_id in cluster.local.node_ids():
        low, found = read_all(cluster, node_id, 7000)
        assert low > 500
        assert found == list(range(low, 7000))

    # What a copy brought is as good as what was written here: it starts again, it verifies, it can lead.
    assert cluster.terminate(victim) == 0
    cluster.cli_ok("verify", "--data", str(cluster.data / victim))
    cluster.start(victim)
    cluster.cli_ok("leader", "transfer", "--to", victim)
    send(cluster, 7000, 7100)
    cluster.wait_equal()
    assert read_all(cluster, victim, 7100)[1][-1] == 7099
    wait_for_node(cluster, victim, lambda: "needle" in cluster.cli_ok("message", "query", "needles", "--key", "k-1"))
    assert not [path for path in (cluster.data / victim / "copy").rglob("*") if path.is_file()]


def test_an_empty_node_joins_by_copy_survives_kills_in_its_middle_and_becomes_a_voter(make_cluster: Callable[..., Cluster]) -> None:
    settings = SETTINGS | {"raft": {"peerPushQuota": "700KiB"}}
    cluster = make_cluster(settings=settings)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    send(cluster, 0, 4000)
    cluster.wait_equal()
    expire(cluster)
    send(cluster, 4000, 8000)
    cluster.wait_equal()
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    address = next(node.address for _, node in cluster.config.all_nodes() if node.id == victim)
    cluster.kill(victim)
    shutil.rmtree(cluster.data / victim)
    cluster.cli_ok("member", "remove", "--id", victim, "--yes")
    cluster.start(victim, wait=False)
    cluster.cli_ok("member", "add", "--id", victim, "--address", address)
    copied = cluster.data / victim / "copy" / "commitlog"

    def files() -> int:
        return len(list(copied.iterdir())) if copied.is_dir() else 0

    for wanted in (2, 5):
        wait_for_node(cluster, victim, lambda wanted=wanted: files() >= wanted)
        cluster.kill(victim)
        cluster.start(victim, wait=False)
    wait_for_node(cluster, victim, lambda: "snapshot installed" in cluster.log_text(victim))
    assert cluster.log_text(victim).count(", 0 of ") == 1  # after each kill it went on where it was
    wait_for_node(cluster, victim, lambda: cluster.cli("member", "promote", "--id", victim).returncode == 0)
    cluster.wait_healthy()
    cluster.wait_equal()
    low, found = read_all(cluster, victim, 8000)
    assert low > 0
    assert found == list(range(low, 8000))
    cluster.cli_ok("verify", "--online")
