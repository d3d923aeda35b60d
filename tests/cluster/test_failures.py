"""Nodes killed, paused, cut off and out of space: what is acknowledged stays, and the group goes on or says why not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import MessageTooLargeError, TopicNotFoundError
from tests import needs
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

FLIPPED_AT = 1_000_000


def make_topic(cluster: Cluster, name: str = "t", queues: int = 1) -> None:
    cluster.cli_ok("topic", "create", name, "--queues", str(queues))


def test_kill_of_each_node_in_turn_loses_nothing(cluster: Cluster) -> None:
    make_topic(cluster)
    bodies: list[bytes] = []
    for victim in [*cluster.local.node_ids(), cluster.leader()]:
        batch = [b"%s %d" % (victim.encode(), len(bodies) + n) for n in range(100)]
        cluster.kill(victim)
        assert cluster.produce("t", batch)["acknowledged"] == 100
        bodies += batch
        cluster.start(victim)
    cluster.wait_equal()
    assert cluster.consume("t", 400) == bodies
    assert cluster.consume("t", 400, "--follower") == bodies
    cluster.cli_ok("verify", "--online")


def test_leader_killed_under_load_loses_and_doubles_nothing(cluster: Cluster) -> None:
    make_topic(cluster, queues=2)
    acknowledged: list[int] = []
    with Producer(bootstrap=cluster.bootstrap, group="load", send_timeout_ms=LIMIT_MS) as producer:

        def kill() -> None:
            wait_until(lambda: len(acknowledged) >= 300, "300 acknowledged", pause_s=0.005)
            cluster.kill(cluster.leader())

        killer = threading.Thread(target=kill)
        killer.start()
        futures = []
        for number in range(3000):
            future = producer.send_async(Message("t", b"%d" % number, keys=str(number)))
            future.add_done_callback(lambda done, number=number: acknowledged.append(number) if done.exception() is None else None)
            futures.append(future)
            if number % 50 == 0:
                time.sleep(0.01)
        for future in futures:
            future.result(LIMIT_S)
        killer.join()
    found = [int(body) for body in cluster.consume("t", 4000)]
    assert sorted(found) == list(range(3000)) == sorted(acknowledged)


def test_without_majority_writes_fail_at_their_deadline_and_come_back(cluster: Cluster) -> None:
    make_topic(cluster)
    assert cluster.produce("t", [b"before"])["acknowledged"] == 1
    leader = cluster.leader()
    stopped = [node_id for node_id in cluster.local.node_ids() if node_id != leader]
    for node_id in stopped:
        cluster.kill(node_id)
    start = time.monotonic()
    result = cluster.cli("produce", "t", "--timeout", "2", stdin=b"during\n")
    assert result.returncode == 1
    assert time.monotonic() - start > 1.5
    assert result.stderr.startswith("dledger: ")
    assert "no quorum" in cluster.cli("status").stdout
    cluster.start(stopped[0], wait=False)
    cluster.leader()
    assert cluster.produce("t", [b"after"])["acknowledged"] == 1
    cluster.start(stopped[1])
    found = cluster.consume("t", 3)
    assert [body for body in found if body != b"during"] == [b"before", b"after"]


def test_a_paused_follower_and_a_paused_leader(cluster: Cluster) -> None:
    make_topic(cluster)
    follower = next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    cluster.pause(follower)
    assert cluster.produce("t", [b"%d" % n for n in range(50)])["acknowledged"] == 50
    cluster.resume(follower)
    cluster.wait_equal()
    leader = cluster.leader()
    cluster.pause(leader)
    assert cluster.produce("t", [b"%d" % n for n in range(50, 100)])["acknowledged"] == 50
    assert cluster.leader() != leader  # later it may be elected again
    cluster.resume(leader)
    cluster.wait_equal()
    assert cluster.consume("t", 100) == [b"%d" % n for n in range(100)]


def refused(cluster: Cluster, *arguments: str, stdin: bytes | None = None) -> str:
    """Run a command that must fail at once with exit 1; the one line it says."""
    start = time.monotonic()
    result = cluster.cli(*arguments, "--timeout", str(LIMIT_S), stdin=stdin, timeout_s=2 * LIMIT_S)
    assert result.returncode == 1, result.stdout + result.stderr
    assert time.monotonic() - start < LIMIT_S / 2, "refused by an answer, not by the deadline"
    assert result.stdout == ""
    said = [line for line in result.stderr.splitlines() if not line.startswith("sent ")]
    assert len(said) == 1, said
    return str(said[0])


def test_unknown_topics_are_named_at_once(cluster: Cluster) -> None:
    assert "topic nowhere does not exist" in refused(cluster, "produce", "nowhere", stdin=b"x\n" * 10)
    assert "topic nowhere does not exist" in refused(cluster, "consume", "nowhere")
    assert "topic nowhere does not exist" in refused(cluster, "consume", "nowhere", "--follower")
    assert "no topic 'nowhere'" in refused(cluster, "topic", "describe", "nowhere")
    with Producer(bootstrap=cluster.bootstrap, group="t") as producer, pytest.raises(TopicNotFoundError):
        producer.send(Message("nowhere", b"x"))


def test_wrong_permissions_are_told(cluster: Cluster) -> None:
    make_topic(cluster)
    assert cluster.produce("t", [b"first"])["acknowledged"] == 1
    cluster.cli_ok("topic", "update", "t", "--perm", "4")
    assert refused(cluster, "produce", "t", stdin=b"x\n") == "dledger: line 1: topic t: writing is not permitted (perm 4)"
    assert cluster.consume("t", 1) == [b"first"]
    cluster.cli_ok("topic", "update", "t", "--perm", "2")
    assert refused(cluster, "consume", "t") == "dledger: topic t: reading is not permitted (perm 2)"
    assert refused(cluster, "consume", "t", "--follower") == "dledger: topic t: reading is not permitted (perm 2)"
    assert cluster.produce("t", [b"second"])["acknowledged"] == 1
    cluster.cli_ok("topic", "update", "t", "--perm", "6")
    assert cluster.consume("t", 2) == [b"first", b"second"]


def test_a_body_over_the_largest_size_is_refused_alone(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={"store": {"mappedFileSizeCommitLog": "16MiB"}})
    cluster.start()
    make_topic(cluster)
    largest, over = b"l" * (4 << 20), b"o" * ((4 << 20) + 1)
    result = cluster.cli("produce", "t", "--json", stdin=b"\n".join([b"before", over, largest, b"after", b""]))
    assert result.returncode == 1
    assert f"body of {len(over)} bytes; expected at most {len(largest)}" in result.stderr
    assert (json.loads(result.stdout)["acknowledged"], json.loads(result.stdout)["failed"]) == (3, 1)
    assert cluster.consume("t", 3) == [b"before", largest, b"after"]
    with Producer(cluster.bootstrap, max_message_bytes=len(over), compress_type="none") as bold, pytest.raises(MessageTooLargeError):
        bold.send(Message("t", over))
    assert cluster.produce("t", [b"still"])["acknowledged"] == 1


def test_topic_commands_refuse_what_cannot_be(cluster: Cluster) -> None:
    make_topic(cluster)
    assert refused(cluster, "topic", "create", "t") == "dledger: topic 't' exists (in g0)"
    assert cluster.cli("topic", "create", "t", "--if-not-exists").returncode == 0
    assert "topic name 'bad name!'" in refused(cluster, "topic", "create", "bad name!")
    assert "topic 'nowhere' does not exist" in refused(cluster, "topic", "update", "nowhere", "--perm", "4")
    assert "no replica group 'g9'" in refused(cluster, "topic", "create", "u", "--replica-group", "g9")
    cluster.cli_ok("topic", "create", "wide", "--queues", "4")
    assert "queues 2 to 3 still take messages; first --write-queues 2, then" in refused(cluster, "topic", "update", "wide", "--queues", "2")
    cluster.cli_ok("topic", "update", "wide", "--write-queues", "2")
    cluster.cli_ok("topic", "update", "wide", "--read-queues", "2")


def test_leader_transfer_by_command(cluster: Cluster) -> None:
    make_topic(cluster)
    leader = cluster.leader()
    target = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    result = cluster.cli("leader", "transfer", "--to", target)
    assert result.returncode == 0, result.stderr
    said = re.search(rf"{leader} -> {target} \(term (\d+)\)", result.stderr)
    assert said, result.stderr
    changes = json.loads(cluster.cli_ok("leader", "history", "--json"))["changes"]
    assert (int(said[1]), target, "transfer") in [(each["term"], each["leader"], each["kind"]) for each in changes]
    assert cluster.cli("leader", "transfer", "--to", "n9").returncode == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Put a folder on a disk of 48 MiB of its own."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, check=False)
        if done.returncode != 0:
            needs.lacking(f"cannot mount a small disk here: {done.stderr.decode().strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_follower_whose_disk_is_full_does_not_stop_the_group(
    make_cluster: Callable[..., Cluster], small_disk: Callable[[Path], None]
) -> None:
    cluster = make_cluster()
    small_disk(cluster.data / "n2")
    cluster.start()
    if cluster.leader() == "n2":
        cluster.cli_ok("leader", "transfer", "--to", "n0")
    make_topic(cluster)
    ballast = cluster.data / "n2" / "ballast"
    with open(ballast, "wb") as file:
        free = os.statvfs(cluster.data / "n2")
        file.write(b"\0" * max(0, free.f_bavail * free.f_frsize - (2 << 20)))
    bodies = [b"%06d " % n + b"x" * 10_000 for n in range(2000)]
    assert cluster.produce("t", bodies)["acknowledged"] == 2000
    # It may lag behind the majority; from then on its disk stays full.
    wait_until(lambda: cluster.statuses()["n2"].state.startswith("read-only"), lambda: str(cluster.statuses()["n2"]))
    assert "read-only" in cluster.cli("status").stdout
    ballast.unlink()
    cluster.wait_healthy()
    cluster.wait_equal()
    cluster.cli_ok("verify", "--online")
    assert cluster.consume("t", 2000) == bodies


def test_verify_names_the_flipped_byte(cluster: Cluster) -> None:
    make_topic(cluster)
    assert cluster.produce("t", [b"%06d " % n + b"y" * 5000 for n in range(2000)])["acknowledged"] == 2000
    cluster.wait_equal()
    cluster.stop()
    assert cluster.cli("verify", "--data", str(cluster.data)).returncode == 0
    sealed = min((cluster.data / "n1" / "commitlog").iterdir())
    dumped = cluster.cli_ok("dump", str(sealed), "--json").splitlines()
    hit = [row for row in map(json.loads, dumped) if row["what"] == "entry" and row["pos"] <= FLIPPED_AT][-1]
    with open(sealed, "r+b") as file:
        file.seek(FLIPPED_AT)
        old = file.read(1)
        file.seek(FLIPPED_AT)
        file.write(bytes([old[0] ^ 0x10]))
    result = cluster.cli("verify", "--data", str(cluster.data))
    assert result.returncode == 1
    assert f"DAMAGED  {sealed}: byte {hit['pos']}: entry {hit['index']} bad entry" in result.stdout
    assert f"dledger: {cluster.data / 'n1'}: damaged in 1 place" in result.stderr
    found = [json.loads(line) for line in cluster.cli("verify", "--data", str(cluster.data), "--json").stdout.splitlines()]
    assert [(one["file"], one["pos"], one["index"], one["damage"]) for one in found] == [(str(sealed), hit["pos"], hit["index"], True)]
    assert cluster.cli("verify", "--data", str(cluster.data / "n0")).returncode == 0


def test_verify_names_a_bad_queue_file_and_a_start_puts_it_right(cluster: Cluster) -> None:
    make_topic(cluster)
    bodies = [b"%d" % n for n in range(500)]
    assert cluster.produce("t", bodies)["acknowledged"] == 500
    cluster.wait_equal()  # a majority has them; the third may be stopped before it does
    cluster.stop()
    spoiled, gone = (cluster.data / node_id / "consumequeue" / "t" / "0" / ("0" * 20) for node_id in ("n0", "n1"))
    content = bytearray(spoiled.read_bytes())
    content[123 * 20 + 7] ^= 1
    spoiled.write_bytes(content)
    gone.unlink()
    result = cluster.cli("verify", "--data", str(cluster.data))
    assert result.returncode == 1
    assert f"DAMAGED  {spoiled}: byte {123 * 20}: bad queue file: unit of offset 123: " in result.stdout
    assert f"DAMAGED  {gone}: byte 0: bad queue file: 0 units; expected 500" in result.stdout
    cluster.start()
    cluster.wait_equal()  # followers hear what is committed after they have heard who leads
    with PullConsumer(cluster.bootstrap, replica="n0") as first, PullConsumer(cluster.bootstrap, replica="n1") as second:
        for consumer in (first, second):
            assert [message.body for message in consumer.fetch("t", 0, 0, 500)] == bodies
    cluster.stop()
    cluster.cli_ok("verify", "--data", str(cluster.data))
