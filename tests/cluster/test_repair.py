"""A byte flipped on a real disk: the node repairs itself from its peers at its start, and its files are theirs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger_client import PullConsumer
from dledger_wire.errors import UnreachableError
from tests.cluster.harness import Cluster

FLIPPED_AT = (1_000_000, 3_000_123)


def test_a_damaged_follower_repairs_itself_while_the_group_serves(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d " % n + b"y" * 5000 for n in range(1500)]
    assert cluster.produce("t", bodies)["acknowledged"] == 1500
    cluster.wait_equal()
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    cluster.kill(victim)
    sealed = min((cluster.data / victim / "commitlog").iterdir())
    sound = sealed.read_bytes()
    with open(sealed, "r+b") as file:
        for pos in FLIPPED_AT:
            file.seek(pos)
            file.write(bytes([sound[pos] ^ 0x10]))
    assert cluster.cli("verify", "--data", str(cluster.data / victim)).returncode == 1
    more = [b"more %d" % n for n in range(100)]
    assert cluster.produce("t", more)["acknowledged"] == 100
    cluster.start(victim)
    cluster.wait_healthy()
    cluster.wait_equal()
    assert "the log is repaired" in cluster.log_text(victim)
    assert sealed.read_bytes() == sound
    assert len(list((cluster.data / victim / "quarantine").iterdir())) == len(FLIPPED_AT)
    cluster.cli_ok("verify", "--online")
    assert cluster.consume("t", 1600) == bodies + more


def flip(file: Path, *places: int) -> None:
    with open(file, "r+b") as opened:
        for pos in places:
            opened.seek(pos)
            (byte,) = opened.read(1)
            opened.seek(pos)
            opened.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("local_files", [False, True], ids=["over the network", "from its files"])
def test_damage_found_by_a_consumer_is_put_right_while_it_reads(cluster: Cluster, local_files: bool) -> None:
    """docs/reference/semantics, row R3."""
    how: dict[str, Any] = {"local_files": local_files, "near": frozenset({"127.0.0.1"})}
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies = [b"%06d " % n + b"y" * 5000 for n in range(1500)]
    assert cluster.produce("t", bodies)["acknowledged"] == 1500
    cluster.wait_equal()
    leader = cluster.leader()
    first, second = (node_id for node_id in cluster.local.node_ids() if node_id != leader)
    for node_id in (first, second):  # what was written lately is read from memory, not from the files
        cluster.kill(node_id)
        cluster.start(node_id)
    cluster.wait_healthy()
    cluster.wait_equal()
    sealed = min((cluster.data / first / "commitlog").iterdir())
    sound = sealed.read_bytes()
    flip(sealed, *FLIPPED_AT)
    with PullConsumer(cluster.bootstrap, replica=first, **how) as consumer:
        found = [message.body for chunk in consumer.read_chunks("t", 0, 0, 1500) for message in chunk.messages()]
    assert [n for n, body in enumerate(bodies) if found[n] != body] == []
    assert sealed.read_bytes() == sound
    assert len(list((cluster.data / first / "quarantine").iterdir())) == len(FLIPPED_AT)
    # Nobody is left to ask: the message is not given out, and another replica is the way to it.
    flip(min((cluster.data / second / "commitlog").iterdir()), FLIPPED_AT[0])
    for node_id in (leader, first):
        cluster.kill(node_id)
    with (
        PullConsumer(cluster.bootstrap, replica=second, timeout_ms=10_000, **how) as consumer,
        pytest.raises(UnreachableError, match="checksum does not match"),
    ):
        list(consumer.read_chunks("t", 0, 0, 1500))


def test_comparing_running_replicas_names_node_file_and_position_of_a_flipped_byte(cluster: Cluster) -> None:
    """The bytes are freshly written, so every node still has them in memory."""
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    assert cluster.produce("t", [b"%06d " % n + b"y" * 5000 for n in range(300)])["acknowledged"] == 300
    cluster.wait_equal()
    cluster.cli_ok("verify", "--online")
    victim = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    file = min((cluster.data / victim / "commitlog").iterdir())
    flip(file, 500_000)
    result = cluster.cli("verify", "--online")
    assert result.returncode == 1
    assert f"{victim}: {file}: byte " in result.stderr
    assert "are equal" not in result.stdout
